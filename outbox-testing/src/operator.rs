//! Operator changes in one call each.

use std::num::NonZeroU32;

use outbox_core::message::Aggregate;
use outbox_core::store::{
    Forgotten, Intent, Operation, OperationKind, OperationScope, OutboxAudit, PauseRequest, Selection,
    StoreError,
};

fn operation(kind: OperationKind, scope: OperationScope) -> Operation {
    Operation::new(kind, scope, Intent::of("operator"))
}

async fn carry_out<S: OutboxAudit + ?Sized>(
    store: &S,
    kind: OperationKind,
    selection: &Selection,
) -> Result<u64, StoreError> {
    let new = operation(kind, OperationScope::messages(selection.clone()));
    Ok(store.advance(&new, NonZeroU32::MAX).await?.changed)
}

/// Runs each change of [`OutboxAudit`] in one call, as an operation with a fresh id.
pub trait Operator: OutboxAudit {
    /// Retries dead letters, as [`OperationKind::Retry`]. Returns their number.
    fn retry(&self, selection: &Selection) -> impl Future<Output = Result<u64, StoreError>> + Send {
        carry_out(self, OperationKind::Retry, selection)
    }

    /// Skips dead letters, as [`OperationKind::Skip`]. Returns the number of ended halts.
    fn skip(&self, selection: &Selection) -> impl Future<Output = Result<u64, StoreError>> + Send {
        carry_out(self, OperationKind::Skip, selection)
    }

    /// Copies messages, as [`OperationKind::Replay`]. Returns the number of copies.
    fn replay(&self, selection: &Selection) -> impl Future<Output = Result<u64, StoreError>> + Send {
        carry_out(self, OperationKind::Replay, selection)
    }

    /// Ends the block of an aggregate: [`OutboxAudit::resume_as`].
    fn resume(&self, aggregate: &Aggregate) -> impl Future<Output = Result<bool, StoreError>> + Send {
        async {
            let scope = OperationScope::aggregates(std::slice::from_ref(aggregate));
            self.resume_as(aggregate, &operation(OperationKind::Resume, scope))
                .await
        }
    }

    /// Forgets aggregates: [`OutboxAudit::forget_as`].
    fn forget(&self, aggregates: &[Aggregate]) -> impl Future<Output = Result<Forgotten, StoreError>> + Send {
        async {
            let scope = OperationScope::aggregates(aggregates);
            self.forget_as(aggregates, &operation(OperationKind::Forget, scope))
                .await
        }
    }

    /// Pauses publishing: [`OutboxAudit::pause_as`].
    fn pause(&self, request: &PauseRequest) -> impl Future<Output = Result<bool, StoreError>> + Send {
        async {
            let scope = OperationScope::names(&request.aggregate_type);
            self.pause_as(request, &operation(OperationKind::Pause, scope))
                .await
        }
    }

    /// Ends a pause: [`OutboxAudit::unpause_as`].
    fn unpause(&self, aggregate_type: Option<&str>) -> impl Future<Output = Result<bool, StoreError>> + Send {
        async move {
            let scope = OperationScope::names(aggregate_type);
            self.unpause_as(aggregate_type, &operation(OperationKind::Unpause, scope))
                .await
        }
    }
}

impl<S: OutboxAudit + ?Sized> Operator for S {}
