//! The outbox tables, as migrations and as plain SQL.
//!
//! | you | use |
//! |---|---|
//! | have no migrator | [`migrate`] at start-up |
//! | have a SeaORM migrator | `migrations` inside its `migrations()` (feature `migrator`) |
//! | pass SQL to a database administrator | [`sql`], or the files in `docs/sql` |
//! | also record from other languages | [`writers`] in addition |
//!
//! DDL is hand-written: SeaORM's types hold only 64 KiB and whole seconds on MySQL. Schemas are not
//! created.
//!
//! Invariant: a released migration is never edited.

#[cfg(feature = "migrator")]
mod migrator;
mod repair;
mod runner;
mod set;
mod template;
pub mod writers;

use sea_orm::DbBackend;

#[doc(hidden)]
pub use set::Migrations;
pub use template::{SqlMigration, SqlTemplates};

use crate::__templates as templates;
use crate::names::{NameError, TableNames};

const TABLE: &str = "outbox_migrations";

const TABLES: Migrations = Migrations {
    table: TABLE,
    of_outbox: true,
    all,
};

crate::__migrations!(TABLES);

/// Plain SQL of all migrations.
///
/// # Errors
///
/// [`NameError`] if the database does not support the schema.
pub fn sql(backend: DbBackend, names: &TableNames) -> Result<String, NameError> {
    TABLES.sql(backend, names)
}

fn all(names: &TableNames) -> Vec<SqlMigration> {
    vec![
        SqlMigration::new("outbox_0001_create_tables", templates!("outbox"), names),
        SqlMigration::new("outbox_0002_create_pauses", templates!("outbox.pauses"), names),
        SqlMigration::new("outbox_0003_create_operations", templates!("operations"), names),
    ]
}
