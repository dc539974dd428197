//! Deletes requests that have expired.
//!
//! Invariant: it waits for no request and holds none up longer than one batch takes. Absent here: deciding when; nobody calls it by itself.

use std::time::Duration;

use outbox_sea_orm::{TableNames, detached};
use sea_orm::{DatabaseConnection, DbErr};

use super::sql::RequestSql;
use crate::database::{Database, roll_back};

/// Rows per transaction.
const BATCH_MAX: u32 = 1_000;

/// Deletes stored requests that have expired, the oldest first, at most `limit`, 1,000 per transaction; returns how many. Call it from time
/// to time, and again while it returns `limit`. Several processes may: they delete different rows.
///
/// Without it the table grows; keys expire all the same.
///
/// # Errors
///
/// The database's error. What earlier batches deleted stays deleted.
///
/// # Cancellation
///
/// Dropping the future is safe: it goes on in the background to its end.
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
    match outcome.await {
        Ok(deleted) => {
            tx.commit().await?;
            Ok(u32::try_from(deleted).unwrap_or(u32::MAX))
        }
        Err(error) => {
            roll_back(tx).await;
            Err(error)
        }
    }
}
