//! Reads single facts of an outbox, for finding out why a message does not arrive.
//!
//! Invariant: takes no locks and works with read-only rights.

use std::future::Future;
use std::num::NonZeroU32;
use std::time::Duration;

use time::OffsetDateTime;

use super::{BlockedAggregate, ExpiredRelay, OutboxAdmin, OwnerId, RowFault, StoreError, StoredMessage};
use crate::message::{Aggregate, Message, MessageId};

/// Reads single facts, each from its own snapshot.
pub trait OutboxReader: OutboxAdmin {
    /// Reads a message with its payload, if stored.
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

    /// Searches published and logged messages, newest first, within a bounded number of reads.
    fn search_published(
        &self,
        search: &PublishedSearch,
    ) -> impl Future<Output = Result<PublishedFound, StoreError>> + Send;

    /// Reads the head row of an aggregate; `None` without sequenced events.
    fn head(
        &self,
        aggregate: &Aggregate,
    ) -> impl Future<Output = Result<Option<AggregateHead>, StoreError>> + Send;

    /// Reads the block of an aggregate, if any.
    fn block(
        &self,
        aggregate: &Aggregate,
    ) -> impl Future<Output = Result<Option<BlockedAggregate>, StoreError>> + Send;

    /// Lists relays with expired announcements, by id, until any relay announces itself.
    fn expired_relays(&self) -> impl Future<Output = Result<Vec<ExpiredRelay>, StoreError>> + Send;

    /// Lists partitions with a lease row, in order.
    fn partitions(&self) -> impl Future<Output = Result<Vec<PartitionOwner>, StoreError>> + Send;
}

/// A message with all its stored data.
#[derive(Debug, Clone, PartialEq)]
pub struct FoundMessage {
    /// The message as listed.
    pub stored: StoredMessage,
    /// Time until it may be published; if unsequenced, including its back-off.
    pub delayed_for: Option<Duration>,
    /// The message, or why it cannot be published.
    pub message: Result<Message, RowFault>,
}

/// The head row of an aggregate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AggregateHead {
    /// Its last sequence.
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
    /// database. Cleared by the next acquisition.
    pub last_owner: Option<OwnerId>,
    /// Time until the lease expires; zero without an owner.
    pub expires_in: Duration,
    /// The store's clock was set back: the lease ends later than
    /// [`LEASE_TTL_MAX`](super::LEASE_TTL_MAX) from now and counts as expired.
    pub is_ahead: bool,
}

/// Criteria of a search.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublishedSearch {
    /// Only messages of this aggregate.
    pub aggregate: Option<Aggregate>,
    /// Ids created at this time or later, by the writers' clocks (for a copy: its replay). Ids
    /// without time always match.
    pub from: Option<OffsetDateTime>,
    /// Ids created before this time.
    pub until: Option<OffsetDateTime>,
    /// Maximum number of messages to read.
    pub looked_at_max: NonZeroU32,
    /// Maximum number of messages to return.
    pub limit: NonZeroU32,
}

/// The result of a search.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PublishedFound {
    /// Matching messages, highest id first.
    pub messages: Vec<FoundPublished>,
    /// If `looked_at_max` was reached: messages with ids of this millisecond or earlier may not
    /// have been read.
    pub looked_from: Option<OffsetDateTime>,
}

/// A published message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundPublished {
    /// The message as listed.
    pub stored: StoredMessage,
    /// The id of the causing event or request, if readable.
    pub causation_id: Option<String>,
}
