//! Reads single facts, to diagnose missing messages.
//!
//! Invariant: a read takes no locks and works with read-only privileges.

use std::future::Future;
use std::num::NonZeroU32;
use std::time::Duration;

use time::OffsetDateTime;

use super::{BlockedAggregate, ExpiredRelay, OutboxAdmin, OwnerId, RowFault, StoreError, StoredMessage};
use crate::message::{Aggregate, Message, MessageId};

/// Reads each fact from its own snapshot.
pub trait OutboxReader: OutboxAdmin {
    /// Reads a message with its payload.
    fn find(&self, id: MessageId) -> impl Future<Output = Result<Option<FoundMessage>, StoreError>> + Send;

    /// Reads at most `limit` messages of any status without payloads, in id order, with ids above
    /// `after`, recorded from `recorded_from` (inclusive) to `recorded_until` (exclusive). A page
    /// below `limit` is the last. Copies of a replay have the recording time of their original.
    /// Copies with ids more than a day outside the time span are left out.
    fn recorded_between(
        &self,
        recorded_from: OffsetDateTime,
        recorded_until: OffsetDateTime,
        after: Option<MessageId>,
        limit: NonZeroU32,
    ) -> impl Future<Output = Result<Vec<StoredMessage>, StoreError>> + Send;

    /// Searches published and logged messages, newest first, within the bounds of `search`.
    fn search_published(
        &self,
        search: &PublishedSearch,
    ) -> impl Future<Output = Result<PublishedFound, StoreError>> + Send;

    /// Reads an aggregate's head row; `None` if the aggregate has no sequenced events.
    fn head(
        &self,
        aggregate: &Aggregate,
    ) -> impl Future<Output = Result<Option<AggregateHead>, StoreError>> + Send;

    /// Reads an aggregate's block.
    fn block(
        &self,
        aggregate: &Aggregate,
    ) -> impl Future<Output = Result<Option<BlockedAggregate>, StoreError>> + Send;

    /// Lists relays with expired announcements, by id. The next announcement of any relay removes
    /// them.
    fn expired_relays(&self) -> impl Future<Output = Result<Vec<ExpiredRelay>, StoreError>> + Send;

    /// Lists partitions with a lease row, in order.
    fn partitions(&self) -> impl Future<Output = Result<Vec<PartitionOwner>, StoreError>> + Send;
}

/// All stored data.
#[derive(Debug, Clone, PartialEq)]
pub struct FoundMessage {
    /// The listed message.
    pub stored: StoredMessage,
    /// Time until the message is due. If unsequenced, the time includes its back-off.
    pub delayed_for: Option<Duration>,
    /// The message, or its fault.
    pub message: Result<Message, RowFault>,
}

/// An aggregate's head row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AggregateHead {
    /// Last sequence.
    pub last_sequence: u64,
    /// Last recording time.
    pub recorded_at: OffsetDateTime,
}

/// A partition's owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartitionOwner {
    /// Partition in `0..PARTITIONS`.
    pub partition: u16,
    /// Number of acquisitions.
    pub epoch: i64,
    /// Live lease's owner.
    pub owner: Option<OwnerId>,
    /// The relay whose lease expired without being released: crashed, suspended, or cut off from
    /// the database. Cleared when acquired.
    pub last_owner: Option<OwnerId>,
    /// Lease time left; zero without an owner.
    pub expires_in: Duration,
    /// Whether the store's clock was set back: the lease ends more than
    /// [`LEASE_TTL_MAX`](super::LEASE_TTL_MAX) from now and counts as expired.
    pub is_ahead: bool,
}

/// Search criteria.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublishedSearch {
    /// The messages' aggregate.
    pub aggregate: Option<Aggregate>,
    /// Earliest creation time of ids, by the writers' clocks; for a copy, the time of its replay.
    /// Ids without time always match.
    pub from: Option<OffsetDateTime>,
    /// Exclusive creation end.
    pub until: Option<OffsetDateTime>,
    /// Maximum messages read.
    pub looked_at_max: NonZeroU32,
    /// Maximum results.
    pub limit: NonZeroU32,
}

/// Search result.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PublishedFound {
    /// Messages, newest first.
    pub messages: Vec<FoundPublished>,
    /// Set if `looked_at_max` was reached: messages with ids of this millisecond or earlier may be
    /// unread.
    pub looked_from: Option<OffsetDateTime>,
}

/// A published message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundPublished {
    /// The listed message.
    pub stored: StoredMessage,
    /// The causing event or request, if readable.
    pub causation_id: Option<String>,
}
