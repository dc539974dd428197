//! Deletes old deduplication keys, and old published messages row by row.
//!
//! Invariant: only published rows are deleted. A published row stays published, so one statement may read the old rows and a second one
//! delete them, without a lock in between. Daily tables: see `day`.

#[cfg(feature = "postgres")]
pub(super) mod day;
mod sql;

use std::time::Duration;

use outbox_core::{MessageId, PurgeRequest, Purged};
use sea_orm::{DbErr, QueryResult, Statement};
use time::OffsetDateTime;
use uuid::Uuid;

use self::sql::Old;
use super::id_range::{self, IdRange, id_at};
use super::repeat_deadlocks;
use super::row::time_of;
use super::session::Session;
use crate::sql::micros;

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
    let next = before_rows(0).next;
    request.after.is_none_or(|after| Some(after) == next)
}

/// Deletes old deduplication keys, at the beginning of a round. Returns whether more of them may be left.
pub(super) async fn purge_keys(db: &Session, request: &PurgeRequest) -> Result<bool, DbErr> {
    if !is_before_rows(request) {
        return Ok(false);
    }
    let limit = i64::from(request.limit.get());
    let tx = db.begin().await?;
    let purge = sql::purge_keys(&db.dialect, request.keys_older_than, limit);
    let deleted = tx.execute(purge).await?;
    tx.commit().await?;
    Ok(deleted.rows_affected() >= limit.unsigned_abs())
}

pub(super) async fn purge(
    db: &Session,
    request: PurgeRequest,
    older_than: Duration,
) -> Result<Purged, DbErr> {
    purge_rows(db, &db.dialect.messages, request, older_than).await
}

/// Deletes old rows of a table or partition of messages.
pub(super) async fn purge_rows(
    db: &Session,
    table: &str,
    request: PurgeRequest,
    older_than: Duration,
) -> Result<Purged, DbErr> {
    let newest = db.now_micros().await?.saturating_sub(micros(older_than));
    let newest = time_of(newest).unwrap_or(OffsetDateTime::UNIX_EPOCH);
    let below = ids_below(db, newest).await?;
    let limit = request.limit.get();
    let statement = sql::purgeable(
        &db.dialect,
        table,
        Old::Than(older_than),
        request.after,
        below,
        i64::from(limit),
    );
    let Looked { old, next } = look(db, statement, limit).await?;
    let mut deleted = 0;
    for ids in old.chunks(ROWS_MAX) {
        deleted += repeat_deadlocks!(delete(db, ids))?;
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

/// Looks for rows that were recorded and published before a time, among the next `limit` rows behind an id.
pub(super) async fn look_before(
    db: &Session,
    before: OffsetDateTime,
    after: Option<MessageId>,
    limit: u32,
) -> Result<Looked, DbErr> {
    let below = ids_below(db, before).await?;
    let (old, messages) = (Old::Before(before), &db.dialect.messages);
    look(
        db,
        sql::purgeable(&db.dialect, messages, old, after, below, i64::from(limit)),
        limit,
    )
    .await
}

/// An upper bound of the ids of what was recorded before a time.
async fn ids_below(db: &Session, newest: OffsetDateTime) -> Result<Uuid, DbErr> {
    let ids = IdRange {
        below: id_at(newest.saturating_add(CLOCKS_APART)),
        ..IdRange::ALL
    };
    Ok(id_range::range(db, ids).await?.below)
}

async fn look(db: &Session, purgeable: Statement, limit: u32) -> Result<Looked, DbErr> {
    let row = |row: &QueryResult| {
        Ok((
            row.try_get::<Uuid>("", "id")?,
            row.try_get::<i64>("", "is_old")? == 1,
        ))
    };
    let rows = db.read(purgeable, row).await?;
    let last = rows.last().filter(|_| rows.len() == limit as usize);
    Ok(Looked {
        next: last.map(|(id, _)| MessageId::from(*id)),
        old: rows
            .iter()
            .filter(|(_, is_old)| *is_old)
            .map(|(id, _)| *id)
            .collect(),
    })
}

/// In a transaction only for its isolation level: on InnoDB, the usual one also locks the gaps where rows are gone already.
async fn delete(db: &Session, ids: &[Uuid]) -> Result<u64, DbErr> {
    let tx = db.begin().await?;
    let deleted = delete_in(&tx, ids).await?;
    tx.commit().await?;
    Ok(deleted)
}

/// Deletes published rows in an open transaction; at most [`ROWS_MAX`]. Returns how many were there.
pub(super) async fn delete_in(tx: &Session, ids: &[Uuid]) -> Result<u64, DbErr> {
    Ok(tx.execute(sql::purge(&tx.dialect, ids)).await?.rows_affected())
}
