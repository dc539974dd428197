//! `outbox_record` in SQL, for other languages: a function on PostgreSQL, a procedure on MySQL and
//! MariaDB, a view with a trigger on SQLite.
//!
//! It records an event in the caller's transaction by the rules of [`record`](crate::record()),
//! with the default [`Limits`](outbox_core::Limits). Writers in Rust and SQL may record for the
//! same aggregates concurrently. `docs/guide/11-other-languages.md` has the contract and its error
//! codes.
//!
//! Optional. Run it after [`migration::migrate`](super::migrate):
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
//! If the tables are missing, the migration fails on PostgreSQL; on MySQL and SQLite, the first
//! call fails. Schema and prefix of [`TableNames`] apply.
//!
//! Invariant: on PostgreSQL, MySQL and MariaDB it runs with the privileges of its owner. A writer
//! needs only EXECUTE, and cannot bypass the checks.

use sea_orm::DbBackend;

use super::{Migrations, SqlMigration};
use crate::names::{NameError, TableNames};

/// Separate, because SeaORM's migrators reject a table with unknown migrations.
const TABLE: &str = "outbox_writer_migrations";

const WRITERS: Migrations = Migrations {
    table: TABLE,
    of_outbox: true,
    all,
};

crate::__migrations!(WRITERS);

/// Returns plain SQL, as in `docs/sql/outbox.writers.*.sql`. For MySQL and MariaDB it needs the
/// command-line client, because of `DELIMITER`.
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
