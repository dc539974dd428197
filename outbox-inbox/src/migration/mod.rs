//! The tables, as SeaORM migrations and as plain SQL.
//!
//! The same forms as in [`outbox_sea_orm::migration`]: [`migrate`] at start-up, [`migrations`] inside the application's own migrator,
//! [`InboxMigrator`] for SeaORM's command line, [`sql`] for database administrators. A service that only consumes needs these tables; one
//! whose handlers record follow-up events also needs the tables of the outbox. Invariant: a migration that was released is never edited; a
//! change is a new one.

use outbox_sea_orm::migration::{Migrations, SqlMigration, SqlTemplates};
use outbox_sea_orm::{NameError, TableNames};
use sea_orm::{DatabaseConnection, DbBackend, DbErr, DynIden};
use sea_orm_migration::{MigrationTrait, MigratorTrait};

const UP: SqlTemplates = SqlTemplates {
    postgres: include_str!("sql/inbox.postgres.sql"),
    mysql: include_str!("sql/inbox.mysql.sql"),
    sqlite: include_str!("sql/inbox.sqlite.sql"),
};

const DOWN: SqlTemplates = SqlTemplates {
    postgres: include_str!("sql/inbox.postgres.down.sql"),
    mysql: include_str!("sql/inbox.mysql.down.sql"),
    sqlite: include_str!("sql/inbox.sqlite.down.sql"),
};

const PAUSES_UP: SqlTemplates = SqlTemplates {
    postgres: include_str!("sql/pauses.postgres.sql"),
    mysql: include_str!("sql/pauses.mysql.sql"),
    sqlite: include_str!("sql/pauses.sqlite.sql"),
};

const PAUSES_DOWN: SqlTemplates = SqlTemplates {
    postgres: include_str!("sql/pauses.postgres.down.sql"),
    mysql: include_str!("sql/pauses.mysql.down.sql"),
    sqlite: include_str!("sql/pauses.sqlite.down.sql"),
};

const OPERATIONS_UP: SqlTemplates = SqlTemplates {
    postgres: include_str!("sql/operations.postgres.sql"),
    mysql: include_str!("sql/operations.mysql.sql"),
    sqlite: include_str!("sql/operations.sqlite.sql"),
};

const OPERATIONS_DOWN: SqlTemplates = SqlTemplates {
    postgres: include_str!("sql/operations.postgres.down.sql"),
    mysql: include_str!("sql/operations.mysql.down.sql"),
    sqlite: include_str!("sql/operations.sqlite.down.sql"),
};

const TABLES: Migrations = Migrations {
    table: "inbox_migrations",
    all,
};

/// The migrations of the inbox with default table names, as a migrator of its own. It remembers in the table `inbox_migrations` which of
/// them were applied.
///
/// SeaORM's migrators race if several processes start on an empty database; [`migrate`] does the same work under a lock.
#[derive(Debug, Clone, Copy)]
pub struct InboxMigrator;

impl MigratorTrait for InboxMigrator {
    fn migrations() -> Vec<Box<dyn MigrationTrait>> {
        migrations(&TableNames::new())
    }

    fn migration_table_name() -> DynIden {
        TABLES.table_iden()
    }
}

/// The migrations of the inbox, for the application's own migrator. They depend on no others, and their names start with `inbox_`.
#[must_use]
pub fn migrations(names: &TableNames) -> Vec<Box<dyn MigrationTrait>> {
    TABLES.boxed(names)
}

/// The migrations as plain SQL, for those who apply it by hand.
///
/// # Errors
///
/// [`NameError`] if the database cannot hold such names.
pub fn sql(backend: DbBackend, names: &TableNames) -> Result<String, NameError> {
    TABLES.sql(backend, names)
}

/// Creates or updates the tables. Several processes may start at once: the first one does the work, the others wait for it.
///
/// # Errors
///
/// The database's error. On PostgreSQL and SQLite nothing has changed then; on MySQL, call again to continue.
pub async fn migrate(db: &DatabaseConnection) -> Result<(), DbErr> {
    migrate_with(db, &TableNames::new()).await
}

/// [`migrate`] with other table names.
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
    TABLES.run(db, names).await
}

fn all(names: &TableNames) -> Vec<SqlMigration> {
    let create = SqlMigration::new("inbox_0001_create_tables", UP, DOWN, names.clone());
    let pauses = SqlMigration::new("inbox_0002_pauses", PAUSES_UP, PAUSES_DOWN, names.clone());
    let name = "inbox_0003_create_operations";
    let operations = SqlMigration::new(name, OPERATIONS_UP, OPERATIONS_DOWN, names.clone());
    vec![create, pauses, operations]
}
