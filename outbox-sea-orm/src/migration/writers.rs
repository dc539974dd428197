//! `outbox_record` in SQL, for programs in other languages: a function on PostgreSQL, a procedure
//! on MySQL and MariaDB, a view with a trigger on SQLite.
//!
//! It records an event in the caller's transaction by the rules of [`record`](crate::record()): the
//! checks of [`NewMessage::check`](outbox_core::NewMessage::check) with the default
//! [`Limits`](outbox_core::Limits), the lock on the head row, number, partition and a new id.
//! Writers in Rust and SQL may record for the same aggregates concurrently.
//! `docs/guide/11-other-languages.md` has the contract with its error codes.
//!
//! This migration is optional, and runs after [`migration::migrate`](super::migrate):
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
//! If the tables are missing, the migration fails on PostgreSQL. On MySQL and SQLite, the first
//! call of `outbox_record` fails. Schema and prefix of [`TableNames`] also apply to
//! `outbox_record`.
//!
//! Invariant: on PostgreSQL, MySQL and MariaDB, `outbox_record` runs with the privileges of its
//! owner. A writer needs EXECUTE but no table privileges, so it cannot bypass the checks.

use sea_orm::DbBackend;

use super::{Migrations, SqlMigration};
use crate::names::{NameError, TableNames};

/// Without schema and prefix. Separate from the table of the other migrations, because SeaORM's
/// migrators reject a table with unknown migrations.
const TABLE: &str = "outbox_writer_migrations";

const WRITERS: Migrations = Migrations {
    table: TABLE,
    of_outbox: true,
    all,
};

crate::__migrations!(WRITERS);

/// Returns plain SQL, as in the files `docs/sql/outbox.writers.*.sql`. For MySQL and MariaDB it
/// needs their command-line client, because of its `DELIMITER` lines.
///
/// # Errors
///
/// [`NameError`] if the database cannot hold such names.
pub fn sql(backend: DbBackend, names: &TableNames) -> Result<String, NameError> {
    WRITERS.sql(backend, names)
}

fn all(names: &TableNames) -> Vec<SqlMigration> {
    let templates = [
        crate::__templates!("outbox.writers", ".sql"),
        crate::__templates!("outbox.writers", ".down.sql"),
    ];
    vec![SqlMigration::new("outbox_writers_0001_record", templates, names)]
}
