//! Lists for operators: messages and blocked aggregates. Relays may run meanwhile.
//!
//! Not here: the changes of operators ([`OutboxAudit`](super::OutboxAudit)), and authorization,
//! which is up to the application.

use std::future::Future;
use std::num::NonZeroU32;
use std::time::Duration;

use time::OffsetDateTime;

use super::{OutboxStore, StoreError};
use crate::message::{Aggregate, EventId, Message, MessageId};

/// Lists messages, and forgets idle aggregates.
pub trait OutboxAdmin: OutboxStore {
    /// Lists at most `limit` messages, oldest first. [`Selection::after`] asks for the next page.
    fn list(
        &self,
        selection: &Selection,
        limit: NonZeroU32,
    ) -> impl Future<Output = Result<Vec<StoredMessage>, StoreError>> + Send;

    /// At most `limit` selected messages, read through an index that has their order: without other filters than the status, a page costs the same however
    /// many messages there are. [`Selection::after`] is ignored. See [`PageFrom`] for the order.
    fn page(
        &self,
        selection: &Selection,
        from: PageFrom,
        limit: NonZeroU32,
    ) -> impl Future<Output = Result<Vec<StoredMessage>, StoreError>> + Send;

    /// Lists at most `limit` blocked aggregates: first the halted ones, then the others by the end of their block.
    fn blocked(
        &self,
        limit: NonZeroU32,
    ) -> impl Future<Output = Result<Vec<BlockedAggregate>, StoreError>> + Send;

    /// Forgets the last sequence of aggregates of one type that have recorded nothing for at least `idle_for`, and that
    /// have no pending or waiting message and no dead letter. Published messages that are still kept stay. Returns the
    /// number of aggregates. Otherwise the outbox keeps a small row per aggregate for ever.
    ///
    /// For types whose aggregates end, such as orders; the price is that of [`forget_as`](super::OutboxAudit::forget_as). Choose a time
    /// after which none of them comes back, longer than published messages are kept and consumers lag behind. Takes
    /// 1,000 aggregates per transaction; after an error, call again.
    fn forget_idle(
        &self,
        aggregate_type: &str,
        idle_for: Duration,
    ) -> impl Future<Output = Result<u64, StoreError>> + Send;

    /// Reads at most `limit` published messages that are still kept, recorded at `recorded_from` or later and before
    /// `recorded_until`, with ids larger than `after`. They come in the order of their ids, which is roughly the order
    /// of recording. Used for reconciling with the stream. Rows that cannot be read are left out. Logged messages are
    /// among them once the stored position of the log has passed them.
    fn published(
        &self,
        recorded_from: OffsetDateTime,
        recorded_until: OffsetDateTime,
        after: Option<MessageId>,
        limit: NonZeroU32,
    ) -> impl Future<Output = Result<Vec<Message>, StoreError>> + Send;
}

/// The status of a message in the outbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MessageStatus {
    /// To be published as soon as possible.
    Pending,
    /// Set aside until its aggregate or its own time is due.
    Waiting,
    /// On the stream.
    Published,
    /// A dead letter.
    Dead,
    /// Recorded for a log relay ([`log`](crate::log)). It is on the stream once the relay's position in the log has passed it.
    Logged,
}

impl MessageStatus {
    /// The status as a short lower-case word, as views and logs show it.
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

/// A filter on messages. The default selects all; each method narrows the selection.
///
/// Dead letters have an index of their own; other messages are found by the time of their recording. So give a time
/// span when you select published messages.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Selection {
    /// Only the message with this id.
    pub id: Option<MessageId>,
    /// Only messages of this status.
    pub status: Option<MessageStatus>,
    /// Only messages of aggregates of this type.
    pub aggregate_type: Option<String>,
    /// Only messages of aggregates with this id.
    pub aggregate_id: Option<String>,
    /// Only messages of this event type (`order.placed`).
    pub event_type: Option<String>,
    /// Only messages recorded at this time or later.
    pub recorded_from: Option<OffsetDateTime>,
    /// Only messages recorded before this time.
    pub recorded_until: Option<OffsetDateTime>,
    /// Only messages with a larger row id than this.
    pub after: Option<i64>,
}

