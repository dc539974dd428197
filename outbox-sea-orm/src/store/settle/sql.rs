//! SQL that settles rows.

use outbox_core::Lease;
use outbox_core::store::RowKey;
use sea_orm::{DbBackend, Statement};

use crate::sql::{Dialect, Sql};
use crate::store::block::sql::waiting_where;
use crate::store::lease::sql::push_claimed;

/// Rows in partitions whose leases are locked.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rows<'a> {
    pub(crate) partitions: &'a [i64],
    pub(crate) keys: &'a [RowKey],
    pub(crate) waited: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Failure {
    pub(crate) dead: bool,
    pub(crate) attempt: bool,
    /// Error of the publish attempt. `None` if the attempt is not a failure.
    pub(crate) error: Option<String>,
    /// End of an unsequenced row's delay, in microseconds since 1970.
    pub(crate) until_micros: Option<i64>,
}

/// The usual settlement on PostgreSQL, in one round trip. Returns the partitions still owned.
///
/// Lease rows are locked in share mode by primary key, so a takeover waits; after its own wait,
/// PostgreSQL compares the epoch again. The scalar subquery locks the leases before the first
/// message row is read.
pub(crate) fn publish_claimed(dialect: &Dialect, leases: &[Lease], rows: &[RowKey], keep: bool) -> Statement {
    let mut sql = dialect.sql("");
    push_claimed(&mut sql, dialect, leases);
    let (messages, now) = (&dialect.messages, dialect.now());
    sql.push(&if keep {
        format!("), done AS (UPDATE {messages} SET status = 1, published_at = {now}")
    } else {
        format!("), done AS (DELETE FROM {messages}")
    });
    sql.push(" WHERE status = 0 AND ");
    dialect.push_rows_of(&mut sql, rows);
    sql.push(
        " AND (((SELECT bit_or(1::int8 << owned.partition_no::int4) FROM owned) >> partition_no::int4) & 1::int8) <> 0) \
         SELECT partition_no::int8 AS partition_no FROM owned",
    );
    sql.statement()
}

pub(crate) fn find(dialect: &Dialect, rows: Rows<'_>) -> Statement {
    let now = dialect.statement_now();
    // The query includes the oldest waiting row only if the settlement may need it.
    let is_delayed = format!("m.available_at > {now}");
    let needed = if rows.waited {
        &is_delayed
    } else {
        "m.sequence IS NOT NULL"
    };
    let oldest = format!(
        "CASE WHEN {needed} THEN (SELECT e.row_id FROM {} ORDER BY e.row_id LIMIT 1) END",
        waiting_where(dialect, "e", "m"),
    );
    let mut sql = dialect.sql(format!(
        "SELECT m.row_id, m.id, {} AS partition_no, {}, {} AS is_sequenced, \
         {} AS is_delayed, {} AS available_micros, {} AS now_micros, {oldest} AS oldest_row_id FROM {} m",
        dialect.int("m.partition_no"),
        dialect.key_columns("m"),
        dialect.flag("m.sequence IS NOT NULL"),
        dialect.flag(&is_delayed),
        dialect.micros_of_any("m.available_at"),
        dialect.micros(now),
        dialect.messages,
    ));
    push_rows(dialect, &mut sql, rows);
    sql.statement()
}

/// A kept row leaves the index of pending rows; no other index changes.
pub(crate) fn publish(dialect: &Dialect, rows: Rows<'_>, keep: bool) -> Statement {
    let (messages, by_primary, now) = (&dialect.messages, dialect.by_primary(), dialect.now());
    let mut sql = dialect.sql(match (keep, dialect.backend) {
        (true, _) => format!("UPDATE {messages}{by_primary} SET status = 1, published_at = {now}"),
        (false, DbBackend::MySql) => format!("DELETE m FROM {messages} m{by_primary}"),
        (false, _) => format!("DELETE FROM {messages}"),
    });
    push_rows(dialect, &mut sql, rows);
    sql.statement()
}

pub(crate) fn set_waiting(dialect: &Dialect, rows: Rows<'_>) -> Statement {
    let mut sql = dialect.sql(format!(
        "UPDATE {}{} SET status = 3",
        dialect.messages,
        dialect.by_primary()
    ));
    push_rows(dialect, &mut sql, rows);
    sql.statement()
}

pub(crate) fn fail(dialect: &Dialect, rows: Rows<'_>, failure: &Failure) -> Statement {
    let mut sql = dialect.sql(format!(
        "UPDATE {}{} SET status = {}",
        dialect.messages,
        dialect.by_primary(),
        if failure.dead { 2 } else { 3 }
    ));
    if failure.attempt {
        sql.push(", attempts = attempts + 1");
    }
    if let Some(error) = &failure.error {
        sql.push(", failures = failures + 1, last_error = ")
            .bind(error.as_str());
    }
    if let Some(until) = failure.until_micros {
        let until = sql.placeholder(until);
        sql.push(", available_at = ").push(&dialect.time(&until));
    }
    push_rows(dialect, &mut sql, rows);
    sql.statement()
}

fn push_rows(dialect: &Dialect, sql: &mut Sql, rows: Rows<'_>) {
    let status = if rows.waited { 3 } else { 0 };
    sql.push(&format!(" WHERE status = {status} AND "));
    dialect.push_rows_of(sql, rows.keys);
    sql.push(" AND ");
    dialect.push_partitions(sql, "partition_no", rows.partitions);
}
