//! Pauses: read, begun, ended, and finished.
//!
//! Invariant: what holds a message for a pause locks the pause in share mode ([`standing`]), and what finishes a pause locks it against that. So when a pause is
//! removed, together with the last of what it held, nobody can hold anything for it any more. A crash between the transactions of finishing leaves a pause that
//! has ended and still has its row: the next relay that renews its leases goes on.

pub(super) mod hold;
pub(super) mod sql;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use outbox_core::{Operation, Pause, PauseRequest};
use sea_orm::{DbErr, QueryResult};

use self::sql::held_until;
use super::audit::record;
use super::row::{read_key, since, time};
use super::session::Session;
use super::{block, repeat_deadlocks};
use crate::sql::Key;

/// Aggregates, and unsequenced messages, per transaction. A power of two below 1,000: see [`Sql::any`](crate::sql::Sql::any).
const RELEASED_MAX: usize = 128;
/// Transactions per call, and the time after which a call begins no other. Relays wait for 2 s, or less if they are configured so, and a drain fails when that is over.
const ROUNDS: usize = 16;
const BEGINS_WITHIN: Duration = Duration::from_millis(200);

pub(super) async fn read(db: &Session) -> Result<Vec<Pause>, DbErr> {
    db.read(sql::pauses(&db.dialect), read_pause).await
}

fn read_pause(row: &QueryResult) -> Result<Pause, DbErr> {
    let aggregate_type: Vec<u8> = row.try_get("", "aggregate_type")?;
    let aggregate_type = String::from_utf8_lossy(&aggregate_type).into_owned();
    let (ends, now): (Option<i64>, i64) = (row.try_get("", "ends_micros")?, row.try_get("", "now_micros")?);
    Ok(Pause {
        aggregate_type: Some(aggregate_type).filter(|aggregate_type| !aggregate_type.is_empty()),
        reason: row.try_get("", "reason")?,
        by: row.try_get("", "paused_by")?,
        since: time(row, "since_micros", "paused_at")?,
        ends_in: ends.map(|ends| since(now, ends)),
    })
}

/// Begins a pause. Returns false, and has done nothing, if the operation was written down before.
pub(super) async fn begin(
    db: &Session,
    request: &PauseRequest,
    operation: &Operation,
) -> Result<bool, DbErr> {
    let tx = db.begin().await?;
    // The row of the operation first, as all operations do.
    let is_new = record::insert(&tx, operation, None).await?;
    if is_new {
        tx.execute(sql::pause(&db.dialect, request)).await?;
        record::finish(&tx, operation.id, 1).await?;
        tx.commit().await?;
    }
    Ok(is_new)
}

/// Ends a pause. Returns false, and has done nothing, if no such pause stands or the operation was written down before.
pub(super) async fn end(
    db: &Session,
    aggregate_type: Option<&str>,
    operation: &Operation,
) -> Result<bool, DbErr> {
    let tx = db.begin().await?;
    if !record::insert(&tx, operation, None).await? {
        return Ok(false);
    }
    // Waits for settlements that hold messages for the pause.
    let ended = tx.execute(sql::unpause(&db.dialect, aggregate_type)).await?;
    let has_ended = ended.rows_affected() > 0;
    if has_ended {
        record::finish(&tx, operation.id, 1).await?;
        tx.commit().await?;
    }
    // Otherwise it is dropped, which takes the operation back.
    Ok(has_ended)
}

/// Which of these aggregate types are paused. Their pauses are locked until the transaction ends, so that they are not finished before it.
pub(super) async fn standing(tx: &Session, types: BTreeSet<Vec<u8>>) -> Result<BTreeSet<Vec<u8>>, DbErr> {
    if types.is_empty() {
        return Ok(types);
    }
    let types: Vec<Vec<u8>> = types.into_iter().collect();
    let types = tx
        .read(sql::lock_standing(&tx.dialect, &types), |row| {
            row.try_get("", "aggregate_type")
        })
        .await?;
    Ok(types.into_iter().collect())
}

/// Releases what ended pauses held. Returns whether more is left.
pub(super) async fn finish(db: &Session) -> Result<bool, DbErr> {
    let began = Instant::now();
    for _ in 0..ROUNDS {
        if began.elapsed() > BEGINS_WITHIN {
            return Ok(true);
        }
        // Relays ask for this only while there is a pause that has ended.
        if !repeat_deadlocks!(release(db))? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// One transaction: releases some of what a pause held, and removes the pause if that was all. Returns false if no pause has ended.
async fn release(db: &Session) -> Result<bool, DbErr> {
    let tx = db.begin().await?;
    let Some(row) = tx.one(sql::lock_ended(&db.dialect)).await? else {
        tx.commit().await?;
        return Ok(false);
    };
    let aggregate_type: Vec<u8> = row.try_get("", "aggregate_type")?;
    let limit = RELEASED_MAX as i64;
    let keys = tx
        .read(sql::held_blocks(&db.dialect, &aggregate_type, limit), read_key)
        .await?;
    // The rest last and in a transaction of its own, so that each locks little and for a short time.
    if !keys.is_empty() {
        release_blocks(&tx, &aggregate_type, keys).await?;
        tx.commit().await?;
        return Ok(true);
    }
    let row_id = |row: &QueryResult| row.try_get::<i64>("", "row_id");
    let rows = tx
        .read(sql::held_rows(&db.dialect, &aggregate_type, limit), row_id)
        .await?;
    if !rows.is_empty() {
        tx.execute(sql::release_rows(&db.dialect, &aggregate_type, &rows))
            .await?;
    }
    if rows.len() < RELEASED_MAX {
        tx.execute(sql::remove(&db.dialect, &aggregate_type)).await?;
    }
    tx.commit().await?;
    Ok(true)
}

/// Releases those of these aggregates that the pause still holds: since they were read, an operator may have resumed them, or a relay removed their blocks.
async fn release_blocks(tx: &Session, aggregate_type: &[u8], mut keys: Vec<Key>) -> Result<(), DbErr> {
    keys.sort();
    // In the order in which settlements lock them.
    let locked = block::lock(tx, &keys).await?;
    let held = Some(held_until(aggregate_type));
    keys.retain(|key| {
        let block = locked.get(key);
        block.is_some_and(|block| block.halted_by.is_none() && block.due_micros == held)
    });
    for keys in keys.chunks(RELEASED_MAX / 2) {
        tx.execute(sql::release_blocks(&tx.dialect, keys)).await?;
    }
    Ok(())
}
