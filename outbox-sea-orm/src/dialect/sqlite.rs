//! SQL for SQLite 3.35 and later, where it differs in shape.
//!
//! There is one writer at a time, so no statement here locks rows. What must see and change in one go is one statement.

use outbox_core::Aggregate;
use sea_orm::{DbBackend, Statement, Value};

use super::{Dialect, keys};

/// Takes free leases (primary key scan over 64 rows) and returns them.
pub(crate) fn acquire(dialect: &Dialect, owner: uuid::Uuid, ttl_micros: i64, max: u16) -> Statement {
    debug_assert_eq!(dialect.backend, DbBackend::Sqlite);
    let mut sql = dialect.sql(format!("UPDATE {} SET owner = ", dialect.leases));
    sql.bind(owner).push(", epoch = epoch + 1, expires_at = ");
    let ttl = sql.placeholder(ttl_micros);
    sql.push(&dialect.now_plus(&ttl));
    sql.push(&format!(
        " WHERE partition_no IN (SELECT partition_no FROM {} WHERE owner IS NULL OR expires_at <= {} \
         ORDER BY partition_no LIMIT ",
        dialect.leases,
        dialect.now()
    ));
    sql.bind(i64::from(max)).push(") RETURNING partition_no, epoch");
    sql.statement()
}

/// Counts the head rows up and returns them.
pub(crate) fn count_up(dialect: &Dialect, heads: &[(Aggregate, i64)]) -> Statement {
    let mut sql = dialect.sql(format!(
        "INSERT INTO {} (aggregate_type, aggregate_id, last_sequence) VALUES ",
        dialect.aggregates
    ));
    sql.bind_rows(heads.iter().map(|(aggregate, count)| {
        let [aggregate_type, id] = keys(dialect, aggregate);
        [aggregate_type, id, Value::from(*count)]
    }));
    sql.push(
        " ON CONFLICT (aggregate_type, aggregate_id) \
         DO UPDATE SET last_sequence = last_sequence + excluded.last_sequence \
         RETURNING aggregate_type, aggregate_id, last_sequence",
    );
    sql.statement()
}

/// Due messages, oldest first.
///
/// `INDEXED BY` keeps the planner from walking `seq` itself, which is the table with all its published rows. Both anti-joins are
/// set or index look-ups per row.
pub(crate) fn fetch(dialect: &Dialect, partitions: &[i64], excluding: &[Aggregate], limit: u32) -> Statement {
    let (messages, aggregates, now) = (&dialect.messages, &dialect.aggregates, dialect.now());
    let mut sql = dialect.sql(format!(
        "SELECT {columns} FROM {messages} m INDEXED BY {pending} WHERE m.status = 0 AND m.partition_no",
        columns = dialect.columns(),
        pending = dialect.pending,
    ));
    sql.any(partitions);
    sql.push(&format!(
        " AND (m.available_at IS NULL OR m.available_at <= {now}) \
         AND (m.aggregate_type, m.aggregate_id) NOT IN \
         (SELECT aggregate_type, aggregate_id FROM {aggregates} WHERE halted_by IS NOT NULL) \
         AND (m.sequence IS NULL OR NOT EXISTS (SELECT 1 FROM {messages} d WHERE d.status = 0 \
         AND d.available_at IS NOT NULL AND d.available_at > {now} AND d.sequence IS NOT NULL \
         AND d.aggregate_type = m.aggregate_type AND d.aggregate_id = m.aggregate_id AND d.seq < m.seq))"
    ));
    if !excluding.is_empty() {
        sql.push(" AND (m.aggregate_type, m.aggregate_id) NOT IN (VALUES ");
        sql.bind_rows(excluding.iter().map(|aggregate| keys(dialect, aggregate)));
        sql.push(")");
    }
    sql.push(" ORDER BY m.seq LIMIT ").bind(i64::from(limit));
    sql.statement()
}
