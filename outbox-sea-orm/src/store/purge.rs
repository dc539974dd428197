//! Deletes old deduplication keys, and old published messages row by row.
//!
//! Invariant: only published rows are deleted. A published row stays published, so one statement may read the old rows and a second one
//! delete them, without a lock in between. Daily tables: see `days`.

use std::time::Duration;

use outbox_core::{MessageId, PurgeRequest, Purged};
use sea_orm::{DbErr, Statement};
use time::OffsetDateTime;
use uuid::Uuid;

use super::fetch::time_of;
use super::session::Session;
use super::{ids, repeat_deadlocks};
use crate::dialect::ids::{IdRange, id_at};
use crate::dialect::{Dialect, micros};

/// Rows per statement. Less than 1,000: MariaDB turns longer lists into a join, and scans the table for it.
pub(super) const ROWS_MAX: usize = 512;

/// Largest difference between a writer's clock, which makes the ids, and the database's. A larger value makes the scan longer; a smaller
/// one leaves the rows of fast clocks to a later round.
const CLOCKS_APART: time::Duration = time::Duration::MINUTE;

/// The end of a call that has deleted keys, or dropped a day: the next one looks for more of them, before the rows.
pub(super) fn before_rows(deleted: u64) -> Purged {
    Purged {
        deleted,
        next: Some(MessageId::from(Uuid::nil())),
    }
}

/// Whether a call is at the beginning of a round, or continues before the rows.
pub(super) fn is_before_rows(request: &PurgeRequest) -> bool {
    request
        .after
        .is_none_or(|after| Some(after) == before_rows(0).next)
}

/// Deletes old deduplication keys, at the beginning of a round. Returns whether more of them may be left.
pub(super) async fn purge_keys(
    db: &Session,
    dialect: &Dialect,
    request: &PurgeRequest,
) -> Result<bool, DbErr> {
    if !is_before_rows(request) {
        return Ok(false);
    }
    let limit = i64::from(request.limit.get());
    let tx = db.begin().await?;
    let deleted = tx
        .execute_raw(dialect.purge_keys(request.keys_older_than, limit))
        .await?;
    tx.commit().await?;
    Ok(deleted.rows_affected() >= limit.unsigned_abs())
}

pub(super) async fn purge(
    db: &Session,
    dialect: &Dialect,
    request: PurgeRequest,
    older_than: Duration,
) -> Result<Purged, DbErr> {
    purge_rows(db, dialect, request, older_than, |below| {
        let limit = i64::from(request.limit.get());
        dialect.purgeable(request.after, below, older_than, limit)
    })
    .await
}

/// Deletes the rows that `purgeable` selects. Its argument is an upper bound of their ids.
pub(super) async fn purge_rows(
    db: &Session,
    dialect: &Dialect,
    request: PurgeRequest,
    older_than: Duration,
    purgeable: impl FnOnce(Uuid) -> Statement,
) -> Result<Purged, DbErr> {
    let newest = now(db, dialect).await?.saturating_sub(micros(older_than));
    let newest = time_of(newest).unwrap_or(OffsetDateTime::UNIX_EPOCH);
    let Looked { old, next } = look(db, dialect, request.limit.get(), newest, purgeable).await?;
    let mut deleted = 0;
    for ids in old.chunks(ROWS_MAX) {
        deleted += repeat_deadlocks!(delete(db, dialect, ids))?;
    }
    Ok(Purged { deleted, next })
}

/// Rows that a purge has looked at.
pub(super) struct Looked {
    /// The published ones that are old enough.
    pub(super) old: Vec<Uuid>,
    /// Where to look next; `None` at the end.
    pub(super) next: Option<MessageId>,
}

/// Looks at the rows that `purgeable` selects, at most `limit`. Its argument is an upper bound of the ids of what was recorded before `newest`.
pub(super) async fn look(
    db: &Session,
    dialect: &Dialect,
    limit: u32,
    newest: OffsetDateTime,
    purgeable: impl FnOnce(Uuid) -> Statement,
) -> Result<Looked, DbErr> {
    let ids = IdRange {
        below: id_at(newest.saturating_add(CLOCKS_APART)),
        ..IdRange::ALL
    };
    let ids = ids::range(db, dialect, ids).await?;
    let rows = db.query_all_raw(purgeable(ids.below)).await?;
    let mut old: Vec<Uuid> = Vec::new();
    for row in &rows {
        if row.try_get::<i64>("", "is_old")? == 1 {
            old.push(row.try_get("", "id")?);
        }
    }
    let next = match rows.last() {
        Some(last) if rows.len() == limit as usize => Some(MessageId::from(last.try_get::<Uuid>("", "id")?)),
        _ => None,
    };
    Ok(Looked { old, next })
}

/// In a transaction only for its isolation level: on InnoDB, the usual one also locks the gaps where rows are gone already.
async fn delete(db: &Session, dialect: &Dialect, ids: &[Uuid]) -> Result<u64, DbErr> {
    let tx = db.begin().await?;
    let deleted = delete_in(&tx, dialect, ids).await?;
    tx.commit().await?;
    Ok(deleted)
}

/// Deletes published rows in an open transaction; at most [`ROWS_MAX`]. Returns how many were there.
pub(super) async fn delete_in(tx: &Session, dialect: &Dialect, ids: &[Uuid]) -> Result<u64, DbErr> {
    Ok(tx.execute_raw(dialect.purge(ids)).await?.rows_affected())
}

/// The database's clock, in microseconds since 1970.
pub(super) async fn now(db: &Session, dialect: &Dialect) -> Result<i64, DbErr> {
    db.query_one_raw(dialect.clock())
        .await?
        .ok_or_else(|| DbErr::RecordNotFound("clock".to_owned()))?
        .try_get("", "now_micros")
}
