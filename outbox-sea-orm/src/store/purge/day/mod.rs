//! Purges daily tables (PostgreSQL): makes the coming days and drops the old ones.
//!
//! Invariants: a row that is unpublished, or was published within the retention, survives its day: the transaction that drops the day copies the
//! row to the default partition. If a lock is not granted within a moment, the work is left to the next round, so writers wait for a moment and
//! never fail. A crash leaves the day as it was.

pub(crate) mod sql;

use std::time::Duration;

use outbox_core::{PurgeRequest, Purged};
use sea_orm::{DbBackend, DbErr, QueryResult, Statement};
use tokio::sync::OnceCell;
use uuid::Uuid;

use super::{before_rows, is_before_rows, purge_rows};
use crate::store::has_code;
use crate::store::id_range::id_at;
use crate::store::row::time;
use crate::store::session::Session;

/// With a shorter retention, rows within the days are deleted one by one as well.
const DAY: Duration = Duration::from_secs(24 * 3600);

/// A day with more rows that must stay is not dropped, because they are copied while everybody waits.
const STAYING_MAX: usize = 10_000;

/// How long the purge waits for the lock of the parent table. Writers queue behind it for at most this long.
const LOCK_WAIT: Duration = Duration::from_millis(500);

/// How long the purge then waits for the locks of the day and of the default partition. Longer than PostgreSQL's `deadlock_timeout` (1 s),
/// after which an autovacuum of them gives way.
const DAY_LOCK_WAIT: Duration = Duration::from_secs(2);

/// Largest difference between the clocks of writers and the database's. Rows that are inserted into an old day are copies, and their ids are
/// as new as their writer's clock says.
const CLOCKS_APART: time::Duration = time::Duration::DAY;

/// Whether the messages are in daily tables. The database is asked once.
pub(crate) async fn is_by_day(db: &Session, known: &OnceCell<bool>) -> Result<bool, DbErr> {
    if db.dialect.backend != DbBackend::Postgres {
        return Ok(false);
    }
    let ask = || async {
        let row = db.only(sql::table_kind(&db.dialect)).await?;
        Ok(row.try_get::<String>("", "kind")? == "p")
    };
    known.get_or_try_init(ask).await.copied()
}

pub(crate) async fn purge(
    db: &Session,
    request: PurgeRequest,
    older_than: Duration,
) -> Result<Purged, DbErr> {
    if request.after.is_none() {
        unless_locked(make_days(db).await)?;
    }
    if is_before_rows(&request) {
        let dropped = unless_locked(drop_oldest(db, older_than).await)?;
        if let Some(deleted) = dropped.flatten() {
            return Ok(before_rows(deleted));
        }
    }
    let table = match older_than >= DAY {
        true => sql::default_day(&db.dialect),
        false => db.dialect.messages.clone(),
    };
    purge_rows(db, &table, request, older_than).await
}

/// `None` if a lock was not granted; nothing has happened then.
fn unless_locked<T>(outcome: Result<T, DbErr>) -> Result<Option<T>, DbErr> {
    match outcome {
        Ok(value) => Ok(Some(value)),
        // lock_not_available, deadlock_detected
        Err(error) if has_code(&error, &["55P03", "40P01"]) => {
            tracing::info!(%error, "days of the outbox are in use; they are made and dropped in the next round");
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

async fn make_days(db: &Session) -> Result<(), DbErr> {
    let tx = db.begin().await?;
    tx.execute_unprepared(&sql::lock_timeout(LOCK_WAIT)).await?;
    tx.all(sql::make_days(&db.dialect)).await?;
    tx.commit().await
}

/// Drops the oldest day that can be dropped, unless another process is purging. Returns how many messages it deleted; `None` if it dropped no
/// day.
async fn drop_oldest(db: &Session, older_than: Duration) -> Result<Option<u64>, DbErr> {
    let tx = db.begin().await?;
    let locked = tx.only(sql::try_lock_days(&db.dialect)).await?;
    if !locked.try_get("", "locked")? {
        return Ok(None);
    }
    for row in tx.all(sql::old_days(&db.dialect, older_than)).await? {
        let day: String = row.try_get("", "day")?;
        let id = |row: &QueryResult| row.try_get::<Uuid>("", "id");
        let staying = sql::staying(&db.dialect, &day, older_than, STAYING_MAX as i64 + 1);
        let staying = tx.read(staying, id).await?;
        if staying.len() > STAYING_MAX {
            continue;
        }
        let count: i64 = tx
            .only(sql::count_day(&db.dialect, &day))
            .await?
            .try_get("", "rows")?;
        let clock = tx.only(db.dialect.clock()).await?;
        let newer = id_at(time(&clock, "now_micros", "the database's time")? - CLOCKS_APART);
        let keep = sql::keep_staying(&db.dialect, &day, &staying, newer, older_than);
        let kept = drop_day(&tx, &day, keep).await?;
        tx.commit().await?;
        let deleted = count.unsigned_abs().saturating_sub(kept);
        tracing::info!(day, deleted, kept, "day of the outbox dropped");
        return Ok(Some(deleted));
    }
    Ok(None)
}

/// Drops a day. `keep` copies the rows that stay to the default partition; returns their number.
async fn drop_day(tx: &Session, day: &str, keep: Statement) -> Result<u64, DbErr> {
    // One round trip, because everybody waits after the first lock.
    let detach = [
        sql::by_index_only(),
        sql::lock_timeout(LOCK_WAIT),
        sql::lock_messages(&tx.dialect),
        sql::lock_timeout(DAY_LOCK_WAIT),
        sql::detach_day(&tx.dialect, day),
    ];
    tx.execute_unprepared(&detach.join("; ")).await?;
    let kept = tx.execute(keep).await?.rows_affected();
    tx.execute_unprepared(&sql::drop_day(&tx.dialect, day)).await?;
    Ok(kept)
}
