//! Operations for operators: list messages, and decide about dead letters and blocks.
//!
//! Invariant: nothing here publishes. Each operation changes what a relay will find, in transactions of its own, and
//! works while relays run. Not here: authorization, which is up to the application.

use std::future::Future;
use std::num::NonZeroU32;
use std::time::Duration;

use time::OffsetDateTime;

use super::{OutboxStore, PauseRequest, StoreError};
use crate::message::{Aggregate, EventId, Message, MessageId};

/// Lists messages and decides about dead letters.
///
/// An operation on a [`Selection`] takes its messages in the order of their row ids, in transactions of at most 1,000
/// messages each. After an error the completed transactions stay, and the outcome of the last one is unknown. A further
/// call continues after them, except for [`replay`](Self::replay).
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

    /// Makes dead letters pending again with no attempts used, and lifts the halt of their aggregates. Returns the
    /// number of dead letters retried. If later messages of an aggregate were published meanwhile (policy continue),
    /// the retried ones come after those.
    fn retry(&self, selection: &Selection) -> impl Future<Output = Result<u64, StoreError>> + Send;

    /// Lets aggregates go on without the dead letters that halt them. The messages stay dead letters and can still be
    /// retried. Returns the number of aggregates that go on: a dead letter that halts nothing is not counted, so a
    /// repetition counts nothing.
    fn skip(&self, selection: &Selection) -> impl Future<Output = Result<u64, StoreError>> + Send;

    /// Records copies of published messages or dead letters, to be published behind everything recorded so far. A copy
    /// has a new message id, so that the broker accepts it, and keeps event id, sequence and time, so that consumers
    /// recognise it. Returns the number of copies. A logged message counts as published once the stored position of the
    /// log has passed it.
    ///
    /// Not idempotent: after an error, [`StoredMessage::event_id`] shows which messages were copied already. As an
    /// [operation](super::OutboxAudit::advance) it is.
    fn replay(&self, selection: &Selection) -> impl Future<Output = Result<u64, StoreError>> + Send;

    /// Lists at most `limit` blocked aggregates: first the halted ones, then the others by the end of their block.
    fn blocked(
        &self,
        limit: NonZeroU32,
    ) -> impl Future<Output = Result<Vec<BlockedAggregate>, StoreError>> + Send;

    /// Ends the block of an aggregate now instead of waiting out the back-off. A delayed message keeps its time.
    /// Returns false if the aggregate is not blocked, or if it is halted.
    fn resume(&self, aggregate: &Aggregate) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Deletes all that the outbox holds of these aggregates: published messages, dead letters that halt nothing, the
    /// deduplication keys of both, and the last sequence. For the erasure of personal data. One transaction, which reads
    /// all messages of the outbox once. At most 1,000 aggregates at a time.
    ///
    /// An aggregate is left as it is while one of its messages is pending or waiting, or while it is halted: wait, retry
    /// or skip first. Deduplication keys whose message was deleted earlier run out by themselves.
    ///
    /// # Price
    ///
    /// If a forgotten aggregate records again, its numbers begin at 1 again. **A consumer with strategy `sequence` that
    /// has handled more takes them for handled, and skips them without a word**, until it has forgotten the aggregate
    /// too. So forget what does not come back. Other strategies recognise events by their ids. In the strong mode of
    /// JetStream, each message is searched for on its subject until the numbers are higher than before. What was
    /// published stays on the stream, and in the consumers' tables.
    fn forget(&self, aggregates: &[Aggregate]) -> impl Future<Output = Result<Forgotten, StoreError>> + Send;

    /// Forgets the last sequence of aggregates of one type that have recorded nothing for at least `idle_for`, and that
    /// have no pending or waiting message and no dead letter. Published messages that are still kept stay. Returns the
    /// number of aggregates. Otherwise the outbox keeps a small row per aggregate for ever.
    ///
    /// For types whose aggregates end, such as orders; the price is that of [`forget`](Self::forget). Choose a time
    /// after which none of them comes back, longer than published messages are kept and consumers lag behind. Takes
    /// 1,000 aggregates per transaction; after an error, call again.
    fn forget_idle(
        &self,
        aggregate_type: &str,
        idle_for: Duration,
    ) -> impl Future<Output = Result<u64, StoreError>> + Send;

    /// Pauses publishing: see [`Pause`](super::Pause) for what that means. A pause of the same scope is replaced, so its end can be moved. One statement: it took
    /// effect or it did not. The aggregate type need not have recorded anything yet.
    fn pause(&self, request: &PauseRequest) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Ends the pause of this aggregate type, or with `None` that of all messages. Returns false if none stands. What it held is released by
    /// [`OutboxStore::finish_pauses`], which relays call with their next renewal if the caller does not. Another pause whose scope covers the same messages
    /// goes on.
    fn unpause(&self, aggregate_type: Option<&str>) -> impl Future<Output = Result<bool, StoreError>> + Send;

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
