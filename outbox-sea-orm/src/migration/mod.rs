//! The tables, as SeaORM migrations and as plain SQL.
//!
//! | you | use |
//! |---|---|
//! | have no migrator, or want no extra step | [`migrate`] at start-up |
//! | have a SeaORM migrator | [`migrations`] inside its `migrations()` |
//! | run SeaORM's command line for the outbox alone | [`OutboxMigrator`] |
//! | hand SQL to a database administrator | [`sql`], or the files in `docs/sql` |
//! | record millions of messages a day on PostgreSQL, and keep them for days | [`partitioned`] instead |
//! | also record from programs in other languages | [`writers`] in addition |
//!
//! The DDL is written by hand for each database, because generated column types are too small or too coarse on MySQL (64 KiB payloads,
//! whole seconds). Schemas are not created. Invariant: a migration that was released is never edited; a change is a new one.

pub mod partitioned;
mod repair;
mod run;
mod set;
mod template;
pub mod writers;

use sea_orm::{DatabaseConnection, DbBackend, DbErr, DynIden};
use sea_orm_migration::{MigrationTrait, MigratorTrait};

#[doc(hidden)]
pub use set::Migrations;
pub use template::{SqlMigration, SqlTemplates};

use crate::in_use;
use crate::names::{NameError, TableNames};

/// The table in which [`migrate`] and [`OutboxMigrator`] remember what was applied, without schema and prefix.
const TABLE: &str = "outbox_migrations";

const UP: SqlTemplates = SqlTemplates {
    postgres: concat!(
        include_str!("sql/outbox.postgres.messages.sql"),
        include_str!("sql/outbox.postgres.sql")
    ),
    mysql: include_str!("sql/outbox.mysql.sql"),
    sqlite: include_str!("sql/outbox.sqlite.sql"),
};

const DOWN: SqlTemplates = SqlTemplates {
    postgres: include_str!("sql/outbox.postgres.down.sql"),
    mysql: include_str!("sql/outbox.mysql.down.sql"),
    sqlite: include_str!("sql/outbox.sqlite.down.sql"),
};

/// The pauses, which both layouts have.
const PAUSES_UP: SqlTemplates = SqlTemplates {
    postgres: include_str!("sql/outbox.pauses.postgres.sql"),
    mysql: include_str!("sql/outbox.pauses.mysql.sql"),
    sqlite: include_str!("sql/outbox.pauses.sqlite.sql"),
};

const PAUSES_DOWN: SqlTemplates = SqlTemplates {
    postgres: include_str!("sql/outbox.pauses.postgres.down.sql"),
    mysql: include_str!("sql/outbox.pauses.mysql.down.sql"),
    sqlite: include_str!("sql/outbox.pauses.sqlite.down.sql"),
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

const TABLES: Migrations = Migrations { table: TABLE, all };

/// The migrations of the outbox with default table names, as a migrator of its own. It remembers in the table `outbox_migrations` which of
/// them were applied.
///
/// SeaORM's migrators race if several processes start on an empty database; [`migrate`] does the same work under a lock.
#[derive(Debug, Clone, Copy)]
pub struct OutboxMigrator;

impl MigratorTrait for OutboxMigrator {
    fn migrations() -> Vec<Box<dyn MigrationTrait>> {
        migrations(&TableNames::new())
    }

    fn migration_table_name() -> DynIden {
        TABLES.table_iden()
    }
}

/// The migrations of the outbox, for the application's own migrator. They depend on no others, and their names start with `outbox_`.
#[must_use]
pub fn migrations(names: &TableNames) -> Vec<Box<dyn MigrationTrait>> {
    in_use::note(names);
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

/// Creates or updates the tables, and inserts lease rows that are missing, as after a `TRUNCATE`. Several processes may start at once: the first one does the work, the others wait for it.
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
    in_use::note(names);
    let applied = TABLES.run(db, names).await?;
    repair::leases(db, names).await?;
    Ok(applied)
}

fn all(names: &TableNames) -> Vec<SqlMigration> {
    let create = SqlMigration::new("outbox_0001_create_tables", UP, DOWN, names.clone());
    vec![
        create,
        pauses("outbox_0002_create_pauses", names),
        operations("outbox_0003_create_operations", names),
    ]
}

/// The name differs by layout, so that the tables of one are not taken for those of the other.
fn pauses(name: &'static str, names: &TableNames) -> SqlMigration {
    SqlMigration::new(name, PAUSES_UP, PAUSES_DOWN, names.clone())
}

/// As [`pauses`], the table of operations.
fn operations(name: &'static str, names: &TableNames) -> SqlMigration {
    SqlMigration::new(name, OPERATIONS_UP, OPERATIONS_DOWN, names.clone())
}
