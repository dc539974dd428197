//! Begins, ends and finishes pauses.
//!
//! Invariant: a settlement that holds a message locks the pause in share mode ([`standing`]),
//! finishing locks it exclusively. So no message is held after its pause is removed. A crash while
//! finishing leaves an ended pause; the next relay that renews its leases continues.

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

/// Messages released per transaction. A power of two: see [`Sql::any`](crate::sql::Sql::any).
const RELEASED_MAX: usize = 128;
/// A relay waits at most 2 s for `finish`. After 2 s, a drain would fail.
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

/// Returns false, with no change, if the operation exists.
pub(super) async fn begin(
    db: &Session,
    request: &PauseRequest,
    operation: &Operation,
) -> Result<bool, DbErr> {
    let tx = db.begin().await?;
    let is_new = record::insert(&tx, operation, None).await?;
    if is_new {
        tx.execute(sql::pause(&db.dialect, request)).await?;
        record::finish(&tx, operation.id, 1).await?;
        tx.commit().await?;
    }
    Ok(is_new)
}

/// Returns false, with no change, if the type is not paused or the operation exists.
pub(super) async fn end(
    db: &Session,
    aggregate_type: Option<&str>,
    operation: &Operation,
) -> Result<bool, DbErr> {
    let tx = db.begin().await?;
    if !record::insert(&tx, operation, None).await? {
        return Ok(false);
    }
    let ended = tx.execute(sql::unpause(&db.dialect, aggregate_type)).await?;
    let has_ended = ended.rows_affected() > 0;
    if has_ended {
        record::finish(&tx, operation.id, 1).await?;
        tx.commit().await?;
    }
    Ok(has_ended)
}

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

pub(super) async fn finish(db: &Session) -> Result<bool, DbErr> {
    let began = Instant::now();
    for _ in 0..ROUNDS {
        if began.elapsed() > BEGINS_WITHIN {
            return Ok(true);
        }
        if !repeat_deadlocks!(release(db))? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Removes the pause with its last message. Returns false if no pause has ended.
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

/// An operator may have resumed some aggregates, or a relay removed their blocks.
async fn release_blocks(tx: &Session, aggregate_type: &[u8], mut keys: Vec<Key>) -> Result<(), DbErr> {
    keys.sort();
    let locked = block::lock(tx, &keys).await?;
    let held = Some(held_until(aggregate_type));
    keys.retain(|key| {
        let block = locked.get(key);
        block.is_some_and(|block| block.halted_by.is_none() && block.due_micros == held)
    });
    for keys in keys.chunks(RELEASED_MAX / 2) {
        tx.execute(block::sql::release(&tx.dialect, keys)).await?;
    }
    Ok(())
}
