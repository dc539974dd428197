//! Queries single facts that explain why a message does not arrive. Locks and writes nothing.

use std::num::NonZeroU32;

use outbox_core::{
    Aggregate, AggregateHead, BlockedAggregate, ExpiredRelay, FoundMessage, MessageId, OutboxReader,
    PartitionOwner, PublishedFound, PublishedSearch, StoreError, StoredMessage,
};
use time::OffsetDateTime;

use super::{SqlStore, block, lease, message, relay, run};

impl OutboxReader for SqlStore {
    async fn find(&self, id: MessageId) -> Result<Option<FoundMessage>, StoreError> {
        self.call(move |db| async move { message::find(&db, id).await })
            .await
    }

    async fn recorded_between(
        &self,
        recorded_from: OffsetDateTime,
        recorded_until: OffsetDateTime,
        after: Option<MessageId>,
        limit: NonZeroU32,
    ) -> Result<Vec<StoredMessage>, StoreError> {
        let recorded = (recorded_from, recorded_until);
        run!(self, "recorded messages could not be read" =>
            |db| message::recorded_between(&db, recorded, after, limit))
    }

    async fn search_published(&self, search: &PublishedSearch) -> Result<PublishedFound, StoreError> {
        let search = search.clone();
        run!(self, "published messages could not be searched" =>
            |db| message::search_published(&db, &search))
    }

    async fn head(&self, aggregate: &Aggregate) -> Result<Option<AggregateHead>, StoreError> {
        let aggregate = aggregate.clone();
        run!(self, "the head row of the aggregate could not be read" => |db| message::head(&db, &aggregate))
    }

    async fn block(&self, aggregate: &Aggregate) -> Result<Option<BlockedAggregate>, StoreError> {
        let aggregate = aggregate.clone();
        run!(self, "the block of the aggregate could not be read" => |db| block::of(&db, &aggregate))
    }

    async fn expired_relays(&self) -> Result<Vec<ExpiredRelay>, StoreError> {
        run!(self, "relays could not be listed" => |db| relay::expired(&db))
    }

    async fn partitions(&self) -> Result<Vec<PartitionOwner>, StoreError> {
        run!(self, "partitions could not be listed" => |db| lease::owners(&db))
    }
}
