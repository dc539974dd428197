//! The books of a run: the violations of its ledger, counted.

use outbox_core::MessageStatus;
use outbox_core::testing::Ledger;
use outbox_core::testing::ledger::Violation;
use serde::Serialize;

/// The balance of a run.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Books {
    /// Messages committed.
    pub(crate) committed: usize,
    /// Of those, messages that are not on the stream.
    pub(crate) lost: u64,
    /// Messages on the stream that nobody committed.
    pub(crate) ghosts: u64,
    /// Messages that first appear before an earlier one of their aggregate.
    pub(crate) inversions: u64,
    /// Numbers that no committed message of an aggregate has, or two have.
    pub(crate) holes: u64,
    /// Messages not settled as published.
    pub(crate) unsettled: usize,
    /// Messages on the stream, not counting the first copy of each; consumers drop these.
    pub(crate) copies: usize,
}

impl Books {
    pub(crate) fn balance(ledger: &Ledger) -> Self {
        let published = |status: MessageStatus| status == MessageStatus::Published;
        let unsettled = ledger
            .committed
            .iter()
            .filter(|message| !published(message.status));
        let mut books = Self {
            committed: ledger.committed.len(),
            unsettled: unsettled.count(),
            copies: ledger.copies(),
            ..Self::default()
        };
        for violation in ledger.check() {
            *match violation {
                Violation::Lost { .. } => &mut books.lost,
                Violation::Ghost { .. } => &mut books.ghosts,
                Violation::Inverted { .. } => &mut books.inversions,
                _ => &mut books.holes,
            } += 1;
        }
        books
    }

    pub(crate) fn is_balanced(&self) -> bool {
        self.lost == 0 && self.ghosts == 0 && self.inversions == 0 && self.holes == 0 && self.unsettled == 0
    }
}
