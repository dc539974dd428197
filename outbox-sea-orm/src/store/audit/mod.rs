//! Changes by operators. The transaction of a change also records its operation.
//!
//! Lock order: row of the operation, blocks by key, messages.
//!
//! Invariant: an operation stores the last row id that it has processed. If another process has
//! advanced it, this process rolls back and continues there, so no batch runs twice.

pub(super) mod record;
pub(crate) mod sql;

use std::num::NonZeroU32;

use outbox_core::{
    Aggregate, Forgotten, MessageId, Operation, OperationFilter, OperationId, OperationKind,
    OperationMessages, OutboxAudit, PauseRequest, SetupKind, StoreError,
};
use sea_orm::DbErr;
use uuid::Uuid;

use self::record::{end, find, insert, note};
use self::sql::OperationsSql;
use super::admin::{self, Decision, Selected};
use super::session::Session;
use super::{SqlStore, block, forget, message, pause, repeat_deadlocks, run};

const IDS_MAX: usize = 256;

impl OutboxAudit for SqlStore {
    async fn advance(&self, operation: &Operation, at_most: NonZeroU32) -> Result<Operation, StoreError> {
        if !operation.kind.takes_messages() {
            let seen = format!("operation {} is not a retry, skip or replay", operation.id);
            return Err(StoreError::setup(SetupKind::Operation, seen, ""));
        }
        let operation = operation.clone();
        run!(self, "the operation could not be advanced; repeat the call to continue from its position" =>
            |db| advance(&db, operation, u64::from(at_most.get())))
    }

    async fn resume_as(&self, aggregate: &Aggregate, operation: &Operation) -> Result<bool, StoreError> {
        let (aggregate, operation) = (aggregate.clone(), operation.clone());
        let resumed = run!(self, "the aggregate could not be resumed" =>
            |db| async { repeat_deadlocks!(resume(&db, &aggregate, &operation)) })?;
        if resumed {
            outbox_core::wake::notify();
        }
        Ok(resumed)
    }

    async fn forget_as(
        &self,
        aggregates: &[Aggregate],
        operation: &Operation,
    ) -> Result<Forgotten, StoreError> {
        let (aggregates, operation) = (aggregates.to_vec(), operation.clone());
        run!(self, "aggregates could not be forgotten" =>
            |db| forget::forget(&db, &aggregates, &operation))
    }

    async fn pause_as(&self, request: &PauseRequest, operation: &Operation) -> Result<bool, StoreError> {
        let (request, operation) = (request.clone(), operation.clone());
        run!(self, "publishing could not be paused" =>
            |db| async { repeat_deadlocks!(pause::begin(&db, &request, &operation)) })
    }

    async fn unpause_as(
        &self,
        aggregate_type: Option<&str>,
        operation: &Operation,
    ) -> Result<bool, StoreError> {
        let (aggregate_type, operation) = (aggregate_type.map(str::to_owned), operation.clone());
        run!(self, "the pause could not be ended" =>
            |db| async { repeat_deadlocks!(pause::end(&db, aggregate_type.as_deref(), &operation)) })
    }

    async fn write_down(&self, operation: &Operation) -> Result<(), StoreError> {
        let operation = operation.clone();
        run!(self, "the operation could not be recorded" => |db| insert(&db, &operation, None))?;
        Ok(())
    }

    async fn finish(&self, id: OperationId, changed: u64) -> Result<(), StoreError> {
        run!(self, "the end of the operation could not be recorded" => |db| record::finish(&db, id, changed))
    }

    async fn operations(
        &self,
        filter: &OperationFilter,
        limit: NonZeroU32,
    ) -> Result<Vec<Operation>, StoreError> {
        let statement = sql::operations(&self.dialect).list(filter, i64::from(limit.get()));
        run!(self, "operations could not be listed" => |db| db.read(statement, OperationsSql::read))
    }

    async fn operation(&self, id: OperationId) -> Result<Option<Operation>, StoreError> {
        run!(self, "the operation could not be read" => |db| find(&db, id))
    }

    async fn messages_of(&self, id: OperationId) -> Result<OperationMessages, StoreError> {
        run!(self, "the messages of the operation could not be read" => |db| messages_of(&db, id))
    }
}

async fn messages_of(db: &Session, id: OperationId) -> Result<OperationMessages, DbErr> {
    let row = db.one(sql::operations(&db.dialect).messages(id)).await?;
    let ids = row.as_ref().map(OperationsSql::read_ids).transpose()?;
    let ids = ids.unwrap_or_default();
    let mut messages = Vec::new();
    for ids in ids.chunks(IDS_MAX) {
        messages.extend(message::with_ids(db, ids).await?);
    }
    messages.sort_by_key(|message| message.row_id);
    let named: Vec<MessageId> = ids.into_iter().map(MessageId::from).collect();
    Ok(OperationMessages::new(&named, messages))
}

