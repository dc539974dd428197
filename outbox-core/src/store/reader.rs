//! Reads single facts, to diagnose missing messages.
//!
//! Invariant: takes no locks and works with read-only privileges.

use std::future::Future;
use std::num::NonZeroU32;
use std::time::Duration;

use time::OffsetDateTime;

use super::{BlockedAggregate, ExpiredRelay, OutboxAdmin, OwnerId, RowFault, StoreError, StoredMessage};
use crate::message::{Aggregate, Message, MessageId};

/// Each fact from its own snapshot.
pub trait OutboxReader: OutboxAdmin {
    /// Reads a message with its payload.
    fn find(&self, id: MessageId) -> impl Future<Output = Result<Option<FoundMessage>, StoreError>> + Send;

    /// Reads at most `limit` messages of any status without payloads, in id order, with ids above
    /// `after`, recorded from `recorded_from` (inclusive) to `recorded_until` (exclusive). A page
    /// below `limit` is the last. Copies have the recording time of their original; copies with ids
    /// more than a day outside the span are left out.
    fn recorded_between(
        &self,
        recorded_from: OffsetDateTime,
        recorded_until: OffsetDateTime,
        after: Option<MessageId>,
        limit: NonZeroU32,
    ) -> impl Future<Output = Result<Vec<StoredMessage>, StoreError>> + Send;

    /// Searches published and logged messages, newest first, with bounded reads.
    fn search_published(
        &self,
        search: &PublishedSearch,
    ) -> impl Future<Output = Result<PublishedFound, StoreError>> + Send;

    /// Reads an aggregate's head row; `None` without sequenced events.
    fn head(
        &self,
        aggregate: &Aggregate,
    ) -> impl Future<Output = Result<Option<AggregateHead>, StoreError>> + Send;

    /// Reads an aggregate's block.
    fn block(
        &self,
        aggregate: &Aggregate,
    ) -> impl Future<Output = Result<Option<BlockedAggregate>, StoreError>> + Send;

    /// Lists relays with expired announcements, by id, until any relay announces itself.
    fn expired_relays(&self) -> impl Future<Output = Result<Vec<ExpiredRelay>, StoreError>> + Send;

    /// Lists partitions with a lease row, in order.
    fn partitions(&self) -> impl Future<Output = Result<Vec<PartitionOwner>, StoreError>> + Send;
}

/// All stored data.
#[derive(Debug, Clone, PartialEq)]
pub struct FoundMessage {
    /// As listed.
    pub stored: StoredMessage,
    /// Time until due; if unsequenced, including its back-off.
    pub delayed_for: Option<Duration>,
    /// The message, or its fault.
    pub message: Result<Message, RowFault>,
}

/// An aggregate's head row.
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
    /// In `0..PARTITIONS`.
    pub partition: u16,
    /// Number of acquisitions.
    pub epoch: i64,
    /// With a live lease.
    pub owner: Option<OwnerId>,
    /// Has an expired, unreleased lease: crashed, suspended, or cut off from the database. Cleared
    /// by the next acquisition.
    pub last_owner: Option<OwnerId>,
    /// Zero without an owner.
    pub expires_in: Duration,
    /// The store's clock was set back: the lease ends more than
    /// [`LEASE_TTL_MAX`](super::LEASE_TTL_MAX) from now and counts as expired.
    pub is_ahead: bool,
}

/// Criteria of a search.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublishedSearch {
    /// Of this aggregate.
    pub aggregate: Option<Aggregate>,
    /// Earliest creation of ids, by the writers' clocks (for a copy: its replay). Ids without time
    /// always match.
    pub from: Option<OffsetDateTime>,
    /// End, exclusive.
    pub until: Option<OffsetDateTime>,
    /// Maximum messages read.
    pub looked_at_max: NonZeroU32,
    /// Maximum results.
    pub limit: NonZeroU32,
}

/// Result of a search.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PublishedFound {
    /// Highest id first.
    pub messages: Vec<FoundPublished>,
    /// If `looked_at_max` was reached: ids of this millisecond or earlier may be unread.
    pub looked_from: Option<OffsetDateTime>,
}

/// A published message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundPublished {
    /// As listed.
    pub stored: StoredMessage,
    /// The causing event or request, if readable.
    pub causation_id: Option<String>,
}
