//! Mistakes in operations.

use super::{M, WrongStore, forward};
use crate::store_methods;
use crate::store_types::*;

impl WrongStore {
    /// The operation as it is to be advanced.
    async fn mistaken(&self, operation: &Operation) -> Result<Operation, StoreError> {
        let mut mistaken = operation.clone();
        match self.mistake {
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
}

impl OutboxAudit for WrongStore {
    store_methods!(self, forward; forget_as write_down operation);

    async fn advance(&self, operation: &Operation, at_most: NonZeroU32) -> Result<Operation, StoreError> {
        let mistaken = self.mistaken(operation).await?;
        let mut advanced = self.inner.advance(&mistaken, at_most).await?;
        if self.mistake == M::CountsForAll {
            let is_retried = |row: &crate::StoredRow| row.status != MessageStatus::Published;
            advanced.changed = self.find(is_retried).len() as u64;
        }
        Ok(advanced)
    }

    async fn resume_as(&self, aggregate: &Aggregate, operation: &Operation) -> Result<bool, StoreError> {
        if self.mistake == M::WritesDownNothing {
            self.inner.write_down(operation).await?;
        }
        self.inner.resume_as(aggregate, operation).await
    }

    async fn pause_as(&self, request: &PauseRequest, operation: &Operation) -> Result<bool, StoreError> {
        match self.mistake {
            M::PausesWithoutAWord => self.inner.pause(request).await.map(|()| true),
            M::PausesOnceMore => {
                self.inner.pause_as(request, operation).await?;
                self.inner.pause(request).await.map(|()| true)
            }
            _ => self.inner.pause_as(request, operation).await,
        }
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
