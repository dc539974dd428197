//! Reads single facts of an outbox, for finding out why a message does not arrive.
//!
//! Invariant: takes no locks and works with read-only rights.

use std::future::Future;
use std::num::NonZeroU32;
use std::time::Duration;

use time::OffsetDateTime;

use super::{BlockedAggregate, ExpiredRelay, OutboxAdmin, OwnerId, RowFault, StoreError, StoredMessage};
use crate::message::{Aggregate, Message, MessageId};

/// Reads single facts of an outbox, each from its own snapshot.
pub trait OutboxReader: OutboxAdmin {
    /// Reads a message with its payload; `None` if it is not in the outbox.
    fn find(&self, id: MessageId) -> impl Future<Output = Result<Option<FoundMessage>, StoreError>> + Send;

    /// Reads at most `limit` messages of any status without payloads, in id order, with ids above
    /// `after`, recorded from `recorded_from` (inclusive) to `recorded_until` (exclusive). A page
    /// below `limit` is the last. Copies have the recording time of their original, and are left
    /// out if their ids are more than a day outside the span.
    fn recorded_between(
        &self,
        recorded_from: OffsetDateTime,
        recorded_until: OffsetDateTime,
        after: Option<MessageId>,
        limit: NonZeroU32,
    ) -> impl Future<Output = Result<Vec<StoredMessage>, StoreError>> + Send;

    /// Searches published messages, including logged ones, newest first, within a bounded number of
    /// reads.
    fn search_published(
        &self,
        search: &PublishedSearch,
    ) -> impl Future<Output = Result<PublishedFound, StoreError>> + Send;

    /// Reads the head row of an aggregate; `None` without sequenced events, or if forgotten.
    fn head(
        &self,
        aggregate: &Aggregate,
    ) -> impl Future<Output = Result<Option<AggregateHead>, StoreError>> + Send;

    /// Reads the block of an aggregate; `None` if it has none.
    fn block(
        &self,
        aggregate: &Aggregate,
    ) -> impl Future<Output = Result<Option<BlockedAggregate>, StoreError>> + Send;

    /// Lists relays with expired announcements, by id. The next announcement of any relay deletes
    /// them.
    fn expired_relays(&self) -> impl Future<Output = Result<Vec<ExpiredRelay>, StoreError>> + Send;

    /// Lists all partitions with a lease row, in order.
    fn partitions(&self) -> impl Future<Output = Result<Vec<PartitionOwner>, StoreError>> + Send;
}

/// A message with all its stored data.
#[derive(Debug, Clone, PartialEq)]
pub struct FoundMessage {
    /// The message as listed.
    pub stored: StoredMessage,
    /// Time until a delayed message may be published; if unsequenced, including the rest of its
    /// back-off.
    pub delayed_for: Option<Duration>,
    /// The message, or the reason why the row cannot be published.
    pub message: Result<Message, RowFault>,
}

/// The head row of an aggregate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AggregateHead {
    /// The sequence of its last sequenced message.
    pub last_sequence: u64,
    /// Time of its last recording.
    pub recorded_at: OffsetDateTime,
}

/// A partition and its owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartitionOwner {
    /// The partition, in `0..PARTITIONS`.
    pub partition: u16,
    /// Number of acquisitions.
    pub epoch: i64,
    /// The relay with a live lease.
    pub owner: Option<OwnerId>,
    /// The relay with an expired, unreleased lease: it crashed, is suspended, or cannot reach the
    /// database. `None` if the partition has an owner, was released, or was never acquired. The
    /// next acquisition overwrites it.
    pub last_owner: Option<OwnerId>,
    /// Time until the lease expires; zero without an owner.
    pub expires_in: Duration,
    /// The lease ends later than [`LEASE_TTL_MAX`](super::LEASE_TTL_MAX) from now: the store's
    /// clock was set back. Counts as expired.
    pub is_ahead: bool,
}

/// Criteria of a search among published messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublishedSearch {
    /// Only messages of this aggregate.
    pub aggregate: Option<Aggregate>,
    /// Only messages with ids created at this time or later, by the writers' clocks (for a copy:
    /// its replay). Without times in ids, all messages are searched.
    pub from: Option<OffsetDateTime>,
    /// Only messages with ids created before this time.
    pub until: Option<OffsetDateTime>,
    /// Maximum number of messages to read, of any status and aggregate.
    pub looked_at_max: NonZeroU32,
    /// Maximum number of messages to return.
    pub limit: NonZeroU32,
}

/// The result of a search.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PublishedFound {
    /// Matching messages, highest id first.
    pub messages: Vec<FoundPublished>,
    /// `looked_at_max` was reached: messages with ids of this millisecond or earlier may not have
    /// been read. `None` if all were read.
    pub looked_from: Option<OffsetDateTime>,
}

/// A published message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundPublished {
    /// The message as listed.
    pub stored: StoredMessage,
    /// The id of the causing event or request; `None` also if the headers are unreadable.
    pub causation_id: Option<String>,
}
