//! Changes as they are made: each with the operation that says who, what and why, in the same transaction.
//!
//! Invariant: nothing is changed without an operation, and no operation is written down without a change. Not here: who may do it.

use std::num::NonZeroU32;

use outbox_core::{
    Aggregate, Forgotten, Intent, Operation, OperationId, OperationKind, OperationScope, OutboxAudit,
    StoreError,
};
use serde::Serialize;

use crate::change::Change;
use crate::serial;

/// Messages of one call of the store. Each call may read the whole table once, so there are few of them.
const STEP: NonZeroU32 = NonZeroU32::new(1_000_000).unwrap();

/// What a change has done.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Applied {
    /// The change.
    pub change: Change,
    /// Messages that it has changed, copied or deleted.
    pub messages: u64,
    /// The operation; `None` if nothing was changed, so nothing was written down.
    #[serde(serialize_with = "serial::text_if_any")]
    pub operation: Option<OperationId>,
}

/// Begins an operation, which [`Change::operation`] makes, or goes on with it where it stands, until nothing is left. Takes its messages in transactions of at most
/// 1,000, each together with the operation.
///
/// # Errors
///
/// [`StoreError`]. Calling it again with the same operation goes on; no message is taken twice.
///
/// # Cancellation
///
/// As an error.
pub async fn carry_out(
    store: &impl OutboxAudit,
    change: Change,
    operation: &Operation,
) -> Result<Applied, StoreError> {
    let mut operation = operation.clone();
    while !operation.is_finished() {
        operation = store.advance(&operation, STEP).await?;
    }
    Ok(Applied {
        change,
        messages: operation.changed,
        operation: operation.started_at.map(|_| operation.id),
    })
}

/// Forgets aggregates in one transaction, together with the operation that says so. Returns its id if something was forgotten.
///
/// # Errors
///
/// [`StoreError`]. After a crash all of them are forgotten and the operation is there, or nothing has happened.
pub async fn apply_forget(
    store: &impl OutboxAudit,
    aggregates: &[Aggregate],
    intent: Intent,
) -> Result<(Forgotten, Option<OperationId>), StoreError> {
    let operation = Operation::new(
        OperationKind::Forget,
        OperationScope::aggregates(aggregates),
        intent,
    );
    let forgotten = store.forget_as(aggregates, &operation).await?;
    let is_written = forgotten.left.len() < aggregates.len();
    Ok((forgotten, is_written.then_some(operation.id)))
}

/// Ends the block of an aggregate now, unless it is not blocked, or halted. One transaction: it took effect and the operation says so, or neither. Returns the id of
/// the operation; `None` if there was no back-off to end.
///
/// # Errors
///
/// [`StoreError`].
pub async fn apply_resume(
    store: &impl OutboxAudit,
    aggregate: &Aggregate,
    intent: Intent,
) -> Result<Option<OperationId>, StoreError> {
    let scope = OperationScope::aggregates(std::slice::from_ref(aggregate));
    let operation = Operation::new(OperationKind::Resume, scope, intent);
    let resumed = store.resume_as(aggregate, &operation).await?;
    Ok(resumed.then_some(operation.id))
}
