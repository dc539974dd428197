//! Applies migrations under a lock.
//!
//! SeaORM's command line can read the table of applied migrations. Its migrator could apply a
//! migration twice if several processes start at once.
//!
//! Invariant: one connection holds the lock for the whole migration.

use sea_orm::{
    ConnectionTrait, DatabaseConnection, DatabaseTransaction, DbBackend, DbErr, SqliteTransactionMode,
    Statement, TransactionOptions, TransactionTrait, Value,
};

use super::template::SqlMigration;
use crate::error::code::has_code;
use crate::names::TableNames;
use crate::task::detached;

const POSTGRES_LOCK: i64 = 0x6f75_7462_6f78; // "outbox"
const MYSQL_LOCK: &str = "outbox_migrations";
const MYSQL_LOCK_WAIT_S: i32 = 300;

/// After an error, PostgreSQL and SQLite are unchanged; on MySQL, the next call continues the
/// migration.
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
    let (db, exists, table) = (
        db.clone(),
        exists(backend, names, table),
        names.table(backend, table),
    );
    detached(async move {
        let options = TransactionOptions {
            sqlite_transaction_mode: (backend == DbBackend::Sqlite)
                .then_some(SqliteTransactionMode::Immediate),
            ..TransactionOptions::default()
        };
        // On MySQL each DDL statement commits. The transaction only reserves the connection that
        // holds the lock.
        let tx = db.begin_with_options(options).await?;
        match backend {
            DbBackend::Postgres => {
                let sql = format!("SELECT pg_advisory_xact_lock({POSTGRES_LOCK})");
                tx.execute_raw(Statement::from_string(backend, sql)).await?;
                apply(&tx, exists, &table, &migrations).await?
            }
            DbBackend::MySql => {
                lock_mysql(&tx).await?;
                // A crash ends the session and its lock. Statements are idempotent.
                let applied = apply(&tx, exists, &table, &migrations).await;
                // The commit precedes the release of the lock, otherwise the next process would
                // repeat the last migration.
                tx.execute_unprepared("COMMIT").await?;
                let sql = format!("DO RELEASE_LOCK('{MYSQL_LOCK}')");
                tx.execute_unprepared(&sql).await?;
                applied?
            }
            // `busy_timeout` bounds SQLite's wait for the lock.
            _ => apply(&tx, exists, &table, &migrations).await?,
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
        "another process has held the migration lock for {MYSQL_LOCK_WAIT_S} s; repeat the migration when that process has ended"
    )))
}

/// Queries the catalog for the table, because `CREATE TABLE IF NOT EXISTS` always needs the
/// privilege to create.
fn exists(backend: DbBackend, names: &TableNames, table: &'static str) -> Statement {
    let name = names.unqualified(table);
    match backend {
        DbBackend::Postgres => Statement::from_sql_and_values(
            backend,
            "SELECT 1 WHERE to_regclass($1) IS NOT NULL",
            [Value::from(names.table(backend, table))],
        ),
        DbBackend::MySql => Statement::from_sql_and_values(
            backend,
            "SELECT 1 FROM information_schema.tables WHERE table_schema = COALESCE(?, DATABASE()) AND table_name = ?",
            [Value::from(names.schema().map(str::to_owned)), Value::from(name)],
        ),
        _ => Statement::from_sql_and_values(
            backend,
            "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?",
            [Value::from(name)],
        ),
    }
}

pub(super) fn create_table(backend: DbBackend, table: &str) -> String {
    // The row format DYNAMIC permits the long primary key of the table.
    let options = match backend {
        DbBackend::MySql => " ENGINE = InnoDB ROW_FORMAT = DYNAMIC",
        _ => "",
    };
    format!(
        "CREATE TABLE IF NOT EXISTS {table} (version varchar(255) NOT NULL PRIMARY KEY, applied_at bigint NOT NULL){options}"
    )
}

pub(super) fn remember(backend: DbBackend, table: &str, version: &str) -> String {
    let (time, unless) = match backend {
        DbBackend::Postgres => ("extract(epoch FROM now())::int8", " ON CONFLICT DO NOTHING"),
        DbBackend::MySql => ("UNIX_TIMESTAMP()", " ON DUPLICATE KEY UPDATE version = version"),
        _ => (
            "CAST(strftime('%s', 'now') AS INTEGER)",
            " ON CONFLICT DO NOTHING",
        ),
    };
    format!("INSERT INTO {table} (version, applied_at) VALUES ({version}, {time}){unless}")
}

async fn apply(
    tx: &DatabaseTransaction,
    exists: Statement,
    table: &str,
    migrations: &[SqlMigration],
) -> Result<(), DbErr> {
    let backend = tx.get_database_backend();
    if tx.query_one_raw(exists).await?.is_none() {
        tx.execute_unprepared(&create_table(backend, table)).await?;
    }
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
        migration
            .apply(tx)
            .await
            .map_err(|error| explained(error, table, migration.name()))?;
        let version = match backend {
            DbBackend::Postgres => "$1",
            _ => "?",
        };
        let sql = remember(backend, table, version);
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

const EXISTS: [&str; 3] = ["42P07", "42723", "42710"];

fn explained(error: DbErr, table: &str, migration: &str) -> DbErr {
    if !has_code(&error, &EXISTS) {
        return error;
    }
    DbErr::Migration(format!(
        "the tables exist, but {table} has no row `{migration}` ({}); if the SQL file of this version created the tables, run its last statements, which insert the row",
        outbox_core::describe(&error)
    ))
}