async fn resume(db: &Session, aggregate: &Aggregate, operation: &Operation) -> Result<bool, DbErr> {
    let tx = db.begin().await?;
    let resumed = tx
        .execute(block::sql::resume(&db.dialect, aggregate))
        .await?
        .rows_affected()
        > 0;
    if resumed {
        note(&tx, operation, 1).await?;
        tx.commit().await?;
    }
    Ok(resumed)
}

async fn advance(db: &Session, operation: Operation, mut budget: u64) -> Result<Operation, DbErr> {
    let mut operation = find(db, operation.id).await?.unwrap_or(operation);
    while budget > 0 && !operation.is_finished() {
        let page = match operation.kind {
            OperationKind::Replay => admin::REPLAYED_MAX as u64,
            _ => admin::MESSAGES_MAX as u64,
        };
        let wanted = budget.min(page).min(operation.left().unwrap_or(u64::MAX));
        let rows = next(db, &mut operation, wanted).await?;
        let is_last = (rows.len() as u64) < wanted;
        if rows.is_empty() {
            return end(db, operation).await;
        }
        let batches = rows.len().div_ceil(admin::MESSAGES_MAX as usize);
        for (n, batch) in rows.chunks(admin::MESSAGES_MAX as usize).enumerate() {
            let ends = is_last && n + 1 == batches;
            let taken = repeat_deadlocks!(take(db, &operation, batch, ends))?;
            // If the process crashes now, the stored operation continues after this batch.
            let found = find(db, operation.id).await?;
            operation = found.ok_or_else(|| DbErr::RecordNotFound(format!("operation {}", operation.id)))?;
            if !taken {
                break;
            }
            outbox_core::wake::notify();
            budget -= batch.len() as u64;
        }
    }
    Ok(operation)
}

async fn next(db: &Session, operation: &mut Operation, wanted: u64) -> Result<Vec<Selected>, DbErr> {
    let mut selection = operation.scope.selection.clone();
    selection.after = selection.after.max(operation.position);
    let limit = i64::try_from(wanted).unwrap_or(i64::MAX);
    match operation.kind {
        OperationKind::Replay => {
            let limit = usize::try_from(limit).unwrap_or(usize::MAX);
            let rows = admin::replayable(db, &selection, operation.until, limit).await?;
            if operation.until.is_none() {
                // If this page holds all rows, the operation ends at the last row.
                operation.until = match rows.last() {
                    Some((row_id, _)) if rows.len() < limit => Some(*row_id),
                    _ => Some(admin::last_row_id(db).await?),
                };
            }
            let selected = |(row_id, id)| Selected {
                row_id,
                id,
                key: None,
            };
            Ok(rows.into_iter().map(selected).collect())
        }
        ref kind => {
            let halting = *kind == OperationKind::Skip;
            admin::select_dead(db, &selection, halting, limit).await
        }
    }
}

/// Changes the messages of a batch. Returns false, with no change, if another process has advanced
/// the operation.
async fn take(db: &Session, operation: &Operation, batch: &[Selected], ends: bool) -> Result<bool, DbErr> {
    let (Some(last), operations) = (batch.last(), sql::operations(&db.dialect)) else {
        return Ok(true);
    };
    let tx = db.begin().await?;
    if !record::claim(&tx, operation, last.row_id).await? {
        return Ok(false);
    }
    let (changed, messages) = change(&tx, &operation.kind, batch).await?;
    let left = operation.left().map(|left| left.saturating_sub(changed));
    let ends = ends || left == Some(0);
    let count = operations.count(operation.id, changed, &messages, ends);
    tx.execute(count).await?;
    tx.commit().await?;
    Ok(true)
}

async fn change(tx: &Session, kind: &OperationKind, batch: &[Selected]) -> Result<(u64, Vec<Uuid>), DbErr> {
    let ids: Vec<Uuid> = batch.iter().map(|row| row.id).collect();
    match kind {
        OperationKind::Replay => {
            let ids: Vec<(Uuid, Uuid)> = ids.into_iter().map(|id| (id, admin::fresh_id())).collect();
            let copied = admin::copy(tx, &ids).await?;
            Ok((copied, ids.into_iter().map(|(_, copy)| copy).collect()))
        }
        OperationKind::Skip => Ok((admin::decide(tx, batch, Decision::Skip).await?, ids)),
        _ => Ok((admin::decide(tx, batch, Decision::Retry).await?, ids)),
    }
}
