//! Lists for operators: messages and blocked aggregates. The application authorizes callers.

use std::future::Future;
use std::num::NonZeroU32;
use std::time::Duration;

use time::OffsetDateTime;

use super::{OutboxStore, StoreError};
use crate::message::{Aggregate, EventId, Message, MessageId};

/// Lists for operators.
pub trait OutboxAdmin: OutboxStore {
    /// Lists at most `limit` messages, oldest first, after [`Selection::after`].
    fn list(
        &self,
        selection: &Selection,
        limit: NonZeroU32,
    ) -> impl Future<Output = Result<Vec<StoredMessage>, StoreError>> + Send;

    /// Lists at most `limit` messages in the order of [`PageFrom`]. Scans an index. Ignores
    /// [`Selection::after`].
    fn page(
        &self,
        selection: &Selection,
        from: PageFrom,
        limit: NonZeroU32,
    ) -> impl Future<Output = Result<Vec<StoredMessage>, StoreError>> + Send;

    /// Lists at most `limit` blocked aggregates: halted aggregates first, then by end of block.
    fn blocked(
        &self,
        limit: NonZeroU32,
    ) -> impl Future<Output = Result<Vec<BlockedAggregate>, StoreError>> + Send;

    /// Deletes the stored last sequence of idle aggregates of one type. An aggregate is idle
    /// without pending messages, waiting messages and dead letters, and without a recording for
    /// `idle_for`. Returns the number of aggregates. Processes 1,000 aggregates per transaction;
    /// after an error, call again.
    ///
    /// The outbox keeps a row per aggregate forever. Choose `idle_for` above message retention and
    /// consumer lag, see [`forget_as`](super::OutboxAudit::forget_as).
    fn forget_idle(
        &self,
        aggregate_type: &str,
        idle_for: Duration,
    ) -> impl Future<Output = Result<u64, StoreError>> + Send;

    /// Reads at most `limit` published messages in id order, with ids above `after`, recorded from
    /// `recorded_from` (inclusive) to `recorded_until` (exclusive). Includes logged messages up to
    /// the stored log position. Leaves out unreadable rows.
    fn published(
        &self,
        recorded_from: OffsetDateTime,
        recorded_until: OffsetDateTime,
        after: Option<MessageId>,
        limit: NonZeroU32,
    ) -> impl Future<Output = Result<Vec<Message>, StoreError>> + Send;
}

/// A message's status.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MessageStatus {
    /// Waiting for a relay's next scan.
    Pending,
    /// Set aside until its time or its aggregate's block has ended.
    Waiting,
    /// On the stream.
    Published,
    /// A dead letter.
    Dead,
    /// In the database log, for a log relay ([`log`](crate::log)).
    Logged,
}

impl MessageStatus {
    /// A lower-case word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Waiting => "waiting",
            Self::Published => "published",
            Self::Dead => "dead",
            Self::Logged => "logged",
        }
    }
}

/// A filter on messages; the default selects all. Except for dead letters, give a recording time
/// span, which limits the scan.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Selection {
    /// The message id.
    pub id: Option<MessageId>,
    /// The status.
    pub status: Option<MessageStatus>,
    /// The aggregate type.
    pub aggregate_type: Option<String>,
    /// The aggregate id.
    pub aggregate_id: Option<String>,
    /// The event type (`order.placed`).
    pub event_type: Option<String>,
    /// Earliest recording time, inclusive.
    pub recorded_from: Option<OffsetDateTime>,
    /// Exclusive recording end.
    pub recorded_until: Option<OffsetDateTime>,
    /// Selects only row ids above this.
    pub after: Option<i64>,
}

/// Start and order of a page. With status pending, waiting or dead, pages are in row id order,
/// otherwise in message id order. Message ids are UUID v7, unless a writer uses another version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum PageFrom {
    /// Starts at the newest message, newest first.
    Newest,
    /// Starts before this place, newest first.
    Before(Place),
    /// Message ids above this, in id order.
    After(MessageId),
}

/// A list position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The row id.
    pub row_id: i64,
    /// The message id.
    pub id: MessageId,
}

impl PageFrom {
    /// Whether the page is in row id order.
    #[must_use]
    pub fn is_by_row_id(self, status: Option<MessageStatus>) -> bool {
        let has_index = matches!(
            status,
            Some(MessageStatus::Pending | MessageStatus::Waiting | MessageStatus::Dead)
        );
        has_index && !matches!(self, Self::After(_))
    }
}

impl Selection {
    /// Selects all messages.
    #[must_use]
    pub fn all() -> Self {
        Self::default()
    }

