//! Single facts of the in-memory outbox.

use std::num::NonZeroU32;

use outbox_core::message::{Aggregate, MessageId};
use outbox_core::store::{
    AggregateHead, BlockedAggregate, ExpiredRelay, FoundMessage, OutboxReader, PartitionOwner,
    PublishedFound, PublishedSearch, StoreError, StoredMessage,
};
use time::OffsetDateTime;

use super::MemoryStore;

impl OutboxReader for MemoryStore {
    async fn find(&self, id: MessageId) -> Result<Option<FoundMessage>, StoreError> {
        self.call("find a message", |state| state.find(id))
    }

    async fn recorded_between(
        &self,
        recorded_from: OffsetDateTime,
        recorded_until: OffsetDateTime,
        after: Option<MessageId>,
        limit: NonZeroU32,
    ) -> Result<Vec<StoredMessage>, StoreError> {
        self.call("read recorded messages", |state| {
            state.recorded_between((recorded_from, recorded_until), after, limit)
        })
    }

    async fn search_published(&self, search: &PublishedSearch) -> Result<PublishedFound, StoreError> {
        self.call("search published messages", |state| {
            state.search_published(search)
        })
    }

    async fn head(&self, aggregate: &Aggregate) -> Result<Option<AggregateHead>, StoreError> {
        self.call("read a head row", |state| state.head(aggregate))
    }

    async fn block(&self, aggregate: &Aggregate) -> Result<Option<BlockedAggregate>, StoreError> {
        self.call("read a block", |state| state.block_of(aggregate))
    }

    async fn expired_relays(&self) -> Result<Vec<ExpiredRelay>, StoreError> {
        self.call("list relays", |state| state.leases.expired_relays())
    }

    async fn partitions(&self) -> Result<Vec<PartitionOwner>, StoreError> {
        self.call("list partitions", |state| state.leases.partitions())
    }
}
