//! Pauses: read, begun, ended, and finished.
//!
//! Invariant: what holds a message for a pause locks the pause in share mode ([`standing`]), and what finishes a pause locks it against that. So when a pause is
//! removed, together with the last of what it held, nobody can hold anything for it any more. A crash between the transactions of finishing leaves a pause that
//! has ended and still has its row: the next relay that renews its leases goes on.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use outbox_core::{Operation, Pause, PauseRequest};
use sea_orm::{DbErr, QueryResult};

use super::note::insert;
use super::session::Session;
use super::waiting::read_key;
use super::{admin, blocks, fetch, repeat_deadlocks};
use crate::dialect::Dialect;
use crate::dialect::key::Key;
use crate::dialect::pauses::held_until;

/// Aggregates, and unsequenced messages, per transaction. A power of two below 1,000: see [`Sql::any`](crate::sql::Sql::any).
const RELEASED_MAX: usize = 128;
/// Transactions per call, and the time after which a call begins no other. Relays wait for 2 s, or less if they are configured so, and a drain fails when that is over.
const ROUNDS: usize = 16;
const BEGINS_WITHIN: Duration = Duration::from_millis(200);

pub(super) async fn read(db: &Session, dialect: &Dialect) -> Result<Vec<Pause>, DbErr> {
    let rows = db.query_all_raw(dialect.pauses()).await?;
    rows.iter().map(read_pause).collect()
}

fn read_pause(row: &QueryResult) -> Result<Pause, DbErr> {
    let aggregate_type: Vec<u8> = row.try_get("", "aggregate_type")?;
    let aggregate_type = String::from_utf8_lossy(&aggregate_type).into_owned();
    let (ends, now): (Option<i64>, i64) = (row.try_get("", "ends_micros")?, row.try_get("", "now_micros")?);
    let since = fetch::time_of(row.try_get("", "since_micros")?);
    Ok(Pause {
        aggregate_type: Some(aggregate_type).filter(|aggregate_type| !aggregate_type.is_empty()),
        reason: row.try_get("", "reason")?,
        by: row.try_get("", "paused_by")?,
        since: since.map_err(|error| DbErr::Type(format!("paused_at is out of range: {error}")))?,
        ends_in: ends.map(|ends| admin::since(now, ends)),
    })
}

pub(super) async fn begin(db: &Session, dialect: &Dialect, request: &PauseRequest) -> Result<(), DbErr> {
    db.execute_raw(dialect.pause(request)).await.map(drop)
}

pub(super) async fn end(
    db: &Session,
    dialect: &Dialect,
    aggregate_type: Option<&str>,
) -> Result<bool, DbErr> {
    let ended = db.execute_raw(dialect.unpause(aggregate_type)).await?;
    Ok(ended.rows_affected() > 0)
}

/// As [`begin`], with the operation in the same transaction: after a crash both are there, or neither. Returns false, and has done nothing, if the operation was there.
pub(super) async fn begin_as(
    db: &Session,
    dialect: &Dialect,
    request: &PauseRequest,
    operation: &Operation,
) -> Result<bool, DbErr> {
    let tx = db.begin().await?;
    // The row of the operation first, as all operations do.
    let is_new = insert(&tx, dialect, operation, None).await?;
    if is_new {
        tx.execute_raw(dialect.pause(request)).await?;
        finish_operation(&tx, dialect, operation).await?;
        tx.commit().await?;
    }
    Ok(is_new)
}

/// As [`end`], with the operation in the same transaction. Returns false, and has done nothing, if no such pause stands or the operation was there.
pub(super) async fn end_as(
    db: &Session,
    dialect: &Dialect,
    aggregate_type: Option<&str>,
    operation: &Operation,
) -> Result<bool, DbErr> {
    let tx = db.begin().await?;
    if !insert(&tx, dialect, operation, None).await? {
        return Ok(false);
    }
    // Waits for settlements that hold messages for the pause, as without an operation.
    let ended = tx.execute_raw(dialect.unpause(aggregate_type)).await?;
    let has_ended = ended.rows_affected() > 0;
    if has_ended {
        finish_operation(&tx, dialect, operation).await?;
        tx.commit().await?;
    }
    // Otherwise it is dropped, which takes the operation back.
    Ok(has_ended)
}

