//! Mistakes in lists of messages and in the purge.

use super::{M, WrongStore};
use outbox_testing::StoredRow;
use outbox_testing::store_types::*;

impl WrongStore {
    pub(super) async fn purge_wrongly(&self, mut request: PurgeRequest) -> Result<Purged, StoreError> {
        if self.mistake == M::PurgeIgnoresAge {
            request.older_than = Some(Duration::ZERO);
        }
        if self.mistake == M::PurgeKeepsKeys {
            request.keys_older_than = Duration::MAX;
        }
        let mut purged = self.inner.purge(request).await?;
        match self.mistake {
            M::PurgesByRecording => {
                let bound = self.inner.now() - request.older_than.unwrap_or(Duration::MAX);
                let is_old = |row: &StoredRow| row.message.created_at < bound;
                let old = self.find(|row| row.status == MessageStatus::Published && is_old(row));
                purged.deleted += old.len() as u64;
            }
            M::PurgeNeverEnds if purged.next.is_none() => purged.next = request.after,
            _ => {}
        }
        Ok(purged)
    }
}

impl OutboxAdmin for WrongStore {
    async fn list(&self, selection: &Selection, limit: NonZeroU32) -> Result<Vec<StoredMessage>, StoreError> {
        match self.mistake {
            M::ListsBackwards => {
                let all = self.inner.list(selection, NonZeroU32::MAX).await?;
                Ok(all.into_iter().rev().take(limit.get() as usize).collect())
            }
            M::IgnoresEventType => {
                let mut selection = selection.clone();
                selection.event_type = None;
                self.inner.list(&selection, limit).await
            }
            _ => self.inner.list(selection, limit).await,
        }
    }

    async fn page(
        &self,
        selection: &Selection,
        from: PageFrom,
        limit: NonZeroU32,
    ) -> Result<Vec<StoredMessage>, StoreError> {
        let mut rows = self.inner.page(selection, from, NonZeroU32::MAX).await?;
        if self.mistake == M::PagesOldestFirst {
            rows.sort_by_key(|row| row.row_id);
        }
        rows.truncate(limit.get() as usize);
        Ok(rows)
    }

    async fn blocked(&self, limit: NonZeroU32) -> Result<Vec<BlockedAggregate>, StoreError> {
        let mut blocked = self.inner.blocked(limit).await?;
        match self.mistake {
            M::ListsBlockedByName => blocked.sort_by(|a, b| a.aggregate.cmp(&b.aggregate)),
            M::SkipKeepsBlock => {
                let left = self.memory().stuck.clone().into_iter();
                blocked.extend(left.map(|aggregate| BlockedAggregate {
                    aggregate,
                    halted_by: None,
                    blocked_for: Some(Duration::ZERO),
                }));
            }
            _ => {}
        }
        Ok(blocked)
    }

    async fn forget_idle(&self, aggregate_type: &str, idle_for: Duration) -> Result<u64, StoreError> {
        let idle_for = match self.mistake {
            M::ForgetsBusyAggregates => Duration::ZERO,
            _ => idle_for,
        };
        self.inner.forget_idle(aggregate_type, idle_for).await
    }

    async fn published(
        &self,
        recorded_from: OffsetDateTime,
        recorded_until: OffsetDateTime,
        after: Option<MessageId>,
        limit: NonZeroU32,
    ) -> Result<Vec<Message>, StoreError> {
        let after = after.filter(|_| self.mistake != M::RepeatsPages);
        self.inner
            .published(recorded_from, recorded_until, after, limit)
            .await
    }
}
