//! SQL for MySQL 8 and MariaDB 10.6 and later, where it differs in shape.
//!
//! There is no `UPDATE … RETURNING`, so what other databases do in one statement is lock, read, update here, in one
//! transaction under READ COMMITTED: under REPEATABLE READ, InnoDB's gap locks would block the writers' inserts.

use outbox_core::Aggregate;
use sea_orm::{DbBackend, Statement, Value};

use super::{Dialect, keys};

/// Locks free leases. SKIP LOCKED: what another relay is taking, or settling under, is not free.
pub(crate) fn lock_free_leases(dialect: &Dialect, max: u16) -> Statement {
    debug_assert_eq!(dialect.backend, DbBackend::MySql);
    let mut sql = dialect.sql(format!(
        "SELECT partition_no, epoch FROM {} WHERE owner IS NULL OR expires_at <= {} ORDER BY partition_no LIMIT ",
        dialect.leases,
        dialect.now()
    ));
    sql.bind(i64::from(max)).push(" FOR UPDATE SKIP LOCKED");
    sql.statement()
}

/// Takes leases that are locked (primary key).
pub(crate) fn take_leases(
    dialect: &Dialect,
    owner: uuid::Uuid,
    ttl_micros: i64,
    partitions: &[i64],
) -> Statement {
    let mut sql = dialect.sql(format!("UPDATE {} SET owner = ", dialect.leases));
    sql.bind(owner).push(", epoch = epoch + 1, expires_at = ");
    let ttl = sql.placeholder(ttl_micros);
    sql.push(&dialect.now_plus(&ttl)).push(" WHERE partition_no");
    sql.any(partitions);
    sql.statement()
}

/// Counts the head rows up. Locks them exclusively, in the order given (primary key).
pub(crate) fn count_up(dialect: &Dialect, heads: &[(Aggregate, i64)]) -> Statement {
    let mut sql = dialect.sql(format!(
        "INSERT INTO {} (aggregate_type, aggregate_id, last_sequence) VALUES ",
        dialect.aggregates
    ));
    sql.bind_rows(heads.iter().map(|(aggregate, count)| {
        let [aggregate_type, id] = keys(dialect, aggregate);
        [aggregate_type, id, Value::from(*count)]
    }));
    // VALUES() is deprecated on MySQL, but MariaDB does not know its replacement.
    sql.push(" ON DUPLICATE KEY UPDATE last_sequence = last_sequence + VALUES(last_sequence)");
    sql.statement()
}

/// Reads head rows that this transaction has just counted up. A locking read, because a plain one sees the transaction's snapshot, which
/// may be older than the rows.
pub(crate) fn read_heads(dialect: &Dialect, heads: &[(Aggregate, i64)]) -> Statement {
    let mut sql = dialect.sql(format!(
        "SELECT aggregate_type, aggregate_id, last_sequence FROM {} WHERE (aggregate_type, aggregate_id) IN (",
        dialect.aggregates
    ));
    sql.bind_rows(heads.iter().map(|(aggregate, _)| keys(dialect, aggregate)));
    sql.push(") FOR UPDATE");
    sql.statement()
}

/// Due messages, oldest first. Reads a snapshot, locks nothing.
///
/// FORCE INDEX keeps the planner from walking the primary key, which is the table with all its published rows. The conditions on halted and
/// delayed aggregates are scalar subqueries on purpose, one index look-up each: as joins or `NOT IN` they are buffered, or go
/// through all halted aggregates per row, and the whole backlog is sorted for each batch.
pub(crate) fn fetch(dialect: &Dialect, partitions: &[i64], excluding: &[Aggregate], limit: u32) -> Statement {
    let (messages, aggregates, now) = (&dialect.messages, &dialect.aggregates, dialect.now());
    let mut sql = dialect.sql(format!(
        "SELECT {columns} FROM {messages} m FORCE INDEX ({pending}) WHERE m.status = 0 AND m.partition_no",
        columns = dialect.columns(),
        pending = dialect.pending,
    ));
    sql.any(partitions);
    sql.push(&format!(
        " AND (m.available_at IS NULL OR m.available_at <= {now}) \
         AND (SELECT h.halted_by FROM {aggregates} h FORCE INDEX (PRIMARY) \
         WHERE h.aggregate_type = m.aggregate_type AND h.aggregate_id = m.aggregate_id) IS NULL \
         AND (m.sequence IS NULL OR (SELECT d.seq FROM {messages} d FORCE INDEX (outbox_messages_delayed) \
         WHERE d.delayed_aggregate = CONCAT(m.aggregate_type, x'00', m.aggregate_id) AND d.available_at > {now} \
         AND d.status = 0 AND d.seq < m.seq LIMIT 1) IS NULL)"
    ));
    if !excluding.is_empty() {
        sql.push(" AND (m.aggregate_type, m.aggregate_id) NOT IN (");
        sql.bind_rows(excluding.iter().map(|aggregate| keys(dialect, aggregate)));
        sql.push(")");
    }
    sql.push(" ORDER BY m.seq LIMIT ").bind(i64::from(limit));
    sql.statement()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::TableNames;

    #[test]
    fn keys_are_bound_as_bytes() {
        let dialect = Dialect::new(DbBackend::MySql, &TableNames::new());
        let statement = count_up(&dialect, &[(Aggregate::new("order", "ü"), 2)]);
        assert_eq!(
            statement.sql,
            "INSERT INTO outbox_aggregates (aggregate_type, aggregate_id, last_sequence) VALUES (?, ?, ?) \
             ON DUPLICATE KEY UPDATE last_sequence = last_sequence + VALUES(last_sequence)"
        );
        assert_eq!(
            statement.values.unwrap().0,
            [
                Value::from(b"order".to_vec()),
                Value::from("ü".as_bytes().to_vec()),
                Value::from(2_i64)
            ]
        );
    }
}
