//! The tables, as SeaORM migrations and as plain SQL.
//!
//! The same forms as in [`outbox_sea_orm::migration`]: [`migrate`] at start-up, [`migrations`] inside the application's own migrator,
//! [`InboxMigrator`] for SeaORM's command line, [`sql`] for database administrators. A service that consumes only needs these tables, one that
//! records follow-up events needs the outbox's as well. Invariant: a migration that was released is never edited; a change is a new one.

use outbox_sea_orm::migration::{SqlMigration, SqlTemplates, run};
use outbox_sea_orm::{NameError, TableNames};
use sea_orm::sea_query::{Alias, IntoIden};
use sea_orm::{DatabaseConnection, DbBackend, DbErr, DynIden};
use sea_orm_migration::{MigrationTrait, MigratorTrait};

/// Where [`migrate`] and [`InboxMigrator`] remember what was applied (before it stands the schema and prefix).
const TABLE: &str = "inbox_migrations";

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

/// The migrations of the inbox with default table names, as a migrator of its own with its own table, `inbox_migrations`.
///
/// SeaORM's migrators race if several processes start on an empty database; [`migrate`] does the same work under a lock.
#[derive(Debug, Clone, Copy)]
pub struct InboxMigrator;

impl MigratorTrait for InboxMigrator {
    fn migrations() -> Vec<Box<dyn MigrationTrait>> {
        migrations(&TableNames::new())
    }

    fn migration_table_name() -> DynIden {
        Alias::new(TABLE).into_iden()
    }
}

/// The migrations of the inbox, to be mounted into the application's own migrator. They do not depend on others, and their names start with
/// `inbox_`.
#[must_use]
pub fn migrations(names: &TableNames) -> Vec<Box<dyn MigrationTrait>> {
    all(names)
        .into_iter()
        .map(|migration| Box::new(migration) as Box<dyn MigrationTrait>)
        .collect()
}

/// The migrations as plain SQL, for who applies it by hand.
///
/// # Errors
///
/// [`NameError`] if the database cannot hold such names.
pub fn sql(backend: DbBackend, names: &TableNames) -> Result<String, NameError> {
    let migrations = all(names)
        .iter()
        .map(|migration| migration.up_sql(backend))
        .collect::<Result<Vec<_>, _>>()?;
    Ok(migrations.join("\n"))
}

/// Creates or updates the tables. Several processes may start at once: the first does the work, the others wait for it.
///
/// # Errors
///
/// The database's error. On PostgreSQL and SQLite nothing is changed then; on MySQL calling again continues.
pub async fn migrate(db: &DatabaseConnection) -> Result<(), DbErr> {
    migrate_with(db, &TableNames::new()).await
}

/// [`migrate`] with other table names.
///
/// # Errors
///
/// As [`migrate`], and an error of [`TableNames::check`] as [`DbErr::Custom`].
pub async fn migrate_with(db: &DatabaseConnection, names: &TableNames) -> Result<(), DbErr> {
    run(db, names, TABLE, all(names)).await
}

fn all(names: &TableNames) -> Vec<SqlMigration> {
    vec![SqlMigration::new(
        "inbox_0001_create_tables",
        UP,
        DOWN,
        names.clone(),
    )]
}
