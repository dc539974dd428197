//! The tables of outbox and inbox, made together.
//!
//! Both crates have the same ways to make their tables; here each way does both. Invariant: the outbox comes first, because handlers may record into it. Not here: SQL
//! for database administrators, see `docs/sql`, and daily tables, see [`partitioned`](crate::sea_orm::migration::partitioned).

use outbox_sea_orm::TableNames;
use sea_orm::{DatabaseConnection, DbErr};
use sea_orm_migration::MigrationTrait;

/// Creates or updates the tables of outbox and inbox. Call it at each start: what is there already stays as it is.
///
/// Several processes may call it at once. One of them does the work under a lock in the database, and the others wait for it. The tables `outbox_migrations` and
/// `inbox_migrations` remember what was done; `seaql_migrations` is not touched. A service with a SeaORM migrator can use [`migrations`] instead, but not
/// both ways in one database.
///
/// # Errors
///
/// The database's error. Outbox and inbox are migrated one after the other, and the outbox may be done when the inbox fails. Of the part that failed,
/// PostgreSQL and SQLite change nothing, and MySQL may keep some of its tables. Calling again continues in each case.
///
/// # Cancellation
///
/// Dropping the future stops nothing that has begun: the part in progress runs to its end in a task of its own. The other part may not begin. Calling again
/// continues.
pub async fn migrate(db: &DatabaseConnection) -> Result<(), DbErr> {
    migrate_with(db, &TableNames::new()).await
}

/// [`migrate`] with other table names.
///
/// # Errors
///
/// As [`migrate`], and an error of [`TableNames::check`] as [`DbErr::Custom`].
///
/// # Cancellation
///
/// As [`migrate`].
pub async fn migrate_with(db: &DatabaseConnection, names: &TableNames) -> Result<(), DbErr> {
    outbox_sea_orm::migration::migrate_with(db, names).await?;
    outbox_inbox::migration::migrate_with(db, names).await
}

/// The migrations of outbox and inbox, to be mounted into the application's own migrator, which remembers them in `seaql_migrations`.
///
/// They do not depend on others. Their names start with `outbox_` and `inbox_`.
///
/// ```
/// use outbox::sea_orm::TableNames;
/// use sea_orm_migration::{MigrationTrait, MigratorTrait};
///
/// struct Migrator;
///
/// impl MigratorTrait for Migrator {
///     fn migrations() -> Vec<Box<dyn MigrationTrait>> {
///         // Those of the service are added to these.
///         outbox::migrations(&TableNames::new())
///     }
/// }
/// ```
#[must_use]
pub fn migrations(names: &TableNames) -> Vec<Box<dyn MigrationTrait>> {
    let mut migrations = outbox_sea_orm::migration::migrations(names);
    migrations.extend(outbox_inbox::migration::migrations(names));
    migrations
}
