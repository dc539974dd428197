//! The tables, as migrations and as plain SQL, like [`outbox_sea_orm::migration`]: [`migrate`] at
//! start-up, `migrations` inside the application's own migrator, `InboxMigrator` for SeaORM's
//! command line (feature `migrator`), and [`sql`] for database administrators. Handlers that record
//! follow-up events also need the outbox tables.

use outbox_sea_orm::migration::{Migrations, SqlMigration, SqlTemplates};
use outbox_sea_orm::{__templates as templates, NameError, TableNames};
use sea_orm::DbBackend;
#[cfg(feature = "migrator")]
use sea_orm::DynIden;
#[cfg(feature = "migrator")]
use sea_orm_migration::{MigrationTrait, MigratorTrait};

const FIRST: [SqlTemplates; 2] = [templates!("inbox", ".sql"), templates!("inbox", ".down.sql")];
const PAUSES: [SqlTemplates; 2] = [templates!("pauses", ".sql"), templates!("pauses", ".down.sql")];
const OPERATIONS: [SqlTemplates; 2] = [
    templates!("operations", ".sql"),
    templates!("operations", ".down.sql"),
];

const TABLES: Migrations = Migrations {
    table: "inbox_migrations",
    of_outbox: false,
    all,
};

/// A migrator of the inbox tables with default names. It records applied migrations in the table
/// `inbox_migrations`.
///
/// SeaORM's migrators race on an empty database; [`migrate`] takes a lock.
#[cfg(feature = "migrator")]
#[derive(Debug, Clone, Copy)]
pub struct InboxMigrator;

#[cfg(feature = "migrator")]
impl MigratorTrait for InboxMigrator {
    fn migrations() -> Vec<Box<dyn MigrationTrait>> {
        migrations(&TableNames::new())
    }

    fn migration_table_name() -> DynIden {
        TABLES.table_iden()
    }
}

outbox_sea_orm::__migrations!(TABLES);

/// The migrations as plain SQL.
///
/// # Errors
///
/// [`NameError`] if the database cannot hold such names.
pub fn sql(backend: DbBackend, names: &TableNames) -> Result<String, NameError> {
    TABLES.sql(backend, names)
}

fn all(names: &TableNames) -> Vec<SqlMigration> {
    vec![
        SqlMigration::new("inbox_0001_create_tables", FIRST, names),
        SqlMigration::new("inbox_0002_pauses", PAUSES, names),
        SqlMigration::new("inbox_0003_create_operations", OPERATIONS, names),
    ]
}
