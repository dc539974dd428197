//! Mistakes in operations.

use super::{M, WrongStore, forward};
use outbox_testing::store_types::*;
use outbox_testing::{Operator as _, StoredRow, store_methods};

impl WrongStore {
    async fn mistaken(&self, operation: &Operation) -> Result<Operation, StoreError> {
        let mut mistaken = operation.clone();
        match self.mistake {
            M::RetriesEverything if operation.kind == OperationKind::Retry => {
                mistaken.scope.selection = Selection::all();
            }
            M::ReplaysEverything if operation.kind == OperationKind::Replay => {
                mistaken.scope.selection = Selection::all();
            }
            M::WritesNothingDown => mistaken.id = OperationId::fresh(),
            M::BeginsAnew => self.inner.move_operation(operation.id, 0),
            M::IgnoresTheBound => mistaken.scope.first = None,
            M::CopiesCopies if operation.kind == OperationKind::Replay => {
                if let Some(begun) = self.inner.operation(operation.id).await? {
                    let copies = begun.scope.selection.after(begun.until.unwrap_or(i64::MAX));
                    self.inner.replay(&copies).await?;
                }
            }
            _ => {}
        }
        Ok(mistaken)
    }

    async fn remember(&self, selection: &Selection) -> Result<(), StoreError> {
        let listed = self.inner.list(selection, NonZeroU32::MAX).await?;
        let mut memory = self.memory();
        for message in listed.into_iter().filter(|message| message.halts) {
            memory.retried.insert(message.id);
            memory.stuck.insert(message.aggregate);
        }
        Ok(())
    }
}

impl OutboxAudit for WrongStore {
    store_methods!(self, forward; write_down operation);

    async fn advance(&self, operation: &Operation, at_most: NonZeroU32) -> Result<Operation, StoreError> {
        let kind = &operation.kind;
        if matches!(kind, OperationKind::Retry | OperationKind::Skip) {
            self.remember(&operation.scope.selection).await?;
        }
        let mut mistaken = self.mistaken(operation).await?;
        match (self.mistake, kind) {
            (M::RetryDoesNothing, OperationKind::Retry) | (M::SkipDoesNothing, OperationKind::Skip) => {
                mistaken.changed = 1;
                mistaken.finished_at = Some(self.inner.now());
                return Ok(mistaken);
            }
            _ => {}
        }
        let mut advanced = self.inner.advance(&mistaken, at_most).await?;
        match (self.mistake, kind) {
            (M::RetriesAnything, OperationKind::Retry) | (M::SkipsAnything, OperationKind::Skip) => {
                advanced.changed = advanced.changed.max(1);
            }
            (M::RetryEndsBackoff, OperationKind::Retry) => {
                for blocked in self.inner.blocked(NonZeroU32::MAX).await? {
                    self.inner.resume(&blocked.aggregate).await?;
                }
            }
            (M::CountsForAll, _) => {
                let is_retried = |row: &StoredRow| row.status != MessageStatus::Published;
                advanced.changed = self.find(is_retried).len() as u64;
            }
            _ => {}
        }
        Ok(advanced)
    }

    async fn resume_as(&self, aggregate: &Aggregate, operation: &Operation) -> Result<bool, StoreError> {
        match self.mistake {
            M::WritesDownNothing => self.inner.write_down(operation).await?,
            M::ResumeDoesNothing => return Ok(true),
            M::ResumeEndsHalts => {
                let halting = Selection::dead_letters().aggregate(aggregate);
                if self.inner.skip(&halting).await? > 0 {
                    return Ok(true);
                }
            }
            _ => {}
        }
        self.inner.resume_as(aggregate, operation).await
    }

    async fn forget_as(
        &self,
        aggregates: &[Aggregate],
        operation: &Operation,
    ) -> Result<Forgotten, StoreError> {
        let mut discarded = 0;
        for aggregate in aggregates {
            let rows = self.find(|row| row.aggregate() == aggregate);
            let is_settled =
                |row: &StoredRow| matches!(row.status, MessageStatus::Published | MessageStatus::Dead);
            let is_discarded = match self.mistake {
                M::ForgetsUnpublished => true,
                M::ForgetKeepsKeys => rows.iter().all(is_settled),
                _ => false,
            };
            if is_discarded {
                rows.iter().for_each(|row| self.inner.discard(row.row_id));
                discarded += rows.len() as u64;
            }
        }
        let mut forgotten = self.inner.forget_as(aggregates, operation).await?;
        if self.mistake == M::ForgetKeepsKeys {
            forgotten.messages = discarded;
        }
        Ok(forgotten)
    }

    async fn pause_as(&self, request: &PauseRequest, operation: &Operation) -> Result<bool, StoreError> {
        let mut request = request.clone();
        match self.mistake {
            M::FoldsPausedTypes => {
                request.aggregate_type = request.aggregate_type.map(|name| name.to_lowercase());
            }
            M::PausesForEver => request.lasts = None,
            M::PausesWithoutAWord => return self.inner.pause(&request).await,
            M::PausesOnceMore => {
                self.inner.pause_as(&request, operation).await?;
                return self.inner.pause(&request).await;
            }
            _ => {}
        }
        self.inner.pause_as(&request, operation).await
    }

    async fn unpause_as(
        &self,
        aggregate_type: Option<&str>,
        operation: &Operation,
    ) -> Result<bool, StoreError> {
        match self.mistake {
            M::PausesWithoutAWord => self.inner.unpause(aggregate_type).await,
            _ => self.inner.unpause_as(aggregate_type, operation).await,
        }
    }

    async fn finish(&self, id: OperationId, changed: u64) -> Result<(), StoreError> {
        if self.mistake == M::FinishDoesNothing {
            return Ok(());
        }
        self.inner.finish(id, changed).await
    }

    async fn operations(
        &self,
        filter: &OperationFilter,
        limit: NonZeroU32,
    ) -> Result<Vec<Operation>, StoreError> {
        let mut operations = self.inner.operations(filter, limit).await?;
        if self.mistake == M::ListsOldOperationsFirst {
            operations.reverse();
        }
        Ok(operations)
    }

    async fn messages_of(&self, id: OperationId) -> Result<OperationMessages, StoreError> {
        if self.mistake == M::NamesNoMessages {
            return Ok(OperationMessages::default());
        }
        self.inner.messages_of(id).await
    }
}
