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

/// Messages per call of the store. Each call may scan the whole table, so the step is large.
const STEP: NonZeroU32 = NonZeroU32::new(1_000_000).unwrap();

/// Result of a change.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Applied {
    /// The change.
    pub change: Change,
    /// Number of messages changed, copied or deleted.
    pub messages: u64,
    /// The recorded operation; `None` if nothing changed.
    #[serde(serialize_with = "serial::text_if_any")]
    pub operation: Option<OperationId>,
}

/// Runs an operation of [`Change::operation`] until nothing is left, or continues an interrupted
/// one. Each transaction changes at most 1,000 messages and updates the operation.
///
/// # Errors
///
/// [`StoreError`]. A second call with the same operation continues; no message is changed twice.
///
/// # Cancellation
///
/// Same as after an error.
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

/// Forgets aggregates and records the operation in one transaction. Returns the id of the
/// operation, or `None` if nothing was forgotten.
///
/// # Errors
///
/// [`StoreError`]. After a crash, either all aggregates are forgotten and the operation is
/// recorded, or nothing has changed.
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

/// Ends the back-off of a blocked aggregate now and records the operation in one transaction.
/// Returns the id of the operation, or `None` if the aggregate is not blocked or is halted.
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
