//! Purges messages that are partitioned by day (PostgreSQL): makes the days to come, drops those that are old.
//!
//! Invariants: a row that is not published, or not for long enough, survives its day: it is copied to the default partition in the transaction that
//! drops the day. A lock that is not to be had within a moment is left to the next round, so writers wait for a moment and never fail. A crash
//! leaves the day as it was, or dropped and some of its deduplication keys, which the next round deletes.

use std::time::Duration;

use outbox_core::{MessageId, PurgeRequest, Purged};
use sea_orm::{DbBackend, DbErr, Statement};
use tokio::sync::OnceCell;
use uuid::Uuid;

use super::fetch::time_of;
use super::has_code;
use super::purge::{now, purge_rows};
use super::session::Session;
use crate::dialect::Dialect;
use crate::dialect::admin::id_at;

/// A shorter retention than this deletes rows in days as well.
const DAY: Duration = Duration::from_secs(24 * 3600);

/// A day in which more rows must stay is not dropped: they are copied while everybody waits.
const STAYING_MAX: usize = 10_000;

/// How long it waits for the lock of the parent table: so long may writers queue behind it.
const LOCK_WAIT: Duration = Duration::from_millis(500);

/// How long it then waits for the lock of the day and of the default partition: longer than PostgreSQL's `deadlock_timeout` (1 s), after
/// which an autovacuum of them gives way.
const DAY_LOCK_WAIT: Duration = Duration::from_secs(2);

/// Rows that somebody inserts into an old day are copies with fresh ids; so far may clocks be apart.
const CLOCKS_APART: time::Duration = time::Duration::DAY;

/// Where a round goes on that has dropped a day or deleted keys, before it comes to rows.
fn before_rows() -> MessageId {
    MessageId::from(Uuid::nil())
}

/// Whether messages are partitioned by day; asked once.
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

pub(super) async fn purge(db: &Session, dialect: &Dialect, request: PurgeRequest) -> Result<Purged, DbErr> {
    let limit = i64::from(request.limit.get());
    if request.after.is_none() {
        unless_locked(make_days(db, dialect).await)?;
    }
    if request.after.is_none_or(|after| after == before_rows()) {
        let keys = db.execute_raw(dialect.purge_keys(limit)).await?.rows_affected();
        if keys >= limit.unsigned_abs() {
            return Ok(Purged {
                deleted: 0,
                next: Some(before_rows()),
            });
        }
        let dropped = unless_locked(drop_oldest(db, dialect, request.older_than).await)?;
        if let Some(deleted) = dropped.flatten() {
            return Ok(Purged {
                deleted,
                next: Some(before_rows()),
            });
        }
    }
    purge_rows(db, dialect, request, |below| {
        let (after, older_than) = (request.after, request.older_than);
        if older_than >= DAY {
            dialect.purgeable_without_day(after, below, older_than, limit)
        } else {
            dialect.purgeable(after, below, older_than, limit)
        }
    })
    .await
}

/// `None` if a lock was not to be had; nothing has happened then.
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

/// Drops the oldest day that can be dropped, unless somebody else is purging. How many messages went with it; `None` if no day went.
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

/// Drops a day. How many of its rows stay in the default partition, because `keep` copies them.
async fn drop_day(tx: &Session, dialect: &Dialect, day: &str, keep: Statement) -> Result<u64, DbErr> {
    // One round trip, because everybody waits from the first lock on.
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
