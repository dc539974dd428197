//! The tables, as migrations and as plain SQL, like [`outbox_sea_orm::migration`]: [`migrate`] at
//! start-up, `migrations` inside the application's own migrator (feature `migrator`), and [`sql`]
//! for database administrators. Handlers that record follow-up events also need the outbox tables.

use outbox_sea_orm::migration::{Migrations, SqlMigration};
use outbox_sea_orm::{__templates as templates, NameError, TableNames};
use sea_orm::DbBackend;

const TABLES: Migrations = Migrations {
    table: "inbox_migrations",
    of_outbox: false,
    all,
};

outbox_sea_orm::__migrations!(TABLES);

/// The migrations as plain SQL.
///
/// # Errors
///
/// [`NameError`] if a table name is invalid or too long for the database.
pub fn sql(backend: DbBackend, names: &TableNames) -> Result<String, NameError> {
    TABLES.sql(backend, names)
}

fn all(names: &TableNames) -> Vec<SqlMigration> {
    vec![
        SqlMigration::new("inbox_0001_create_tables", templates!("inbox"), names),
        SqlMigration::new("inbox_0002_pauses", templates!("pauses"), names),
        SqlMigration::new("inbox_0003_create_operations", templates!("operations"), names),
    ]
}
