//! A row of the outbox in memory, as tests see it.

use outbox_core::message::{Aggregate, Message};
use outbox_core::store::MessageStatus;
use time::OffsetDateTime;

/// A committed message of a [`MemoryStore`](super::MemoryStore), as it was when it was read.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct StoredRow {
    /// The row id.
    pub row_id: i64,
    /// The message.
    pub message: Message,
    /// The message's status.
    pub status: MessageStatus,
    /// Attempts used.
    pub attempts: u32,
    /// Failures of any kind.
    pub failures: u32,
    /// The last error, if there was one.
    pub last_error: Option<String>,
    /// Whether the message halts its aggregate.
    pub halts: bool,
    /// The message's deduplication key, if it has one.
    pub dedup_key: Option<String>,
    /// The earliest time of publishing, if the message is delayed.
    pub available_at: Option<OffsetDateTime>,
    /// Time of publishing; `None` if not published.
    pub published_at: Option<OffsetDateTime>,
}

impl StoredRow {
    /// The aggregate that the message belongs to.
    #[must_use]
    pub fn aggregate(&self) -> &Aggregate {
        &self.message.aggregate
    }
}
