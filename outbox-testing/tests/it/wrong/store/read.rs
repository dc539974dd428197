//! Mistakes in lookups.

use super::{M, WrongStore};
use outbox_testing::store_types::*;

impl OutboxReader for WrongStore {
    async fn find(&self, id: MessageId) -> Result<Option<FoundMessage>, StoreError> {
        let mut found = self.inner.find(id).await?;
        if let Some(found) = &mut found {
            match self.mistake {
                M::FindsNoPayload => {
                    if let Ok(message) = &mut found.message {
                        message.payload = Default::default();
                    }
                }
                M::FindsNoDelay => found.delayed_for = None,
                _ => {}
            }
        }
        Ok(found)
    }

    async fn recorded_between(
        &self,
        recorded_from: OffsetDateTime,
        recorded_until: OffsetDateTime,
        after: Option<MessageId>,
        limit: NonZeroU32,
    ) -> Result<Vec<StoredMessage>, StoreError> {
        let mut recorded = self
            .inner
            .recorded_between(recorded_from, recorded_until, after, limit)
            .await?;
        if self.mistake == M::LeavesOutUnpublished {
            recorded.retain(|message| message.status == MessageStatus::Published);
        }
        Ok(recorded)
    }

    async fn search_published(&self, search: &PublishedSearch) -> Result<PublishedFound, StoreError> {
        let mut search = search.clone();
        if self.mistake == M::SearchesWithoutBound {
            search.looked_at_max = NonZeroU32::MAX;
        }
        self.inner.search_published(&search).await
    }

    async fn head(&self, aggregate: &Aggregate) -> Result<Option<AggregateHead>, StoreError> {
        let mut head = self.inner.head(aggregate).await?;
        if let (Some(head), M::CountsHeadsShort) = (&mut head, self.mistake) {
            head.last_sequence -= 1;
        }
        Ok(head)
    }

    async fn block(&self, aggregate: &Aggregate) -> Result<Option<BlockedAggregate>, StoreError> {
        if self.mistake == M::FindsOtherBlocks {
            let mut blocked = self.inner.blocked(NonZeroU32::MIN).await?;
            return Ok(blocked.pop());
        }
        self.inner.block(aggregate).await
    }

    async fn expired_relays(&self) -> Result<Vec<ExpiredRelay>, StoreError> {
        if self.mistake == M::ListsNoExpiredRelays {
            return Ok(Vec::new());
        }
        self.inner.expired_relays().await
    }

    async fn partitions(&self) -> Result<Vec<PartitionOwner>, StoreError> {
        let mut partitions = self.inner.partitions().await?;
        match self.mistake {
            M::ListsFormerOwners => {
                for partition in partitions.iter_mut().filter(|partition| partition.epoch > 0) {
                    partition.owner = partition.owner.or_else(|| Some(OwnerId::fresh()));
                }
            }
            M::ForgetsFormerOwners => {
                for partition in &mut partitions {
                    partition.last_owner = None;
                }
            }
            _ => {}
        }
        Ok(partitions)
    }
}
