//! Applies changes to an outbox.
//!
//! Invariant: a change and its [`Operation`] commit in one transaction. Access control is the
//! caller's task.

use std::num::NonZeroU32;

use outbox_core::{
    Aggregate, Forgotten, Intent, Operation, OperationId, OperationKind, OperationScope, OutboxAudit,
    StoreError,
};
use serde::Serialize;

use crate::change::Change;
use crate::serial;

/// Large, because each call may scan the whole table.
const STEP: NonZeroU32 = NonZeroU32::new(1_000_000).unwrap();

/// Result of a change.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Applied {
    /// The change.
    pub change: Change,
    /// Messages changed, copied or deleted.
    pub messages: u64,
    /// The operation; `None` if nothing changed.
    #[serde(serialize_with = "serial::text_if_any")]
    pub operation: Option<OperationId>,
}

/// Runs an operation of [`Change::operation`] to its end, or continues it. Commits at most 1,000
/// messages at a time, with the operation.
///
/// # Errors
///
/// [`StoreError`]. Call again with the same operation to continue; no message changes twice.
///
/// # Cancellation
///
/// As after an error.
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

/// Forgets aggregates and records the operation, in one transaction. Returns the operation id,
/// or `None` if nothing was forgotten.
///
/// # Errors
///
/// [`StoreError`].
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

/// Ends the back-off of an aggregate and records the operation, in one transaction. Returns the
/// operation id, or `None` if the aggregate is not blocked or is halted.
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
