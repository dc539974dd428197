//! Mistakes in the operations of operators and in the purge.

use super::{M, WrongStore, forward};
use crate::store_types::*;
use crate::{StoredRow, store_methods};

impl WrongStore {
    /// Remembers the selected messages that halt their aggregates.
    async fn remember(&self, selection: &Selection) -> Result<(), StoreError> {
        let listed = self.inner.list(selection, NonZeroU32::MAX).await?;
        let mut memory = self.memory();
        for message in listed.into_iter().filter(|message| message.halts) {
            memory.retried.insert(message.id);
            memory.stuck.insert(message.aggregate);
        }
        Ok(())
    }

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
    store_methods!(self, forward; unpause);

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

    async fn retry(&self, selection: &Selection) -> Result<u64, StoreError> {
        self.remember(selection).await?;
        match self.mistake {
            M::RetryDoesNothing => return Ok(1),
            M::RetriesEverything => return self.inner.retry(&Selection::all()).await,
            M::RetriesAnything => return Ok(self.inner.retry(selection).await?.max(1)),
            _ => {}
        }
        let retried = self.inner.retry(selection).await?;
        if self.mistake == M::RetryEndsBackoff {
            for blocked in self.inner.blocked(NonZeroU32::MAX).await? {
                self.inner.resume(&blocked.aggregate).await?;
            }
        }
        Ok(retried)
    }

    async fn skip(&self, selection: &Selection) -> Result<u64, StoreError> {
        self.remember(selection).await?;
        match self.mistake {
            M::SkipDoesNothing => Ok(1),
            M::SkipsAnything => Ok(self.inner.skip(selection).await?.max(1)),
            _ => self.inner.skip(selection).await,
        }
    }

    async fn replay(&self, selection: &Selection) -> Result<u64, StoreError> {
        match self.mistake {
            M::ReplaysEverything => self.inner.replay(&Selection::all()).await,
            _ => self.inner.replay(selection).await,
        }
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

    async fn resume(&self, aggregate: &Aggregate) -> Result<bool, StoreError> {
        match self.mistake {
            M::ResumeDoesNothing => return Ok(true),
            M::ResumeEndsHalts => {
                let halting = Selection::dead_letters().aggregate(aggregate);
                if self.inner.skip(&halting).await? > 0 {
                    return Ok(true);
                }
            }
            _ => {}
        }
        self.inner.resume(aggregate).await
    }

    async fn forget(&self, aggregates: &[Aggregate]) -> Result<Forgotten, StoreError> {
        match self.mistake {
            M::ForgetsUnpublished => {
                for aggregate in aggregates {
                    let rows = self.find(|row| row.aggregate() == aggregate);
                    rows.iter().for_each(|row| self.inner.discard(row.row_id));
                }
                self.inner.forget(aggregates).await
            }
            M::ForgetKeepsKeys => {
                let mut forgotten = Forgotten::default();
                for aggregate in aggregates {
                    let rows = self.find(|row| row.aggregate() == aggregate);
                    let is_settled = |row: &StoredRow| {
                        matches!(row.status, MessageStatus::Published | MessageStatus::Dead)
                    };
                    if rows.iter().all(is_settled) {
                        rows.iter().for_each(|row| self.inner.discard(row.row_id));
                        forgotten.messages += rows.len() as u64;
                    }
                }
                forgotten.left = self.inner.forget(aggregates).await?.left;
                Ok(forgotten)
            }
            _ => self.inner.forget(aggregates).await,
        }
    }

    async fn forget_idle(&self, aggregate_type: &str, idle_for: Duration) -> Result<u64, StoreError> {
        let idle_for = match self.mistake {
            M::ForgetsBusyAggregates => Duration::ZERO,
            _ => idle_for,
        };
        self.inner.forget_idle(aggregate_type, idle_for).await
    }

    async fn pause(&self, request: &PauseRequest) -> Result<(), StoreError> {
        self.pause_wrongly(request).await
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
