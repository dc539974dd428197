//! Reads single facts, to diagnose missing messages.
//!
//! Invariant: a read takes no locks and works with read-only privileges.

use std::future::Future;
use std::num::NonZeroU32;
use std::time::Duration;

use time::OffsetDateTime;

use super::{BlockedAggregate, ExpiredRelay, OutboxAdmin, OwnerId, RowFault, StoreError, StoredMessage};
use crate::message::{Aggregate, Message, MessageId};

/// Reads single facts. Each method reads its own snapshot.
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

/// A message with all stored data.
#[derive(Debug, Clone, PartialEq)]
pub struct FoundMessage {
    /// The message as listed.
    pub stored: StoredMessage,
    /// Time until the message is due. If unsequenced, the time includes its back-off.
    pub delayed_for: Option<Duration>,
    /// The message, or the fault of its row.
    pub message: Result<Message, RowFault>,
}

/// The outbox row of an aggregate with its last sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AggregateHead {
    /// The aggregate's last sequence.
    pub last_sequence: u64,
    /// Time of the aggregate's last recording.
    pub recorded_at: OffsetDateTime,
}

/// A partition and its owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartitionOwner {
    /// Partition number in `0..PARTITIONS`.
    pub partition: u16,
    /// How often the partition was acquired.
    pub epoch: i64,
    /// The relay with a live lease.
    pub owner: Option<OwnerId>,
    /// The relay whose lease expired without being released: crashed, suspended, or cut off from
    /// the database. The next acquisition clears this.
    pub last_owner: Option<OwnerId>,
    /// Time until the lease expires; zero without an owner.
    pub expires_in: Duration,
    /// Whether the store's clock was set back: the lease ends more than
    /// [`LEASE_TTL_MAX`](super::LEASE_TTL_MAX) from now and counts as expired.
    pub is_ahead: bool,
}

/// Criteria of [`OutboxReader::search_published`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublishedSearch {
    /// The aggregate of the messages.
    pub aggregate: Option<Aggregate>,
    /// Earliest creation time of ids, by the writers' clocks; for a copy, the time of its replay.
    /// Ids without time always match.
    pub from: Option<OffsetDateTime>,
    /// End of the creation time, exclusive.
    pub until: Option<OffsetDateTime>,
    /// Maximum messages read.
    pub looked_at_max: NonZeroU32,
    /// Maximum results.
    pub limit: NonZeroU32,
}

/// Result of [`OutboxReader::search_published`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PublishedFound {
    /// Messages found, highest id first.
    pub messages: Vec<FoundPublished>,
    /// Set if `looked_at_max` was reached: messages with ids of this millisecond or earlier may be
    /// unread.
    pub looked_from: Option<OffsetDateTime>,
}

/// A published message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundPublished {
    /// The message as listed.
    pub stored: StoredMessage,
    /// The causing event or request, if readable.
    pub causation_id: Option<String>,
}
