//! The other layout on PostgreSQL: one table of messages per day, so that purging drops tables instead of rows.
//!
//! Choose it before the first message if you record millions of messages a day and keep them for days. Deleting rows one by one then costs
//! about as much writing and vacuuming as publishing them; dropping a table costs nothing. With fewer messages, or if the relay deletes
//! what it has published ([`Retention::Delete`](outbox_core::Retention)), the ordinary layout is simpler and as fast. Recording, relaying
//! and operating are the same with both; [`SqlStore`](crate::SqlStore) finds out which layout it has.
//!
//! The differences:
//!
//! * **Retention.** A day (UTC) is dropped when all of it is older than the retention, so messages stay up to a day longer. Messages that
//!   are unpublished, or were published within the retention, survive: they move to the default partition, where they are deleted row by
//!   row. A day with more than 10,000 of them stays whole until there are fewer. With a retention of less than a day, rows are deleted one
//!   by one as in the ordinary layout, before their day is dropped.
//! * **Locks.** Dropping a day locks the messages against everybody for some milliseconds. It waits at most half a second for that lock,
//!   while new statements queue behind it, and otherwise tries again a minute later. A transaction that has touched the outbox and stays
//!   open for longer (`pg_dump`, for example) postpones it. Making a day reads the default partition once under a lock; relays wait for
//!   that, and writers if their own day has no table. It is milliseconds, unless nobody has made days for long.
//! * **Rights.** The relay makes and drops days, so its user must own the tables (or be a member of the role that owns them) and have CREATE
//!   on their schema. Writers also need `USAGE` on the sequence `outbox_messages_row_ids`.
//! * **Uniqueness.** Message ids are not checked: if the same
//!   [`NewMessage`](outbox_core::NewMessage) is recorded twice, two rows have its id.
//! * **Days.** The relay's purge makes the tables of today and of the next three days, each minute. With
//!   [`Retention::Keep`](outbox_core::Retention) nothing purges: call
//!   `SELECT outbox_make_day(current_date + n) FROM generate_series(1, 3) AS n` once a day yourself. If nobody does, nothing fails: messages
//!   go to the default partition.
//! * **Archives.** You may detach or drop a day in which nothing is pending:
//!   `ALTER TABLE outbox_messages DETACH PARTITION outbox_messages_20260102`. The purge leaves detached tables alone, and partitions whose
//!   names have another form.
//! * **`pg_dump`.** A restored dump has its days as they were. The next purge makes the missing ones and drops the old ones.
//!
//! On other databases than PostgreSQL the migrations fail with [`DbErr::BackendNotSupported`](sea_orm::DbErr::BackendNotSupported)
//! and change nothing. They also fail if the tables exist in the ordinary layout.
//!
//! Invariant: the columns are those of the ordinary layout. One layout is not converted into the other: use a second
//! [prefix](TableNames::with_prefix), and let the first outbox drain.

use sea_orm::DbBackend;

use super::template::{SqlMigration, SqlTemplates};
use super::{Migrations, OPERATIONS, PAUSES, TABLE};
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

const TABLES: Migrations = Migrations {
    table: TABLE,
    of_outbox: true,
    all,
};

crate::__migrations!(TABLES);

/// As [`super::sql`], for PostgreSQL.
///
/// # Errors
///
/// [`NameError`] if the database cannot hold such names.
pub fn sql(names: &TableNames) -> Result<String, NameError> {
    TABLES.sql(DbBackend::Postgres, names)
}

/// The names differ from the names of the other layout, so that the tables of one are not taken for the tables of the other.
fn all(names: &TableNames) -> Vec<SqlMigration> {
    let migrations = [
        SqlMigration::new("outbox_0001_create_partitioned_tables", [UP, DOWN], names),
        SqlMigration::new("outbox_0002_create_pauses_with_days", PAUSES, names),
        SqlMigration::new("outbox_0003_create_operations_with_days", OPERATIONS, names),
    ];
    migrations.map(SqlMigration::for_postgres).into()
}
