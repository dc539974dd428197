//! The tables, as SeaORM migrations and as plain SQL.
//!
//! | you | use |
//! |---|---|
//! | have no migrator, or want it out of the way | [`migrate`] at start-up |
//! | have a SeaORM migrator | [`migrations`] inside its `migrations()` |
//! | run SeaORM's command line for the outbox alone | [`OutboxMigrator`] |
//! | hand SQL to a database administrator | [`sql`], or the files in `docs/sql` |
//! | record millions of messages a day on PostgreSQL, and keep them for days | [`partitioned`] instead |
//!
//! The DDL is hand-written per database, because generated column types are too small or too coarse on MySQL (64 KiB payloads, whole
//! seconds). Invariant: a migration that was released is never edited; a change is a new one. Absent: creating schemas.

pub mod partitioned;
mod run;
mod template;

use sea_orm::sea_query::{Alias, IntoIden};
use sea_orm::{DatabaseConnection, DbBackend, DbErr, DynIden};
use sea_orm_migration::{MigrationTrait, MigratorTrait};

pub use run::run;
pub use template::{SqlMigration, SqlTemplates};

use crate::names::{NameError, TableNames};

/// Where [`migrate`] and [`OutboxMigrator`] remember what was applied (before it stands the schema and prefix).
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

/// The migrations of the outbox with default table names, as a migrator of its own with its own table, `outbox_migrations`.
///
/// SeaORM's migrators race if several processes start on an empty database; [`migrate`] does the same work under a lock.
#[derive(Debug, Clone, Copy)]
pub struct OutboxMigrator;

impl MigratorTrait for OutboxMigrator {
    fn migrations() -> Vec<Box<dyn MigrationTrait>> {
        migrations(&TableNames::new())
    }

    fn migration_table_name() -> DynIden {
        Alias::new(TABLE).into_iden()
    }
}

/// The migrations of the outbox, to be mounted into the application's own migrator. They do not depend on others, and their names start with
/// `outbox_`.
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
        "outbox_0001_create_tables",
        UP,
        DOWN,
        names.clone(),
    )]
}
