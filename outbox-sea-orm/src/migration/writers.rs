//! `outbox_record` in SQL, for programs that are not written in Rust: a function on PostgreSQL, a procedure on MySQL and MariaDB, a view with a
//! trigger on SQLite.
//!
//! It records an event in the caller's transaction by the rules of [`record`](crate::record()): the checks of
//! [`NewMessage::check`](outbox_core::NewMessage::check) with the default [`Limits`](outbox_core::Limits), the lock on the head row, the number,
//! the partition, a fresh id. Writers in Rust and in SQL may record for the same aggregates at the same time. The contract with its error codes
//! is in `docs/guide/11-other-languages.md`.
//!
//! Optional, and after the tables:
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
//! If the tables are missing, the migration fails on PostgreSQL, and the first call of `outbox_record` on MySQL and SQLite. The
//! schema and the prefix of [`TableNames`] stand in front of `outbox_record` too.
//!
//! Invariant: on PostgreSQL, MySQL and MariaDB it runs with the rights of its owner. A writer needs the right to execute it and none on the
//! tables, so no writer can pass by the checks.

use sea_orm::DbBackend;

use super::{Migrations, SqlMigration};
use crate::names::{NameError, TableNames};

/// The table in which [`migrate`] remembers what was applied, without schema and prefix. It is another one than that of the tables, because
/// SeaORM's migrators refuse a table that names migrations which they do not know.
const TABLE: &str = "outbox_writer_migrations";

const WRITERS: Migrations = Migrations {
    table: TABLE,
    of_outbox: true,
    all,
};

crate::__migrations!(WRITERS);

/// As plain SQL, or as the files `docs/sql/outbox.writers.*.sql`. For MySQL and MariaDB it is written for their command-line client: the body of
/// the procedure stands between two `DELIMITER` lines, which the server itself does not know.
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
