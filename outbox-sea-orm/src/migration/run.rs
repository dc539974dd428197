//! Applies migrations under a lock, so that many processes may start at once.
//!
//! SeaORM's own migrator creates its table with `IF NOT EXISTS`, which fails if two processes do it at the same time, and it may apply a
//! migration twice. This table has the same columns, so SeaORM's command line can read it. Invariant: one connection holds the lock from
//! the first read to the last write.

use sea_orm::{
    ConnectionTrait, DatabaseConnection, DatabaseTransaction, DbBackend, DbErr, SqliteTransactionMode,
    Statement, TransactionOptions, TransactionTrait, Value,
};
use sea_orm_migration::{MigrationName, MigrationTrait, SchemaManager};

use super::template::SqlMigration;
use crate::detached::detached;
use crate::names::TableNames;

/// PostgreSQL's advisory lock for the migrations of this library. The number is arbitrary.
const POSTGRES_LOCK: i64 = 0x6f75_7462_6f78; // "outbox"
/// MySQL's user lock for the same purpose; it is server-wide.
const MYSQL_LOCK: &str = "outbox_migrations";
/// How long MySQL waits for another process's migration, in seconds.
const MYSQL_LOCK_WAIT_S: i32 = 300;

/// Applies, in order, the migrations that are not in `table` yet. On an error PostgreSQL and SQLite have changed nothing; on MySQL, another
/// call continues.
pub(super) async fn run(
    db: &DatabaseConnection,
    names: &TableNames,
    table: &'static str,
    migrations: Vec<SqlMigration>,
) -> Result<(), DbErr> {
    let backend = db.get_database_backend();
    names
        .check(backend)
        .map_err(|error| DbErr::Custom(error.to_string()))?;
    for migration in &migrations {
        migration.check(backend)?;
    }
    let (db, table) = (db.clone(), names.table(backend, table));
    detached(async move {
        let options = TransactionOptions {
            sqlite_transaction_mode: (backend == DbBackend::Sqlite)
                .then_some(SqliteTransactionMode::Immediate),
            ..TransactionOptions::default()
        };
        // On MySQL each DDL statement commits; there, the transaction only keeps the connection that has the lock.
        let tx = db.begin_with_options(options).await?;
        match backend {
            DbBackend::Postgres => {
                let sql = format!("SELECT pg_advisory_xact_lock({POSTGRES_LOCK})");
                tx.execute_raw(Statement::from_string(backend, sql)).await?;
                apply(&tx, &table, &migrations).await?;
            }
            DbBackend::MySql => {
                lock_mysql(&tx).await?;
                // A crash in here ends the session and its lock; the statements may be repeated.
                let applied = apply(&tx, &table, &migrations).await;
                let sql = format!("DO RELEASE_LOCK('{MYSQL_LOCK}')");
                tx.execute_unprepared(&sql).await?;
                applied?;
            }
            // BEGIN IMMEDIATE is the lock. The pool's `busy_timeout` bounds the wait for it.
            _ => apply(&tx, &table, &migrations).await?,
        }
        tx.commit().await
    })
    .await
}

async fn lock_mysql(tx: &DatabaseTransaction) -> Result<(), DbErr> {
    let sql = format!("SELECT GET_LOCK('{MYSQL_LOCK}', {MYSQL_LOCK_WAIT_S}) AS locked");
    let row = tx
        .query_one_raw(Statement::from_string(DbBackend::MySql, sql))
        .await?;
    let locked: Option<i64> = row.map(|row| row.try_get("", "locked")).transpose()?.flatten();
    if locked == Some(1) {
        return Ok(());
    }
    Err(DbErr::Migration(format!(
        "another process has been migrating for {MYSQL_LOCK_WAIT_S} s; call again when it has ended"
    )))
}

async fn apply(tx: &DatabaseTransaction, table: &str, migrations: &[SqlMigration]) -> Result<(), DbErr> {
    let backend = tx.get_database_backend();
    tx.execute_unprepared(&format!(
        "CREATE TABLE IF NOT EXISTS {table} (version varchar(255) NOT NULL PRIMARY KEY, applied_at bigint NOT NULL)"
    ))
    .await?;
    let rows = tx
        .query_all_raw(Statement::from_string(
            backend,
            format!("SELECT version FROM {table}"),
        ))
        .await?;
    let applied = rows
        .iter()
        .map(|row| row.try_get("", "version"))
        .collect::<Result<Vec<String>, _>>()?;
    for migration in migrations {
        if applied.iter().any(|name| name == migration.name()) {
            continue;
        }
        migration.up(&SchemaManager::new(tx)).await?;
        let (version, time) = match backend {
            DbBackend::Postgres => ("$1", "extract(epoch FROM now())::int8"),
            DbBackend::MySql => ("?", "UNIX_TIMESTAMP()"),
            _ => ("?", "CAST(strftime('%s', 'now') AS INTEGER)"),
        };
        let sql = format!("INSERT INTO {table} (version, applied_at) VALUES ({version}, {time})");
        tx.execute_raw(Statement::from_sql_and_values(
            backend,
            sql,
            [Value::from(migration.name())],
        ))
        .await?;
        tracing::info!(migration = migration.name(), "migration applied");
    }
    Ok(())
}
