//! How much of an outbox is not published, in counts that stay cheap.

use std::time::Duration;

/// Counts of unpublished messages in the outbox. Counting stops at [`BACKLOG_COUNT_MAX`], so that it stays cheap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Backlog {
    /// Messages not yet published, including waiting ones, excluding dead letters.
    pub pending: u64,
    /// Of those, messages that wait for their aggregate or their own time.
    pub waiting: u64,
    /// Dead letters.
    pub dead_letters: u64,
    /// Aggregates that are halted until an operator acts.
    pub halted_aggregates: u64,
    /// Aggregates whose block has not ended, including halted ones.
    pub blocked_aggregates: u64,
    /// Age of the oldest message that is pending and not waiting; `None` if there is none.
    pub oldest_pending: Option<Duration>,
}

/// Largest count in a backlog. Counting so many entries of an index takes a database about 10 ms; a count ten times as large would be no better news.
pub const BACKLOG_COUNT_MAX: u64 = 100_000;
