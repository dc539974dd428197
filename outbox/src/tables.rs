//! Creates the tables of outbox and inbox together.
//!
//! Invariant: the outbox tables come first, because handlers may record events.

use outbox_sea_orm::TableNames;
use sea_orm::{DatabaseConnection, DbErr};
#[cfg(feature = "migrator")]
use sea_orm_migration::MigrationTrait;

/// Creates the tables of outbox and inbox, or updates them to this version. Call it at each start:
/// existing rows stay.
///
/// Several processes may call it at once: one process migrates under a database lock, and the
/// others wait. The tables `outbox_migrations` and `inbox_migrations` record the applied
/// migrations, not `seaql_migrations`. A service with a SeaORM migrator can use `migrations`
/// (feature `migrator`) instead, but not both in one database.
///
/// # Errors
///
/// The database's error. The outbox is migrated before the inbox, and may be complete. On
/// PostgreSQL and SQLite, the failed migration changes nothing. On MySQL, some tables may remain.
/// Calling again continues in every case.
///
/// # Cancellation
///
/// Dropping the future does not stop the running migration, but the inbox migration may not begin.
/// Calling again continues.
pub async fn migrate(db: &DatabaseConnection) -> Result<(), DbErr> {
    migrate_with(db, &TableNames::new()).await
}

/// As [`migrate`], with other table names.
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

/// The migrations of outbox and inbox, for the application's own migrator, which records them in
/// `seaql_migrations` (feature `migrator`).
///
/// These migrations depend on no other migrations. Their names start with `outbox_` and `inbox_`.
///
/// ```
/// use outbox::sea_orm::TableNames;
/// use sea_orm_migration::{MigrationTrait, MigratorTrait};
///
/// struct Migrator;
///
/// impl MigratorTrait for Migrator {
///     fn migrations() -> Vec<Box<dyn MigrationTrait>> {
///         // Add the service's own migrations to these.
///         outbox::migrations(&TableNames::new())
///     }
/// }
/// ```
#[cfg(feature = "migrator")]
#[must_use]
pub fn migrations(names: &TableNames) -> Vec<Box<dyn MigrationTrait>> {
    let mut migrations = outbox_sea_orm::migration::migrations(names);
    migrations.extend(outbox_inbox::migration::migrations(names));
    migrations
}
