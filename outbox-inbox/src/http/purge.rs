//! Purges expired requests.
//!
//! Invariants: a purge waits for no request. A layer purges until its last clone is dropped.

use std::time::Duration;

use outbox_sea_orm::{TableNames, detached};
use sea_orm::{DatabaseConnection, DbErr};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::sql::RequestSql;
use crate::database::{Database, finish};
use crate::retention;

const BATCH_MAX: u32 = 1_000;

pub(super) fn start(database: Database, sql: RequestSql, every: Duration) -> DropGuard {
    let stop = CancellationToken::new();
    let guard = stop.clone().drop_guard();
    let batch = move || {
        let (database, sql) = (database.clone(), sql.clone());
        async move {
            let deleted = purge_batch(&database, &sql, BATCH_MAX).await?;
            Ok((u64::from(deleted), deleted >= BATCH_MAX))
        }
    };
    tokio::spawn(retention::repeat("inbox_requests", batch, every, stop));
    guard
}

/// Deletes expired requests, oldest first, at most `limit` rows in transactions of at most 1,000,
/// and returns their number; if it equals `limit`, call again. Layers do the same every ten
/// minutes.
///
/// # Errors
///
/// The database's error. Rows deleted by earlier batches stay deleted.
///
/// # Cancellation
///
/// If the future is dropped, the purge continues in the background until it is complete.
pub async fn purge_requests(db: &DatabaseConnection, names: &TableNames, limit: u32) -> Result<u64, DbErr> {
    let (db, names) = (db.clone(), names.clone());
    detached(async move {
        let sql = RequestSql::new(db.get_database_backend(), &names, Duration::ZERO);
        let database = Database::inspect(db).await?;
        let mut left = limit;
        while left > 0 {
            let batch = left.min(BATCH_MAX);
            let deleted = purge_batch(&database, &sql, batch).await?;
            left -= deleted.min(batch);
            if deleted < batch {
                break;
            }
        }
        Ok(u64::from(limit - left))
    })
    .await
}

async fn purge_batch(database: &Database, sql: &RequestSql, limit: u32) -> Result<u32, DbErr> {
    let tx = database.begin().await?;
    let outcome = async {
        let ids = sql.expired(&tx, limit).await?;
        if ids.is_empty() {
            return Ok(0);
        }
        sql.delete(&tx, ids).await
    };
    let deleted = outcome.await;
    let deleted = finish(tx, deleted).await?;
    Ok(u32::try_from(deleted).unwrap_or(u32::MAX))
}
