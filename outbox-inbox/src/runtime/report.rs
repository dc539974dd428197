//! Counts the deliveries of an inbox by what happened to them.

use std::sync::atomic::{AtomicU64, Ordering};

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
pub(crate) struct Tally {
    pub(crate) handled: AtomicU64,
    pub(crate) duplicates: AtomicU64,
    pub(crate) failed: AtomicU64,
    pub(crate) deferred: AtomicU64,
    pub(crate) dead_letters: AtomicU64,
    pub(crate) skipped: AtomicU64,
    pub(crate) sent_back: AtomicU64,
    pub(crate) returned: AtomicU64,
    pub(crate) received: AtomicU64,
}

impl Tally {
    pub(crate) fn report(&self) -> InboxReport {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        InboxReport {
            handled: read(&self.handled),
            duplicates: read(&self.duplicates),
            failed: read(&self.failed),
            deferred: read(&self.deferred),
            dead_letters: read(&self.dead_letters),
            skipped: read(&self.skipped),
            sent_back: read(&self.sent_back),
            returned: read(&self.returned),
            received: read(&self.received),
        }
    }

    pub(crate) fn received(&self) {
        self.received.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count(&self, outcome: &Outcome) {
        let counter = match (outcome, outcome.retry()) {
            (Outcome::Handled, _) => &self.handled,
            (Outcome::Duplicate | Outcome::Buried, _) => &self.duplicates,
            (Outcome::DeadLettered, _) => &self.dead_letters,
            (Outcome::Skipped, _) => &self.skipped,
            (Outcome::SentBack { .. }, _) => &self.sent_back,
            (Outcome::Returned, _) => &self.returned,
            (_, Some(Retry::Failed)) => &self.failed,
            (_, Some(Retry::Deferred)) => &self.deferred,
            // It did not run.
            _ => return,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}
