//! Purges as operations of operators: what is deleted is counted in the same transactions.
//!
//! Invariants: as in `audit`, the operation's row is locked first, then messages. Only rows that were published before the operation's time are deleted; that set does not
//! grow, because that time is past. With daily tables the rows are deleted one by one, and no day is dropped: dropping one needs the owner of the table, and locks out
//! writers.

use outbox_core::{Operation, OperationId, SetupKind, SetupProblem};
use sea_orm::DbErr;
use uuid::Uuid;

use super::record::{Failed, claim, end, find};
use super::sql;
use crate::store::purge::{self, Looked, ROWS_MAX};
use crate::store::repeat_deadlocks;
use crate::store::session::Session;

/// Rows looked at per statement.
const LOOKED_AT: u32 = 1_000;

/// Deletes until `budget` messages were taken, or nothing is left.
pub(super) async fn advance(
    db: &Session,
    mut operation: Operation,
    mut budget: u64,
) -> Result<Operation, Failed> {
    let before = operation
        .scope
        .purges_before()
        .ok_or_else(|| no_purge(operation.id))?;
    let mut after = None;
    while budget > 0 && !operation.is_finished() {
        let Looked { mut old, next } = purge::look_before(db, before, after, LOOKED_AT).await?;
        let wanted = budget.min(operation.left().unwrap_or(u64::MAX));
        let is_cut = old.len() as u64 > wanted;
        old.truncate(usize::try_from(wanted).unwrap_or(usize::MAX));
        let mut was_moved = false;
        for ids in old.chunks(ROWS_MAX) {
            was_moved = !repeat_deadlocks!(take(db, &operation, ids))?;
            // A crash here leaves this batch deleted and counted; whoever goes on reads that from the row.
            operation = find(db, operation.id).await?.unwrap_or(operation);
            if was_moved {
                // Somebody else goes on with it too. The rest of these rows is theirs, or comes again.
                break;
            }
            budget -= ids.len() as u64;
        }
        match next {
            _ if was_moved || is_cut => {}
            Some(next) => after = Some(next),
            None => return end(db, operation).await,
        }
    }
    Ok(operation)
}

fn no_purge(id: OperationId) -> Failed {
    let seen =
        format!("the scope of operation {id} is not what a purge takes: published messages before a time");
    Failed::Setup(SetupProblem::new(SetupKind::Operation, seen, ""))
}

/// Deletes a batch and counts it, in one transaction. Returns false, and has done nothing, if the operation has moved on meanwhile. The first batch writes the operation
/// down, unless everything of it is gone already.
async fn take(db: &Session, operation: &Operation, ids: &[Uuid]) -> Result<bool, DbErr> {
    let operations = sql::operations(&db.dialect);
    let taken = i64::try_from(ids.len()).unwrap_or(i64::MAX);
    let to = operation.position.unwrap_or_default().saturating_add(taken);
    let tx = db.begin().await?;
    if !claim(&tx, operation, to).await? {
        return Ok(false);
    }
    let deleted = purge::delete_in(&tx, ids).await?;
    if deleted == 0 && operation.started_at.is_none() {
        // A relay was faster. Dropped, the transaction takes the operation back.
        return Ok(true);
    }
    let ends = operation.left().map(|left| left.saturating_sub(deleted)) == Some(0);
    tx.execute(operations.count(operation.id, deleted, &[], ends))
        .await?;
    tx.commit().await?;
    Ok(true)
}
