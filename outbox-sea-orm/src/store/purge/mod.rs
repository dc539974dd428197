//! Purges old deduplication keys and published messages. Rows are selected and deleted without a
//! common lock, because published rows stay published.

mod sql;

use std::time::Duration;

use outbox_core::{MessageId, PurgeRequest, Purged};
use sea_orm::{DbErr, QueryResult};
use time::OffsetDateTime;
use uuid::Uuid;

use super::id_range::{self, IdRange, id_at};
use super::repeat_deadlocks;
use super::row::time_of;
use super::session::Session;
use crate::sql::micros;

/// MariaDB turns a list of 1,000 or more ids into a join, and scans the table.
const ROWS_MAX: usize = 512;

/// Maximum clock difference between a writer and the database. Beyond this difference, a later
/// round deletes the messages.
const CLOCKS_APART: time::Duration = time::Duration::MINUTE;

const BEFORE_ROWS: Uuid = Uuid::nil();

pub(super) async fn purge(db: &Session, request: PurgeRequest) -> Result<Purged, DbErr> {
    let is_before_rows = request.after.is_none_or(|after| after.as_uuid() == BEFORE_ROWS);
    if is_before_rows && purge_keys(db, &request).await? {
        return Ok(Purged {
            deleted: 0,
            next: Some(MessageId::from(BEFORE_ROWS)),
        });
    }
    match request.older_than {
        Some(older_than) => purge_rows(db, request, older_than).await,
        None => Ok(Purged {
            deleted: 0,
            next: None,
        }),
    }
}

async fn purge_keys(db: &Session, request: &PurgeRequest) -> Result<bool, DbErr> {
    let limit = i64::from(request.limit.get());
    let tx = db.begin().await?;
    let purge = sql::purge_keys(&db.dialect, request.keys_older_than, limit);
    let deleted = tx.execute(purge).await?;
    tx.commit().await?;
    Ok(deleted.rows_affected() >= limit.unsigned_abs())
}

async fn purge_rows(db: &Session, request: PurgeRequest, older_than: Duration) -> Result<Purged, DbErr> {
    let newest = db.now_micros().await?.saturating_sub(micros(older_than));
    let newest = time_of(newest).unwrap_or(OffsetDateTime::UNIX_EPOCH);
    let ids = IdRange {
        below: id_at(newest.saturating_add(CLOCKS_APART)),
        ..IdRange::ALL
    };
    let below = id_range::range(db, ids).await?.below;
    let limit = request.limit.get();
    let statement = sql::purgeable(&db.dialect, older_than, request.after, below, i64::from(limit));
    let row = |row: &QueryResult| {
        Ok((
            row.try_get::<Uuid>("", "id")?,
            row.try_get::<i64>("", "is_old")? == 1,
        ))
    };
    let rows = db.read(statement, row).await?;
    let old = rows.iter().filter(|(_, is_old)| *is_old);
    let old: Vec<Uuid> = old.map(|(id, _)| *id).collect();
    let mut deleted = 0;
    for ids in old.chunks(ROWS_MAX) {
        deleted += repeat_deadlocks!(delete(db, ids))?;
    }
    let last = rows.last().filter(|_| rows.len() == limit as usize);
    Ok(Purged {
        deleted,
        next: last.map(|(id, _)| MessageId::from(*id)),
    })
}

/// InnoDB's default isolation level locks gaps of deleted rows.
async fn delete(db: &Session, ids: &[Uuid]) -> Result<u64, DbErr> {
    let tx = db.begin().await?;
    let deleted = tx.execute(sql::purge(&tx.dialect, ids)).await?.rows_affected();
    tx.commit().await?;
    Ok(deleted)
}