    /// Selects dead letters.
    #[must_use]
    pub fn dead_letters() -> Self {
        Self::all().status(MessageStatus::Dead)
    }

    /// Selects one message.
    #[must_use]
    pub fn id(id: MessageId) -> Self {
        Self {
            id: Some(id),
            ..Self::default()
        }
    }

    /// Selects a status.
    #[must_use]
    pub fn status(mut self, status: MessageStatus) -> Self {
        self.status = Some(status);
        self
    }

    /// Selects an aggregate.
    #[must_use]
    pub fn aggregate(mut self, aggregate: &Aggregate) -> Self {
        self.aggregate_type = Some(aggregate.aggregate_type.clone());
        self.aggregate_id = Some(aggregate.id.clone());
        self
    }

    /// Selects aggregate types.
    #[must_use]
    pub fn aggregate_type(mut self, aggregate_type: impl Into<String>) -> Self {
        self.aggregate_type = Some(aggregate_type.into());
        self
    }

    /// Selects an event type (`order.placed`).
    #[must_use]
    pub fn event_type(mut self, event_type: impl Into<String>) -> Self {
        self.event_type = Some(event_type.into());
        self
    }

    /// Sets the earliest recording time, inclusive.
    #[must_use]
    pub fn recorded_from(mut self, time: OffsetDateTime) -> Self {
        self.recorded_from = Some(time);
        self
    }

    /// Sets the exclusive end of recording times.
    #[must_use]
    pub fn recorded_until(mut self, time: OffsetDateTime) -> Self {
        self.recorded_until = Some(time);
        self
    }

    /// Selects only row ids above `row_id`.
    #[must_use]
    pub fn after(mut self, row_id: i64) -> Self {
        self.after = Some(row_id);
        self
    }
}

/// A listed message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredMessage {
    /// The row id.
    pub row_id: i64,
    /// The message's id.
    pub id: MessageId,
    /// Differs from `id` in replayed copies.
    pub event_id: EventId,
    /// The message's aggregate.
    pub aggregate: Aggregate,
    /// Sequence within the aggregate.
    pub sequence: Option<u64>,
    /// The event type.
    pub event_type: String,
    /// The message's status.
    pub status: MessageStatus,
    /// Publish attempts used.
    pub attempts: u32,
    /// Failures of any kind.
    pub failures: u32,
    /// The last error.
    pub error: Option<String>,
    /// Whether the message halts its aggregate until retried or skipped.
    pub halts: bool,
    /// Time of recording.
    pub created_at: OffsetDateTime,
    /// Time of publishing.
    pub published_at: Option<OffsetDateTime>,
}

/// Result of [`OutboxAudit::forget_as`](super::OutboxAudit::forget_as).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Forgotten {
    /// Messages deleted.
    pub messages: u64,
    /// Skipped aggregates: halted, or with unpublished messages.
    pub left: Vec<Aggregate>,
}

/// A blocked aggregate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockedAggregate {
    /// The aggregate.
    pub aggregate: Aggregate,
    /// Halting dead letter.
    pub halted_by: Option<i64>,
    /// Time until the block ends; zero if it has ended, `None` if the aggregate is halted.
    pub blocked_for: Option<Duration>,
}

/// Counts of unpublished messages, up to [`BACKLOG_COUNT_MAX`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Backlog {
    /// Excludes dead letters.
    pub pending: u64,
    /// As `pending`. Above [`BACKLOG_COUNT_MAX`] an estimate: waiting messages plus the row id
    /// range of pending messages.
    pub pending_estimate: u64,
    /// Waiting part of `pending`.
    pub waiting: u64,
    /// Dead letter count.
    pub dead_letters: u64,
    /// Halted aggregate count.
    pub halted_aggregates: u64,
    /// Blocked aggregates, including halted aggregates.
    pub blocked_aggregates: u64,
    /// Time since the oldest message became due (recording, or end of its delay). Excludes delayed
    /// messages, messages behind them, and paused or halted aggregates. `None` if no message is
    /// due. Examines the first [`BACKLOG_COUNT_MAX`] rows of each status.
    pub oldest_unpublished: Option<Duration>,
}

impl Backlog {
    /// Whether `pending` is below [`BACKLOG_COUNT_MAX`].
    #[must_use]
    pub fn is_exact(&self) -> bool {
        self.pending < BACKLOG_COUNT_MAX
    }
}

/// Maximum count: index scans of about 10 ms.
pub const BACKLOG_COUNT_MAX: u64 = 100_000;
