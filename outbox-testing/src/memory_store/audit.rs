//! Operations of an outbox in memory.

use std::num::NonZeroU32;

use outbox_core::message::Aggregate;
use outbox_core::store::{
    Forgotten, Operation, OperationFilter, OperationId, OperationMessages, OutboxAudit, PauseRequest,
    StoreError,
};

use super::MemoryStore;

impl MemoryStore {
    /// Lets an operation stand at another row id than it does. For stores that take messages twice on purpose. Not public API: it may change in any release.
    #[doc(hidden)]
    pub fn move_operation(&self, id: OperationId, position: i64) {
        self.lock().move_operation(id, position);
    }
}

impl OutboxAudit for MemoryStore {
    async fn advance(&self, operation: &Operation, at_most: NonZeroU32) -> Result<Operation, StoreError> {
        let advanced = self.call("advance an operation", |state| state.advance(operation, at_most));
        outbox_core::wake::notify();
        advanced.flatten()
    }

    async fn resume_as(&self, aggregate: &Aggregate, operation: &Operation) -> Result<bool, StoreError> {
        let resumed = self.call("resume an aggregate", |state| {
            let resumed = state.resume(aggregate);
            if resumed {
                state.note(operation, 1);
            }
            resumed
        });
        outbox_core::wake::notify();
        resumed
    }

    async fn forget_as(
        &self,
        aggregates: &[Aggregate],
        operation: &Operation,
    ) -> Result<Forgotten, StoreError> {
        self.call("forget aggregates", |state| {
            let forgotten = state.forget(aggregates);
            if forgotten.left.len() < aggregates.len() {
                state.note(operation, forgotten.messages);
            }
            forgotten
        })
    }

    async fn pause_as(&self, request: &PauseRequest, operation: &Operation) -> Result<bool, StoreError> {
        self.call("pause publishing", |state| {
            let is_new = state.operation(operation.id).is_none();
            if is_new {
                state.pause(request);
                state.note(operation, 1);
            }
            is_new
        })
    }

    async fn unpause_as(
        &self,
        aggregate_type: Option<&str>,
        operation: &Operation,
    ) -> Result<bool, StoreError> {
        self.call("end a pause", |state| {
            let ended = state.operation(operation.id).is_none() && state.unpause(aggregate_type);
            if ended {
                state.note(operation, 1);
            }
            ended
        })
    }

    async fn write_down(&self, operation: &Operation) -> Result<(), StoreError> {
        self.call("write an operation down", |state| state.write_down(operation))
    }

    async fn finish(&self, id: OperationId, changed: u64) -> Result<(), StoreError> {
        self.call("finish an operation", |state| state.finish(id, changed))
    }

    async fn operations(
        &self,
        filter: &OperationFilter,
        limit: NonZeroU32,
    ) -> Result<Vec<Operation>, StoreError> {
        self.call("list operations", |state| state.operations(filter, limit))
    }

    async fn operation(&self, id: OperationId) -> Result<Option<Operation>, StoreError> {
        self.call("read an operation", |state| state.operation(id))
    }

    async fn messages_of(&self, id: OperationId) -> Result<OperationMessages, StoreError> {
        self.call("read the messages of an operation", |state| state.messages_of(id))
    }
}
