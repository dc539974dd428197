//! The other layout on PostgreSQL: messages partitioned by day, so that old ones are dropped with their day and not one by one.
//!
//! Choose it before the first message, if you record millions of messages a day and keep them for days: deleting rows one by one then costs about as
//! much writing and vacuuming as publishing them, and dropping a day costs nothing. With less, or if the relay deletes what it has
//! published ([`Retention::Delete`](outbox_core::Retention)), the ordinary layout is simpler and as fast. Recording, relaying and operating
//! are the same with both; [`SqlStore`](crate::SqlStore) finds out which one it has.
//!
//! What is different:
//!
//! * **Retention.** A day (UTC) is dropped when all of it is older than the retention, so messages stay up to a day longer. What is not published,
//!   or was published within the retention, survives: it moves to the default partition, from which it is deleted row by row. A day with more than
//!   10,000 of such messages stays whole until there are fewer. With a retention of less than a day, rows are deleted one by one as in the
//!   ordinary layout, before their day is dropped.
//! * **Locks.** Dropping a day locks the messages against everybody for some milliseconds. It waits half a second for that lock, while new
//!   statements queue behind it, and tries again a minute later: a transaction that stays open for longer and has touched the outbox
//!   (`pg_dump`, for one) postpones it.
//! * **Rights.** The relay makes and drops days, so its user must own the tables (or be a member of the role that does), and may create tables in
//!   their schema. Writers need `INSERT` on `outbox_dedup_keys` as well, and whoever deletes messages `DELETE`.
//! * **Uniqueness.** Deduplication keys are unique over all days, by a trigger. Message ids are not checked: two rows can have the same one, if the same
//!   [`NewMessage`](outbox_core::NewMessage) is recorded twice.
//! * **Days.** Today's partition and three more are made by the relay's purge, each minute. With [`Retention::Keep`](outbox_core::Retention)
//!   nothing purges: call `SELECT outbox_make_day(current_date + n) FROM generate_series(1, 3) AS n` daily yourself. If nobody does, nothing fails: messages go to the default partition.
//! * **Archives.** A day that you detach or drop yourself is not touched: `ALTER TABLE outbox_messages DETACH PARTITION outbox_messages_20260102`, if nothing in
//!   it is pending. Nor is a partition whose name is not of that form.
//! * **`pg_dump`.** A restored dump has its days as they were. Days that are missing meanwhile are made, and old ones dropped, by the next purge. Restore data without
//!   schema with `--disable-triggers`, else the keys of rows are recorded twice.
//!
//! Invariant: the columns are those of the ordinary layout. Absent: converting one layout into the other. Use a second
//! [prefix](TableNames::with_prefix) and let the first outbox drain.

use sea_orm::{DatabaseConnection, DbBackend, DbErr};
use sea_orm_migration::MigrationTrait;

use super::template::{SqlMigration, SqlTemplates};
use super::{TABLE, run};
use crate::names::{NameError, TableNames};

const UP: SqlTemplates = for_postgres(concat!(
    include_str!("sql/outbox.postgres.partitioned.sql"),
    include_str!("sql/outbox.postgres.sql")
));

const DOWN: SqlTemplates = for_postgres(include_str!("sql/outbox.postgres.partitioned.down.sql"));

const fn for_postgres(postgres: &'static str) -> SqlTemplates {
    SqlTemplates {
        postgres,
        mysql: "",
        sqlite: "",
    }
}

/// As [`super::migrations`]. On other databases than PostgreSQL they fail with [`DbErr::BackendNotSupported`], and nothing is changed.
#[must_use]
pub fn migrations(names: &TableNames) -> Vec<Box<dyn MigrationTrait>> {
    all(names)
        .into_iter()
        .map(|migration| Box::new(migration) as Box<dyn MigrationTrait>)
        .collect()
}

/// As [`super::sql`], for PostgreSQL.
///
/// # Errors
///
/// [`NameError`] if the database cannot hold such names.
pub fn sql(names: &TableNames) -> Result<String, NameError> {
    let migrations = all(names)
        .iter()
        .map(|migration| migration.up_sql(DbBackend::Postgres))
        .collect::<Result<Vec<_>, _>>()?;
    Ok(migrations.join("\n"))
}

/// As [`super::migrate`].
///
/// # Errors
///
/// [`DbErr::BackendNotSupported`] on other databases than PostgreSQL, else the database's error. Nothing is changed then; so it is
/// if the tables exist in the ordinary layout.
pub async fn migrate(db: &DatabaseConnection) -> Result<(), DbErr> {
    migrate_with(db, &TableNames::new()).await
}

/// [`migrate`] with other table names.
///
/// # Errors
///
/// As [`migrate`].
pub async fn migrate_with(db: &DatabaseConnection, names: &TableNames) -> Result<(), DbErr> {
    run(db, names, TABLE, all(names)).await
}

fn all(names: &TableNames) -> Vec<SqlMigration> {
    let create = SqlMigration::new("outbox_0001_create_partitioned_tables", UP, DOWN, names.clone());
    vec![create.for_postgres()]
}
