//! `outbox_record` in SQL, for other languages: a function (PostgreSQL), a procedure (MySQL,
//! MariaDB), or a view with a trigger (SQLite).
//!
//! `outbox_record` records an event in the caller's transaction by the rules of
//! [`record`](crate::record()), with the default [`Limits`](outbox_core::Limits). Writers in Rust
//! and SQL may share aggregates. `docs/guide/11-other-languages.md` has the contract and its error
//! codes.
//!
//! This migration is optional. Run it after [`migration::migrate`](super::migrate):
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
//! If the tables are missing, PostgreSQL fails the migration. MySQL and SQLite fail the first call.
//! Schema and prefix of [`TableNames`] apply.
//!
//! Invariant: on PostgreSQL and MySQL, `outbox_record` runs with its owner's privileges. A writer
//! needs only EXECUTE, and cannot bypass the checks.

use sea_orm::DbBackend;

use super::{Migrations, SqlMigration};
use crate::names::{NameError, TableNames};

/// SeaORM's migrators reject a table with unknown migrations.
const TABLE: &str = "outbox_writer_migrations";

const WRITERS: Migrations = Migrations {
    table: TABLE,
    of_outbox: true,
    all,
};

crate::__migrations!(WRITERS);

/// Plain SQL, as in `docs/sql/outbox.writers.*.sql`. MySQL and MariaDB need the command-line
/// client, because of `DELIMITER`.
///
/// # Errors
///
/// [`NameError`] if the database does not support the schema.
pub fn sql(backend: DbBackend, names: &TableNames) -> Result<String, NameError> {
    WRITERS.sql(backend, names)
}

fn all(names: &TableNames) -> Vec<SqlMigration> {
    let templates = crate::__templates!("outbox.writers");
    vec![SqlMigration::new("outbox_writers_0001_record", templates, names)]
}
