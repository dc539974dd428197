//! `outbox_record` in SQL, for programs that are not written in Rust: a function on PostgreSQL, a procedure on MySQL and MariaDB, a view with a
//! trigger on SQLite.
//!
//! It records an event in the caller's transaction by the rules of [`record`](crate::record()): the checks of
//! [`NewMessage::check`](outbox_core::NewMessage::check) with the default [`Limits`](outbox_core::Limits), the lock on the head row, the number,
//! the partition, a fresh id. Writers in Rust and in SQL may record for the same aggregates at the same time. The contract with its error codes
//! is in `docs/guide/11-other-languages.md`.
//!
//! Optional, and after the tables, whichever layout they have:
//!
//! ```
//! # async fn demo(db: sea_orm::DatabaseConnection) -> Result<(), sea_orm::DbErr> {
//! use outbox_sea_orm::migration;
//!
//! migration::migrate(&db).await?;
//! migration::writers::migrate(&db).await?;
//! # Ok(())
//! # }
//! ```
//!
//! Invariant: on PostgreSQL, MySQL and MariaDB it runs with the rights of its owner. A writer needs the right to execute it and none on the
//! tables, so no writer can pass by the checks.

use sea_orm::{DatabaseConnection, DbBackend, DbErr};
use sea_orm_migration::MigrationTrait;

use super::Migrations;
use super::template::{SqlMigration, SqlTemplates};
use crate::in_use;
use crate::names::{NameError, TableNames};

/// The table in which [`migrate`] remembers what was applied, without schema and prefix. It is another one than that of the tables, because
/// SeaORM's migrators refuse a table that names migrations which they do not know.
const TABLE: &str = "outbox_writer_migrations";

const UP: SqlTemplates = SqlTemplates {
    postgres: include_str!("sql/outbox.writers.postgres.sql"),
    mysql: include_str!("sql/outbox.writers.mysql.sql"),
    sqlite: include_str!("sql/outbox.writers.sqlite.sql"),
};

const DOWN: SqlTemplates = SqlTemplates {
    postgres: include_str!("sql/outbox.writers.postgres.down.sql"),
    mysql: include_str!("sql/outbox.writers.mysql.down.sql"),
    sqlite: include_str!("sql/outbox.writers.sqlite.down.sql"),
};

const WRITERS: Migrations = Migrations { table: TABLE, all };

/// The migrations of `outbox_record`, for the application's own migrator. Put them after those of the tables.
#[must_use]
pub fn migrations(names: &TableNames) -> Vec<Box<dyn MigrationTrait>> {
    in_use::note(names);
    WRITERS.boxed(names)
}

/// As plain SQL, or as the files `docs/sql/outbox.writers.*.sql`. For MySQL and MariaDB it is written for their command-line client: the body of
/// the procedure stands between two `DELIMITER` lines, which the server itself does not know.
///
/// # Errors
///
/// [`NameError`] if the database cannot hold such names.
pub fn sql(backend: DbBackend, names: &TableNames) -> Result<String, NameError> {
    WRITERS.sql(backend, names)
}

/// Creates or updates `outbox_record`. Several processes may start at once, as with [`super::migrate`].
///
/// # Errors
///
/// The database's error, also if the tables are missing on PostgreSQL. On MySQL and SQLite, missing tables are an error of the first call of
/// `outbox_record`.
pub async fn migrate(db: &DatabaseConnection) -> Result<(), DbErr> {
    migrate_with(db, &TableNames::new()).await
}

/// [`migrate`] with other table names. The schema and the prefix stand in front of `outbox_record` too.
///
/// # Errors
///
/// As [`migrate`], and an error of [`TableNames::check`] as [`DbErr::Custom`].
pub async fn migrate_with(db: &DatabaseConnection, names: &TableNames) -> Result<(), DbErr> {
    migrate_and_count(db, names).await.map(drop)
}

/// [`migrate_with`], and returns how many migrations this call has applied: 0 if another process had applied them before it got the lock.
///
/// # Errors
///
/// As [`migrate_with`].
pub async fn migrate_and_count(db: &DatabaseConnection, names: &TableNames) -> Result<u64, DbErr> {
    in_use::note(names);
    WRITERS.run(db, names).await
}

fn all(names: &TableNames) -> Vec<SqlMigration> {
    vec![SqlMigration::new(
        "outbox_writers_0001_record",
        UP,
        DOWN,
        names.clone(),
    )]
}
