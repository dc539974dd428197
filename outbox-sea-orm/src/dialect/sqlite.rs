//! SQL for SQLite 3.35 and later, where it differs in shape.
//!
//! There is one writer at a time, so no statement locks rows. Reads and writes that belong together are one statement.

use outbox_core::{Aggregate, Lease};
use sea_orm::{DbBackend, Statement};

use super::leases::push_leases;
use super::{Dialect, push_heads};

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

/// Which of these leases the owner still owns, extended.
pub(crate) fn renew(dialect: &Dialect, owner: uuid::Uuid, leases: &[Lease], ttl_micros: i64) -> Statement {
    let mut sql = dialect.sql(format!("UPDATE {} SET expires_at = ", dialect.leases));
    let ttl = sql.placeholder(ttl_micros);
    sql.push(&dialect.now_plus(&ttl))
        .push(" WHERE owner = ")
        .bind(owner)
        .push(&format!(" AND expires_at > {} AND ", dialect.now()));
    push_leases(&mut sql, leases);
    sql.push(" RETURNING partition_no, epoch");
    sql.statement()
}

/// Raises the head rows and returns them.
pub(crate) fn count_up(dialect: &Dialect, heads: &[(Aggregate, i64)]) -> Statement {
    let mut sql = dialect.sql(format!(
        "INSERT INTO {} (aggregate_type, aggregate_id, last_sequence, recorded_at) VALUES ",
        dialect.aggregates
    ));
    push_heads(&mut sql, dialect, heads);
    sql.push(
        " ON CONFLICT (aggregate_type, aggregate_id) \
         DO UPDATE SET last_sequence = last_sequence + excluded.last_sequence, recorded_at = excluded.recorded_at \
         RETURNING aggregate_type, aggregate_id, last_sequence",
    );
    sql.statement()
}
