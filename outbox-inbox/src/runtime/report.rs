//! Counts the deliveries of an inbox by outcome.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::dedup::{Outcome, Retry};

/// Counters of a run of an inbox.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct InboxReport {
    /// Handled messages.
    pub handled: u64,
    /// Deliveries of messages handled or dead-lettered before.
    pub duplicates: u64,
    /// Failed attempts with a pending retry.
    pub failed: u64,
    /// Runs deferred by the handler.
    pub deferred: u64,
    /// Deliveries that became dead letters.
    pub dead_letters: u64,
    /// Deliveries acknowledged without a handler: other event types, and ignored deliveries.
    pub skipped: u64,
    /// Deliveries returned for another version of the program.
    pub sent_back: u64,
    /// Deliveries returned at shutdown.
    pub returned: u64,
    /// Deliveries received.
    pub received: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Tally(Mutex<InboxReport>);

impl Tally {
    pub(crate) fn report(&self) -> InboxReport {
        *self.lock()
    }

    pub(crate) fn received(&self) {
        self.lock().received += 1;
    }

    pub(crate) fn count(&self, outcome: &Outcome) {
        let report = &mut *self.lock();
        let counter = match (outcome, outcome.retry()) {
            (Outcome::Handled, _) => &mut report.handled,
            (Outcome::Duplicate | Outcome::Buried, _) => &mut report.duplicates,
            (Outcome::DeadLettered, _) => &mut report.dead_letters,
            (Outcome::Skipped, _) => &mut report.skipped,
            (Outcome::SentBack { .. }, _) => &mut report.sent_back,
            (Outcome::Returned, _) => &mut report.returned,
            (_, Some(Retry::Failed)) => &mut report.failed,
            (_, Some(Retry::Deferred)) => &mut report.deferred,
            _ => return,
        };
        *counter += 1;
    }

    fn lock(&self) -> MutexGuard<'_, InboxReport> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
