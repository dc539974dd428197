//! SQL for MySQL 8 and MariaDB 10.6 and later, where it differs in shape.
//!
//! There is no `UPDATE … RETURNING`. Where other databases need one statement, three are needed here: lock, read, update. They run in one
//! transaction under READ COMMITTED, because under REPEATABLE READ, InnoDB's gap locks would block the writers' inserts.

use outbox_core::Aggregate;
use sea_orm::{DbBackend, Statement};

use super::{Dialect, keys, push_heads};

/// Locks free leases. SKIP LOCKED: a lease that another relay is taking, or settles under, is not free.
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

/// Raises the head rows. Locks them exclusively, in the order given (primary key).
pub(crate) fn count_up(dialect: &Dialect, heads: &[(Aggregate, i64)]) -> Statement {
    let mut sql = dialect.sql(format!(
        "INSERT INTO {} (aggregate_type, aggregate_id, last_sequence, recorded_at) VALUES ",
        dialect.aggregates
    ));
    push_heads(&mut sql, dialect, heads);
    // VALUES() is deprecated on MySQL, but MariaDB does not know its replacement.
    sql.push(
        " ON DUPLICATE KEY UPDATE last_sequence = last_sequence + VALUES(last_sequence), recorded_at = VALUES(recorded_at)",
    );
    sql.statement()
}

/// Reads head rows that this transaction has just raised. A locking read, because a plain one sees the transaction's snapshot, which may be
/// older than the rows. Look-ups in the primary key: for many heads the optimizer would scan the table, and so wait for and lock those of others.
pub(crate) fn read_heads(dialect: &Dialect, heads: &[(Aggregate, i64)]) -> Statement {
    let mut sql = dialect.sql(format!(
        "SELECT aggregate_type, aggregate_id, last_sequence FROM {} FORCE INDEX (PRIMARY) \
         WHERE (aggregate_type, aggregate_id) IN (",
        dialect.aggregates
    ));
    sql.bind_rows(heads.iter().map(|(aggregate, _)| keys(dialect, aggregate)));
    sql.push(") FOR UPDATE");
    sql.statement()
}

impl Dialect {
    /// Lets the announcement of the relay that owns this partition expire a microsecond later
    /// (primary keys).
    pub(crate) fn touch_relay(&self, partition: i64) -> Statement {
        let mut sql = self.sql(format!(
            "UPDATE {} SET expires_at = TIMESTAMPADD(MICROSECOND, 1, expires_at) \
             WHERE owner = (SELECT lease.owner FROM {} lease WHERE lease.partition_no = ",
            self.relays, self.leases
        ));
        sql.bind(partition).push(")");
        sql.statement()
    }

    /// Lets the lease of this partition expire a microsecond later (primary key).
    pub(crate) fn touch_lease(&self, partition: i64) -> Statement {
        let mut sql = self.sql(format!(
            "UPDATE {} SET expires_at = TIMESTAMPADD(MICROSECOND, 1, expires_at) WHERE partition_no = ",
            self.leases
        ));
        sql.bind(partition);
        sql.statement()
    }
}

/// How many bytes the server takes at a time.
pub(crate) fn packet_bytes_max() -> Statement {
    Statement::from_string(
        DbBackend::MySql,
        "SELECT CAST(@@max_allowed_packet AS SIGNED) AS packet",
    )
}

#[cfg(test)]
mod tests {
    use sea_orm::Value;

    use super::*;
    use crate::names::TableNames;

    #[test]
    fn keys_are_bound_as_bytes() {
        let dialect = Dialect::new(DbBackend::MySql, &TableNames::new());
        let statement = count_up(&dialect, &[(Aggregate::new("order", "ü"), 2)]);
        assert_eq!(
            statement.sql,
            "INSERT INTO outbox_aggregates (aggregate_type, aggregate_id, last_sequence, recorded_at) \
             VALUES (?, ?, ?, UTC_TIMESTAMP(6)) ON DUPLICATE KEY UPDATE \
             last_sequence = last_sequence + VALUES(last_sequence), recorded_at = VALUES(recorded_at)"
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
