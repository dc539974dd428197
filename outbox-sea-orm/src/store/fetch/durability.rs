//! Returns fetched messages only when their commits are durable.
//!
//! A server may show a commit to other sessions before the commit is on disk, and roll it back
//! after a crash. A message of such a commit that was published is an event that never happened,
//! and its `sequence` is assigned again. So a fetch from such a server ends with a write of its
//! own. This write is durable when its commit returns, and with it every commit that the fetch saw,
//! because a log is written in order.
//!
//! | server | commits are visible before they are durable |
//! |---|---|
//! | MySQL, MariaDB | without the binary log. With it, a commit is in the binary log before it is visible |
//! | PostgreSQL | with `synchronous_commit = off` |
//! | SQLite | with `synchronous` below `FULL`, and only if the machine fails. The setting belongs to each writer, so the relay cannot repair it |

use std::sync::Arc;

use outbox_core::{Fetched, Lease, StoreError};
use sea_orm::{DbBackend, DbErr};
use tokio::sync::OnceCell;

use crate::store::session::Session;
use crate::store::{SqlStore, lease, relay};

/// Whether a fetch needs a write of its own. The server is asked once.
#[derive(Debug, Clone, Default)]
pub(crate) struct Durability(Arc<OnceCell<bool>>);

/// Returns what was fetched, when it is durable.
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
    // On another connection: the fetch may have left rows behind on its own.
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

/// Whether the server shows commits before they are durable.
async fn shows_early(db: &Session) -> Result<bool, DbErr> {
    if db.dialect.backend == DbBackend::Postgres {
        return db.shows_commits_early().await;
    }
    let sql = "SELECT CAST(@@log_bin = 0 AS SIGNED) AS shows_early";
    let row = db.only(db.dialect.statement(sql, [])).await?;
    Ok(row.try_get::<i64>("", "shows_early")? == 1)
}

/// A commit that is durable when it returns. It changes no more than the microsecond at which an
/// announcement or a lease expires.
async fn write(db: &Session, partition: i64) -> Result<(), DbErr> {
    if db.dialect.backend == DbBackend::Postgres {
        let tx = db.begin().await?;
        tx.execute_unprepared("SELECT pg_catalog.pg_logical_emit_message(true, 'outbox', '')")
            .await?;
        return tx.commit().await;
    }
    // Settlements lock lease rows, so the relay's own row is better. There is none for a lease that
    // was taken over.
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