/// Where a page of messages begins, and its order.
///
/// Messages that are pending, waiting or dead, if the selection has that status, are in the order of their row ids. Other messages are in the order of their ids,
/// which is that of the clocks that made them: ids are UUIDs of version 7, unless a writer chose another version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum PageFrom {
    /// The newest messages, newest first.
    Newest,
    /// The messages before this place, newest first.
    Before(Place),
    /// The messages with a larger id, in the order of their ids whatever their status.
    After(MessageId),
}

/// The place of a message in a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The row id.
    pub row_id: i64,
    /// The id.
    pub id: MessageId,
}

impl PageFrom {
    /// Whether a page of messages with this status is in the order of row ids.
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
    /// All messages.
    #[must_use]
    pub fn all() -> Self {
        Self::default()
    }

    /// All dead letters.
    #[must_use]
    pub fn dead_letters() -> Self {
        Self::all().status(MessageStatus::Dead)
    }

    /// One message.
    #[must_use]
    pub fn id(id: MessageId) -> Self {
        Self {
            id: Some(id),
            ..Self::default()
        }
    }

    /// Only messages of this status.
    #[must_use]
    pub fn status(mut self, status: MessageStatus) -> Self {
        self.status = Some(status);
        self
    }

    /// Only messages of this aggregate.
    #[must_use]
    pub fn aggregate(mut self, aggregate: &Aggregate) -> Self {
        self.aggregate_type = Some(aggregate.aggregate_type.clone());
        self.aggregate_id = Some(aggregate.id.clone());
        self
    }

    /// Only messages of aggregates of this type.
    #[must_use]
    pub fn aggregate_type(mut self, aggregate_type: impl Into<String>) -> Self {
        self.aggregate_type = Some(aggregate_type.into());
        self
    }

    /// Only messages of this event type (`order.placed`).
    #[must_use]
    pub fn event_type(mut self, event_type: impl Into<String>) -> Self {
        self.event_type = Some(event_type.into());
        self
    }

    /// Only messages recorded at this time or later.
    #[must_use]
    pub fn recorded_from(mut self, time: OffsetDateTime) -> Self {
        self.recorded_from = Some(time);
        self
    }

    /// Only messages recorded before this time.
    #[must_use]
    pub fn recorded_until(mut self, time: OffsetDateTime) -> Self {
        self.recorded_until = Some(time);
        self
    }

    /// Only messages with a larger row id than this: pass the last row id of a page to get the next page.
    #[must_use]
    pub fn after(mut self, row_id: i64) -> Self {
        self.after = Some(row_id);
        self
    }
}

/// A message as an operator sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredMessage {
    /// The row id.
    pub row_id: i64,
    /// The message's id.
    pub id: MessageId,
    /// The event's id: equal to the message's id, except in a replayed copy.
    pub event_id: EventId,
    /// The message's aggregate.
    pub aggregate: Aggregate,
    /// The message's number within the aggregate; `None` for unsequenced events.
    pub sequence: Option<u64>,
    /// The event type.
    pub event_type: String,
    /// The message's status.
    pub status: MessageStatus,
    /// Attempts used.
    pub attempts: u32,
    /// Failures of any kind.
    pub failures: u32,
    /// The last error, if there was one.
    pub error: Option<String>,
    /// Whether this message halts its aggregate until it is retried or skipped.
    pub halts: bool,
    /// Time of recording.
    pub created_at: OffsetDateTime,
    /// Time of publishing; `None` if not published.
    pub published_at: Option<OffsetDateTime>,
}

/// The result of forgetting aggregates.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Forgotten {
    /// Number of messages deleted.
    pub messages: u64,
    /// The aggregates that were left as they are, because something of them is unpublished.
    pub left: Vec<Aggregate>,
}

/// A blocked aggregate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockedAggregate {
    /// The aggregate.
    pub aggregate: Aggregate,
    /// Row id of the dead letter that halts the aggregate; `None` if the aggregate is not halted.
    pub halted_by: Option<i64>,
    /// Time until the block ends; zero if it has ended already, `None` if the aggregate is halted.
    pub blocked_for: Option<Duration>,
}

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
