//! Returns fetched messages only after their commits are durable.
//!
//! A server may show a commit before it is on disk, and lose the commit in a crash. Then a
//! published message is a false event, and another message gets its `sequence`. On such a server,
//! each fetch ends with a durable write, which makes all earlier commits durable: the log is
//! sequential.
//!
//! | server | shows commits before they are durable |
//! |---|---|
//! | MySQL, MariaDB | without the binary log |
//! | PostgreSQL | with `synchronous_commit = off` |
//! | SQLite | with `synchronous` below `FULL`, a setting of each writer, not of the relay |

use std::sync::Arc;

use outbox_core::{Fetched, Lease, StoreError};
use sea_orm::{DbBackend, DbErr};
use tokio::sync::OnceCell;

use crate::store::session::Session;
use crate::store::{SqlStore, lease, relay};

#[derive(Debug, Clone, Default)]
pub(crate) struct Durability(Arc<OnceCell<bool>>);

pub(crate) async fn durable(
    store: &SqlStore,
    leases: &[Lease],
    fetched: Fetched,
) -> Result<Fetched, StoreError> {
    let known = store.durability.clone();
    let is_known_durable = known.0.get() == Some(&false);
    if is_known_durable || fetched.due.is_empty() || store.dialect.backend == DbBackend::Sqlite {
        return Ok(fetched);
    }
    let partition = lease::partitions(leases).first().copied().unwrap_or_default();
    // The connection of the fetch may have unread rows.
    let context = "the durable write before publishing failed";
    let written = store.run(context, move |db| async move {
        match *known.0.get_or_try_init(|| shows_early(&db)).await? {
            true => write(&db, partition).await,
            false => Ok(()),
        }
    });
    written.await?;
    Ok(fetched)
}

async fn shows_early(db: &Session) -> Result<bool, DbErr> {
    if db.dialect.backend == DbBackend::Postgres {
        return db.shows_commits_early().await;
    }
    let sql = "SELECT CAST(@@log_bin = 0 AS SIGNED) AS shows_early";
    let row = db.only(db.dialect.statement(sql, [])).await?;
    Ok(row.try_get::<i64>("", "shows_early")? == 1)
}

/// Forces a durable commit. On MySQL and MariaDB, the write adds a microsecond to an expiry.
async fn write(db: &Session, partition: i64) -> Result<(), DbErr> {
    if db.dialect.backend == DbBackend::Postgres {
        let tx = db.begin().await?;
        tx.execute_unprepared("SELECT pg_catalog.pg_logical_emit_message(true, 'outbox', '')")
            .await?;
        return tx.commit().await;
    }
    // Settlements lock lease rows. So the write tries the relay's own row first, which may be
    // missing.
    for statement in [
        relay::sql::touch(&db.dialect, partition),
        lease::sql::touch(&db.dialect, partition),
    ] {
        if db.execute(statement).await?.rows_affected() > 0 {
            return Ok(());
        }
    }
    Err(DbErr::RecordNotFound(format!(
        "partition {partition} of {}; `outbox migrate` restores it",
        db.dialect.leases
    )))
}