async fn finish_operation(tx: &Session, dialect: &Dialect, operation: &Operation) -> Result<(), DbErr> {
    let finish = dialect.operations().finish(operation.id, Some(1), None);
    tx.execute_raw(finish).await.map(drop)
}

/// Which of these aggregate types are paused. Their pauses are locked until the transaction ends, so that they are not finished before it.
pub(super) async fn standing(
    tx: &Session,
    dialect: &Dialect,
    types: BTreeSet<Vec<u8>>,
) -> Result<BTreeSet<Vec<u8>>, DbErr> {
    if types.is_empty() {
        return Ok(types);
    }
    let types: Vec<Vec<u8>> = types.into_iter().collect();
    let rows = tx.query_all_raw(dialect.lock_standing_pauses(&types)).await?;
    rows.iter().map(|row| row.try_get("", "aggregate_type")).collect()
}

/// Releases what ended pauses held. Returns whether more is left.
pub(super) async fn finish(db: &Session, dialect: &Dialect) -> Result<bool, DbErr> {
    let began = Instant::now();
    for _ in 0..ROUNDS {
        if began.elapsed() > BEGINS_WITHIN {
            return Ok(true);
        }
        // Relays ask for this only while there is a pause that has ended.
        if !repeat_deadlocks!(release(db, dialect))? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// One transaction: releases some of what a pause held, and removes the pause if that was all. Returns false if no pause has ended.
async fn release(db: &Session, dialect: &Dialect) -> Result<bool, DbErr> {
    let tx = db.begin().await?;
    let Some(row) = tx.query_one_raw(dialect.lock_ended_pause()).await? else {
        tx.commit().await?;
        return Ok(false);
    };
    let aggregate_type: Vec<u8> = row.try_get("", "aggregate_type")?;
    let limit = RELEASED_MAX as i64;
    let rows = tx
        .query_all_raw(dialect.held_blocks(&aggregate_type, limit))
        .await?;
    let keys = rows.iter().map(read_key).collect::<Result<Vec<Key>, _>>()?;
    // The rest last and in a transaction of its own, so that each locks little and for a short time.
    if !keys.is_empty() {
        release_blocks(&tx, dialect, &aggregate_type, keys).await?;
        tx.commit().await?;
        return Ok(true);
    }
    let rows = tx
        .query_all_raw(dialect.held_alone(&aggregate_type, limit))
        .await?;
    let alone = rows
        .iter()
        .map(|row| row.try_get::<i64>("", "row_id"))
        .collect::<Result<Vec<i64>, _>>()?;
    if !alone.is_empty() {
        tx.execute_raw(dialect.release_alone(&aggregate_type, &alone))
            .await?;
    }
    if alone.len() < RELEASED_MAX {
        tx.execute_raw(dialect.remove_pause(&aggregate_type)).await?;
    }
    tx.commit().await?;
    Ok(true)
}

/// Releases those of these aggregates that the pause still holds: since they were read, an operator may have resumed them, or a relay removed their blocks.
async fn release_blocks(
    tx: &Session,
    dialect: &Dialect,
    aggregate_type: &[u8],
    mut keys: Vec<Key>,
) -> Result<(), DbErr> {
    keys.sort();
    // In the order in which settlements lock them.
    let locked = blocks::lock(tx, dialect, &keys).await?;
    let held = Some(held_until(aggregate_type));
    keys.retain(|key| {
        let block = locked.get(key);
        block.is_some_and(|block| block.halted_by.is_none() && block.due_micros == held)
    });
    for keys in keys.chunks(RELEASED_MAX / 2) {
        tx.execute_raw(dialect.release_blocks(keys)).await?;
    }
    Ok(())
}
