//! Detects a rolled-back transaction, and prevents a partial commit.
//!
//! | database | rolls back the whole transaction after |
//! |---|---|
//! | MySQL, MariaDB | a deadlock (1213), a full lock table (1206) |
//! | MariaDB with `innodb_snapshot_isolation` | a write conflict (1020) |
//! | with `innodb_rollback_on_timeout` | a lock timeout (1205) |
//! | SQLite | for example a full disk |
//!
//! After the rollback, MySQL, MariaDB and SQLite commit each later statement alone. PostgreSQL
//! rejects later statements.

use sea_orm::{ConnectionTrait, DbBackend, DbErr};

use crate::error::code::is_transaction_in_progress;
use crate::error::kind::ErrorKind;

const SAVEPOINTS: u32 = 8;

/// If the database has rolled back everything, prevents a commit: MySQL and MariaDB close the
/// connection, SQLite gets a replacement transaction.
///
/// Call this before a rollback to a savepoint. If such a rollback fails, sqlx 0.9.0 pools the
/// connection with a wrong depth.
///
/// # Errors
///
/// The connection is lost. The server rolls back.
pub(crate) async fn is_undone<C: ConnectionTrait>(tx: &C) -> Result<bool, DbErr> {
    match tx.get_database_backend() {
        DbBackend::MySql => is_undone_on_mysql(tx).await,
        DbBackend::Sqlite => Ok(is_undone_on_sqlite(tx).await),
        _ => Ok(false),
    }
}

/// MySQL and MariaDB reject `SET TRANSACTION` in an open transaction. MySQL has no variable for the
/// state.
async fn is_undone_on_mysql<C: ConnectionTrait>(tx: &C) -> Result<bool, DbErr> {
    match tx.execute_unprepared("SET TRANSACTION READ WRITE").await {
        Err(error) if is_transaction_in_progress(&error) => Ok(false),
        Err(error) if ErrorKind::of(&error) == ErrorKind::Unavailable => Err(error),
        _ => {
            close(tx).await;
            Ok(true)
        }
    }
}

/// The replacement transaction violates a deferred foreign key (enabled by sqlx), so its commit
/// fails.
async fn is_undone_on_sqlite<C: ConnectionTrait>(tx: &C) -> bool {
    if tx.execute_unprepared("BEGIN").await.is_err() {
        return false;
    }
    let savepoints: String = (1..=SAVEPOINTS)
        .map(|n| format!("; SAVEPOINT _sqlx_savepoint_{n}"))
        .collect();
    let refused = tx
        .execute_unprepared(&format!(
            "CREATE TEMP TABLE outbox_undone (id INTEGER PRIMARY KEY, \
             gone INTEGER REFERENCES outbox_undone (id) DEFERRABLE INITIALLY DEFERRED); \
             INSERT INTO outbox_undone VALUES (1, 2){savepoints}"
        ))
        .await;
    if let Err(error) = refused {
        tracing::error!(%error, "commit of a lost transaction could not be prevented; roll the transaction back");
    }
    true
}

/// Closes the connection, so that later statements and SeaORM's own commit fail. For SQLite see
/// [`is_undone`].
pub(crate) async fn close<C: ConnectionTrait>(tx: &C) {
    let end = match tx.get_database_backend() {
        DbBackend::Postgres => "SELECT pg_terminate_backend(pg_backend_pid())",
        DbBackend::MySql => "KILL CONNECTION_ID()",
        _ => return,
    };
    for _ in 0..2 {
        if let Err(error) = tx.execute_unprepared(end).await {
            tracing::debug!(%error, "connection of a lost transaction is being closed");
        }
    }
}
