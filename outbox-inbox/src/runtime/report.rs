//! Counts the deliveries of an inbox by what happened to them.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::dedup::{Outcome, Retry};

/// What an inbox did from its start to its end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct InboxReport {
    /// Messages that took effect.
    pub handled: u64,
    /// Deliveries of messages that had been handled or dead-lettered before.
    pub duplicates: u64,
    /// Attempts that failed; the messages are tried again.
    pub failed: u64,
    /// Runs after which the handler asked for another time; the messages are tried again, and it
    /// uses no attempts.
    pub deferred: u64,
    /// Deliveries that became dead letters.
    pub dead_letters: u64,
    /// Deliveries acknowledged without a handler: event types that nobody has asked for, and
    /// deliveries that the configuration says to ignore.
    pub skipped: u64,
    /// Deliveries sent back to the broker because another version of the program is to handle them.
    pub sent_back: u64,
    /// Deliveries given back to the broker at shutdown, unhandled.
    pub returned: u64,
    /// Deliveries received.
    pub received: u64,
}

/// The counters behind an [`InboxReport`].
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
            // It did not run.
            _ => return,
        };
        *counter += 1;
    }

    fn lock(&self) -> MutexGuard<'_, InboxReport> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
