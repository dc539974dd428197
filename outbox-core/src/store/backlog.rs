//! How much of an outbox is not published, in counts that stay cheap.

use std::time::Duration;

/// Counts of unpublished messages in the outbox. Counting stops at [`BACKLOG_COUNT_MAX`], so that it stays cheap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Backlog {
    /// Messages not yet published, including waiting ones, excluding dead letters.
    pub pending: u64,
    /// As `pending`, and beyond the bound of counts an estimate: the row ids from the oldest pending message to the newest, which may include messages that
    /// are published, and the waiting messages.
    pub pending_estimate: u64,
    /// Of those, messages that wait for their aggregate or their own time.
    pub waiting: u64,
    /// Dead letters.
    pub dead_letters: u64,
    /// Aggregates that are halted until an operator acts.
    pub halted_aggregates: u64,
    /// Aggregates whose block has not ended, including halted ones.
    pub blocked_aggregates: u64,
    /// How long the oldest message has been due: since it was recorded, or since its own time if it was delayed. Waiting messages count, failed ones among
    /// them. Messages that are meant to wait do not count: delayed messages and messages behind them, and messages of paused or halted aggregates. `None`
    /// if no message is due. A store examines the first [`BACKLOG_COUNT_MAX`] rows of each status.
    pub oldest_unpublished: Option<Duration>,
}

impl Backlog {
    /// Whether `pending` is all of them: counting has not stopped.
    #[must_use]
    pub fn is_exact(&self) -> bool {
        self.pending < BACKLOG_COUNT_MAX
    }
}

/// Largest count in a backlog. Counting so many entries of an index takes a database about 10 ms; a count ten times as large would be no better news.
pub const BACKLOG_COUNT_MAX: u64 = 100_000;
