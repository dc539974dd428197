//! Single facts of an outbox, for whoever asks why something does not arrive.
//!
//! Invariant: nothing here changes or locks anything, so it works beside relays and with rights to read only. Not here: lists of messages and of blocked
//! aggregates, which operators need before they decide, see [`OutboxAdmin`].

use std::future::Future;
use std::num::NonZeroU32;
use std::time::Duration;

use time::OffsetDateTime;

use super::{BlockedAggregate, ExpiredRelay, OutboxAdmin, OwnerId, RowFault, StoreError, StoredMessage};
use crate::message::{Aggregate, Message, MessageId};

/// Reads single facts of an outbox. Each call reads a snapshot of its own, so two facts may be of different moments.
pub trait OutboxReader: OutboxAdmin {
    /// Reads a message with its payload; `None` if the outbox does not hold it.
    fn find(&self, id: MessageId) -> impl Future<Output = Result<Option<FoundMessage>, StoreError>> + Send;

    /// Reads at most `limit` messages of any status that were recorded at `recorded_from` or later and before `recorded_until`, with ids larger than `after`,
    /// without their payloads. They come in the order of their ids, and a page that is not full is the last one. Copies have the time of recording of their
    /// original, and are left out if their ids are more than a day away from the span.
    fn recorded_between(
        &self,
        recorded_from: OffsetDateTime,
        recorded_until: OffsetDateTime,
        after: Option<MessageId>,
        limit: NonZeroU32,
    ) -> impl Future<Output = Result<Vec<StoredMessage>, StoreError>> + Send;

    /// Looks for published messages, logged ones included, among the last ones before a time, of which it reads a bounded number. Says from when on it has looked.
    fn search_published(
        &self,
        search: &PublishedSearch,
    ) -> impl Future<Output = Result<PublishedFound, StoreError>> + Send;

    /// Reads the head row of an aggregate; `None` if it has recorded nothing that asks for order, or was forgotten.
    fn head(
        &self,
        aggregate: &Aggregate,
    ) -> impl Future<Output = Result<Option<AggregateHead>, StoreError>> + Send;

    /// Reads the block of an aggregate; `None` if it has none.
    fn block(
        &self,
        aggregate: &Aggregate,
    ) -> impl Future<Output = Result<Option<BlockedAggregate>, StoreError>> + Send;

    /// Lists the relays whose announcements have expired and are still stored, in the order of their ids. The next relay that announces itself deletes them, so
    /// this tells who was last where no relay is left.
    fn expired_relays(&self) -> impl Future<Output = Result<Vec<ExpiredRelay>, StoreError>> + Send;

    /// Lists all partitions that have a lease row, in their order, with their owners.
    fn partitions(&self) -> impl Future<Output = Result<Vec<PartitionOwner>, StoreError>> + Send;
}

/// A message with everything that the outbox holds of it.
#[derive(Debug, Clone, PartialEq)]
pub struct FoundMessage {
    /// The message as lists show it.
    pub stored: StoredMessage,
    /// The time until the message may be published, if it is delayed; for an unsequenced message also the rest of its back-off.
    pub delayed_for: Option<Duration>,
    /// The message, or the reason why the row cannot be published.
    pub message: Result<Message, RowFault>,
}

/// The head row of an aggregate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AggregateHead {
    /// The number of its last message that asks for order.
    pub last_sequence: u64,
    /// The time at which it recorded last.
    pub recorded_at: OffsetDateTime,
}

/// A partition and its owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartitionOwner {
    /// The partition, in `0..PARTITIONS`.
    pub partition: u16,
    /// How often it was acquired.
    pub epoch: i64,
    /// The relay whose lease has not run out.
    pub owner: Option<OwnerId>,
    /// The relay whose lease has run out without being given back: it has died, stands still, or does not reach the database. `None` if the partition has an
    /// owner, was given back, or was never acquired. Whoever acquires the partition next takes the place of this trace.
    pub last_owner: Option<OwnerId>,
    /// The time until the lease runs out; zero if nobody owns the partition.
    pub expires_in: Duration,
    /// The lease ends later than [`LEASE_TTL_MAX`](super::LEASE_TTL_MAX) from now: the store's clock was set back. Such a lease counts as expired.
    pub is_ahead: bool,
}

/// What to look for among published messages, logged ones included.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublishedSearch {
    /// Only messages of this aggregate.
    pub aggregate: Option<Aggregate>,
    /// Only messages whose ids were made at this time or later, by the clocks of their writers. A
    /// copy has the time of its replay. A store with ids that name no time searches all messages.
    pub from: Option<OffsetDateTime>,
    /// Only messages whose ids were made before this time.
    pub until: Option<OffsetDateTime>,
    /// The most messages, of any status and of anybody, that are read for it.
    pub looked_at_max: NonZeroU32,
    /// The most that are returned.
    pub limit: NonZeroU32,
}

/// What was found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PublishedFound {
    /// The messages that match, the last id first.
    pub messages: Vec<FoundPublished>,
    /// Messages whose ids were made in this millisecond or before may not have been read, because `looked_at_max` was reached; `None` if all was read.
    pub looked_from: Option<OffsetDateTime>,
}

/// A published message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundPublished {
    /// The message as lists show it.
    pub stored: StoredMessage,
    /// The header that names the event because of which it was recorded; `None` also if the headers cannot be read.
    pub causation_id: Option<String>,
}
