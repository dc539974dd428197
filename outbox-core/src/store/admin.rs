//! What operators see and do: the outbox beside the relay.
//!
//! Invariant: nothing here publishes. It changes what a relay finds, in transactions of its own, and works while relays run. Absent: who may
//! do it.

use std::future::Future;
use std::num::NonZeroU32;
use std::time::Duration;

use time::OffsetDateTime;

use super::{OutboxStore, StoreError};
use crate::message::{Aggregate, EventId, Message, MessageId};

/// Lists messages, and decides about those that were dead-lettered.
///
/// Operations on a [`Selection`] take its messages in the order of their row ids, in transactions of at most 1,000 messages each: after an error, what was
/// done stays done, and calling again continues.
pub trait OutboxAdmin: OutboxStore {
    /// Lists messages, oldest first. Go on with [`Selection::after`].
    fn list(
        &self,
        selection: &Selection,
        limit: NonZeroU32,
    ) -> impl Future<Output = Result<Vec<StoredMessage>, StoreError>> + Send;

    /// Makes dead letters pending again with no attempts used, and lets the aggregates go on that they halt. Returns how many were
    /// dead letters. If later messages of the aggregate were published meanwhile (policy continue), they come after those.
    fn retry(&self, selection: &Selection) -> impl Future<Output = Result<u64, StoreError>> + Send;

    /// Leaves dead letters behind: they stay dead letters, but no longer halt their aggregates. They can still be retried. Returns how many were
    /// dead letters.
    fn skip(&self, selection: &Selection) -> impl Future<Output = Result<u64, StoreError>> + Send;

    /// Records copies of published messages or dead letters, to be published again, behind everything recorded so far. A copy has a message id of its own, so
    /// that the broker takes it, and keeps event id, sequence and time, so that consumers recognise it. Returns how many were copied.
    ///
    /// Not idempotent: after an error, [`StoredMessage::event_id`] tells what was copied already.
    fn replay(&self, selection: &Selection) -> impl Future<Output = Result<u64, StoreError>> + Send;

    /// Lists blocked aggregates: halted ones first, then by the end of their block.
    fn blocked(
        &self,
        limit: NonZeroU32,
    ) -> impl Future<Output = Result<Vec<BlockedAggregate>, StoreError>> + Send;

    /// Ends the block of an aggregate now, instead of waiting out its back-off; a delayed message keeps its time. Returns false if it is not blocked, or halted.
    fn resume(&self, aggregate: &Aggregate) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Reads published messages that are still kept, in the order of their ids, which is about that of their recording; for reconciling with the
    /// stream. Rows that cannot be read are left out.
    fn published(
        &self,
        recorded_from: OffsetDateTime,
        recorded_until: OffsetDateTime,
        after: Option<MessageId>,
        limit: NonZeroU32,
    ) -> impl Future<Output = Result<Vec<Message>, StoreError>> + Send;
}

/// Where a message stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MessageStatus {
    /// To be published.
    Pending,
    /// To be published, once its aggregate or its own time is due.
    Waiting,
    /// On the stream.
    Published,
    /// Dead-lettered.
    Dead,
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
        }
    }
}

/// Which messages. The default is all; each method narrows it.
///
/// Dead letters are found through an index of their own, others through the time they were recorded at: give a time span when
/// selecting published ones.
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
    /// Only messages with a larger row id.
    pub after: Option<i64>,
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

    /// Only messages with a larger row id: the last of a list, to go on behind it.
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
    /// The event's id: differs from the message's in a replayed copy.
    pub event_id: EventId,
    /// Its aggregate.
    pub aggregate: Aggregate,
    /// Its number within the aggregate.
    pub sequence: Option<u64>,
    /// Its event type.
    pub event_type: String,
    /// Where it stands.
    pub status: MessageStatus,
    /// Attempts used.
    pub attempts: u32,
    /// Failures of any kind.
    pub failures: u32,
    /// The last error.
    pub error: Option<String>,
    /// Whether its aggregate is halted until it is retried or skipped.
    pub halts: bool,
    /// When it was recorded.
    pub created_at: OffsetDateTime,
    /// When it was published.
    pub published_at: Option<OffsetDateTime>,
}

/// An aggregate whose messages wait.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockedAggregate {
    /// The aggregate.
    pub aggregate: Aggregate,
    /// Key of the dead letter that halts it, if it is halted.
    pub halted_by: Option<i64>,
    /// How long it is still blocked; zero if the block has ended. `None` if it is halted.
    pub blocked_for: Option<Duration>,
}
