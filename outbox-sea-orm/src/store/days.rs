//! Purges daily tables (PostgreSQL): makes the coming days and drops the old ones.
//!
//! Invariants: a row that is unpublished, or was published within the retention, survives its day: the transaction that drops the day copies the
//! row to the default partition. If a lock is not granted within a moment, the work is left to the next round, so writers wait for a moment and
//! never fail. A crash leaves the day as it was.

use std::time::Duration;

use outbox_core::{PurgeRequest, Purged};
use sea_orm::{DbBackend, DbErr, Statement};
use tokio::sync::OnceCell;
use uuid::Uuid;

use super::fetch::time_of;
use super::has_code;
use super::purge::{before_rows, is_before_rows, now, purge_rows};
use super::session::Session;
use crate::dialect::Dialect;
use crate::dialect::ids::id_at;

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
pub(super) async fn is_by_day(
    db: &Session,
    dialect: &Dialect,
    known: &OnceCell<bool>,
) -> Result<bool, DbErr> {
    if dialect.backend != DbBackend::Postgres {
        return Ok(false);
    }
    let ask = || async {
        let row = db.query_one_raw(dialect.table_kind()).await?;
        let row = row.ok_or_else(|| DbErr::RecordNotFound(dialect.messages.clone()))?;
        Ok(row.try_get::<String>("", "kind")? == "p")
    };
    known.get_or_try_init(ask).await.copied()
}

pub(super) async fn purge(
    db: &Session,
    dialect: &Dialect,
    request: PurgeRequest,
    older_than: Duration,
) -> Result<Purged, DbErr> {
    let limit = i64::from(request.limit.get());
    if request.after.is_none() {
        unless_locked(make_days(db, dialect).await)?;
    }
    if is_before_rows(&request) {
        let dropped = unless_locked(drop_oldest(db, dialect, older_than).await)?;
        if let Some(deleted) = dropped.flatten() {
            return Ok(before_rows(deleted));
        }
    }
    purge_rows(db, dialect, request, older_than, |below| {
        let after = request.after;
        if older_than >= DAY {
            dialect.purgeable_without_day(after, below, older_than, limit)
        } else {
            dialect.purgeable(after, below, older_than, limit)
        }
    })
    .await
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

async fn make_days(db: &Session, dialect: &Dialect) -> Result<(), DbErr> {
    let tx = db.begin().await?;
    tx.execute_unprepared(&dialect.lock_timeout(LOCK_WAIT)).await?;
    tx.query_all_raw(dialect.make_days()).await?;
    tx.commit().await
}

/// Drops the oldest day that can be dropped, unless another process is purging. Returns how many messages it deleted; `None` if it dropped no
/// day.
async fn drop_oldest(db: &Session, dialect: &Dialect, older_than: Duration) -> Result<Option<u64>, DbErr> {
    let tx = db.begin().await?;
    let locked = tx.query_one_raw(dialect.try_lock_days()).await?;
    if !locked.map_or(Ok(false), |row| row.try_get("", "locked"))? {
        return Ok(None);
    }
    for row in tx.query_all_raw(dialect.old_days(older_than)).await? {
        let day: String = row.try_get("", "day")?;
        let rows = tx
            .query_all_raw(dialect.staying(&day, older_than, STAYING_MAX as i64 + 1))
            .await?;
        if rows.len() > STAYING_MAX {
            continue;
        }
        let staying = rows
            .iter()
            .map(|row| row.try_get::<Uuid>("", "id"))
            .collect::<Result<Vec<_>, _>>()?;
        let count: Option<i64> = match tx.query_one_raw(dialect.count_day(&day)).await? {
            Some(row) => row.try_get("", "rows")?,
            None => None,
        };
        let newer = time_of(now(&tx, dialect).await?).map_err(|error| DbErr::Type(error.to_string()))?;
        let newer = id_at(newer - CLOCKS_APART);
        let keep = dialect.keep_staying(&day, &staying, newer, older_than);
        let kept = drop_day(&tx, dialect, &day, keep).await?;
        tx.commit().await?;
        let deleted = count.unwrap_or_default().unsigned_abs().saturating_sub(kept);
        tracing::info!(day, deleted, kept, "day of the outbox dropped");
        return Ok(Some(deleted));
    }
    Ok(None)
}

/// Drops a day. `keep` copies the rows that stay to the default partition; returns their number.
async fn drop_day(tx: &Session, dialect: &Dialect, day: &str, keep: Statement) -> Result<u64, DbErr> {
    // One round trip, because everybody waits after the first lock.
    let detach = [
        dialect.by_index_only(),
        dialect.lock_timeout(LOCK_WAIT),
        dialect.lock_messages(),
        dialect.lock_timeout(DAY_LOCK_WAIT),
        dialect.detach_day(day),
    ];
    tx.execute_unprepared(&detach.join("; ")).await?;
    let kept = tx.execute_raw(keep).await?.rows_affected();
    tx.execute_unprepared(&dialect.drop_day(day)).await?;
    Ok(kept)
}
