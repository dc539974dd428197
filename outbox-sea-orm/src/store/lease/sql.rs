//! SQL of leases.

use outbox_core::Lease;
use outbox_core::message::PARTITIONS;
use outbox_core::store::LEASE_TTL_MAX;
use sea_orm::{DbBackend, Statement, Value};
use uuid::Uuid;

#[cfg(feature = "postgres")]
use crate::sql::integers;
use crate::sql::{Dialect, Sql, micros};

/// Takes free leases and returns them, on PostgreSQL and SQLite. A lease that another relay is taking, or settles under,
/// is not free (SKIP LOCKED). PostgreSQL may run a plain subquery twice and take more than the limit, so the CTE is
/// materialised.
pub(super) fn acquire(dialect: &Dialect, owner: Uuid, ttl_micros: i64, max: u16) -> Statement {
    let (leases, now, later) = (&dialect.leases, dialect.now(), dialect.now_plus("?"));
    let max = i64::from(max);
    let free = format!("WHERE owner IS NULL OR expires_at <= {now} ORDER BY partition_no LIMIT ?");
    if dialect.backend == DbBackend::Postgres {
        let text = format!(
            "WITH free AS MATERIALIZED (SELECT partition_no FROM {leases} {free} FOR UPDATE SKIP LOCKED) \
             UPDATE {leases} lease SET owner = ?, epoch = lease.epoch + 1, expires_at = {later} \
             FROM free WHERE lease.partition_no = free.partition_no \
             RETURNING lease.partition_no::int8 AS partition_no, lease.epoch"
        );
        return dialect.statement(&text, [max.into(), owner.into(), ttl_micros.into()]);
    }
    let text = format!(
        "UPDATE {leases} SET owner = ?, epoch = epoch + 1, expires_at = {later} \
         WHERE partition_no IN (SELECT partition_no FROM {leases} {free}) RETURNING partition_no, epoch"
    );
    dialect.statement(&text, [owner.into(), ttl_micros.into(), max.into()])
}

/// MySQL: locks free leases. A lease that another relay is taking, or settles under, is not free (SKIP LOCKED).
pub(super) fn lock_free(dialect: &Dialect, max: u16) -> Statement {
    let text = format!(
        "SELECT partition_no, epoch FROM {} WHERE owner IS NULL OR expires_at <= {} \
         ORDER BY partition_no LIMIT ? FOR UPDATE SKIP LOCKED",
        dialect.leases,
        dialect.now()
    );
    dialect.statement(&text, [i64::from(max).into()])
}

/// MySQL: takes locked leases (primary key).
pub(super) fn take(dialect: &Dialect, owner: Uuid, ttl_micros: i64, partitions: &[i64]) -> Statement {
    let mut sql = dialect.sql(format!("UPDATE {} SET owner = ", dialect.leases));
    sql.bind(owner).push(", epoch = epoch + 1, expires_at = ");
    let ttl = sql.placeholder(ttl_micros);
    sql.push(&dialect.now_plus(&ttl)).push(" WHERE partition_no");
    sql.any(partitions);
    sql.statement()
}

/// Extends and returns the leases that the owner still owns, on PostgreSQL and SQLite. PostgreSQL first locks the rows in
/// the order of their primary key, as settlements do.
pub(super) fn renew(dialect: &Dialect, owner: Uuid, leases: &[Lease], ttl_micros: i64) -> Statement {
    let now = dialect.now();
    #[cfg(feature = "postgres")]
    if dialect.backend == DbBackend::Postgres {
        let mut sql = dialect.sql("");
        let owner = sql.placeholder(owner);
        let condition = format!("lease.owner = {owner} AND lease.expires_at > {now}");
        push_claimed(&mut sql, dialect, leases, &condition, "NO KEY UPDATE");
        sql.push(&format!(") UPDATE {} lease SET expires_at = ", dialect.leases));
        let ttl = sql.placeholder(ttl_micros);
        sql.push(&dialect.now_plus(&ttl)).push(
            " FROM owned WHERE lease.partition_no = owned.partition_no \
             RETURNING lease.partition_no::int8 AS partition_no, lease.epoch",
        );
        return sql.statement();
    }
    let mut sql = dialect.sql(format!("UPDATE {} SET expires_at = ", dialect.leases));
    let ttl = sql.placeholder(ttl_micros);
    sql.push(&dialect.now_plus(&ttl))
        .push(" WHERE owner = ")
        .bind(owner);
    sql.push(&format!(" AND expires_at > {now} AND "));
    push_leases(&mut sql, leases);
    sql.push(" RETURNING partition_no, epoch");
    sql.statement()
}

/// MySQL: reads the leases that the owner still owns, and locks them until the transaction ends (primary key). The owner
/// no longer relies on an expired lease, even if no other relay has taken it.
pub(super) fn lock_live(dialect: &Dialect, owner: Uuid, partitions: &[i64]) -> Statement {
    let mut sql = dialect.sql(format!(
        "SELECT partition_no, epoch FROM {} WHERE owner = ",
        dialect.leases
    ));
    sql.bind(owner).push(" AND partition_no").any(partitions);
    sql.push(&format!(
        " AND expires_at > {} ORDER BY partition_no FOR UPDATE",
        dialect.now()
    ));
    sql.statement()
}

/// MySQL: extends locked leases (primary key).
pub(super) fn extend(dialect: &Dialect, ttl_micros: i64, partitions: &[i64]) -> Statement {
    let mut sql = dialect.sql(format!("UPDATE {} SET expires_at = ", dialect.leases));
    let ttl = sql.placeholder(ttl_micros);
    sql.push(&dialect.now_plus(&ttl))
        .push(" WHERE partition_no")
        .any(partitions);
    sql.statement()
}

/// Releases leases. Waits for settlements that run under them. Locks rows in the order of the primary key, as settlements
/// do.
pub(super) fn release(dialect: &Dialect, owner: Uuid, leases: &[Lease]) -> Statement {
    let (table, now) = (&dialect.leases, dialect.now());
    #[cfg(feature = "postgres")]
    if dialect.backend == DbBackend::Postgres {
        let mut sql = dialect.sql("");
        let condition = format!("lease.owner = {}", sql.placeholder(owner));
        push_claimed(&mut sql, dialect, leases, &condition, "NO KEY UPDATE");
        sql.push(&format!(
            ") UPDATE {table} lease SET owner = NULL, expires_at = {now} \
             FROM owned WHERE lease.partition_no = owned.partition_no"
        ));
        return sql.statement();
    }
    let mut sql = dialect.sql(format!(
        "UPDATE {table} SET owner = NULL, expires_at = {now} WHERE owner = "
    ));
    sql.bind(owner).push(" AND ");
    push_leases(&mut sql, leases);
    sql.push(" AND partition_no").any(&super::partitions(leases));
    sql.statement()
}

/// Appends `WITH owned AS (…`: the leases that still have the given epochs, locked.
#[cfg(feature = "postgres")]
pub(crate) fn push_claimed(sql: &mut Sql, dialect: &Dialect, leases: &[Lease], condition: &str, lock: &str) {
    let partitions = integers(super::partitions(leases));
    let epochs = integers(leases.iter().map(|lease| lease.epoch));
    let text = format!(
        "WITH owned AS MATERIALIZED (SELECT lease.partition_no FROM {} lease JOIN unnest(?::int8[], ?::int8[]) \
         AS claimed (partition_no, epoch) ON lease.partition_no = claimed.partition_no \
         AND lease.epoch = claimed.epoch WHERE {condition} ORDER BY lease.partition_no FOR {lock} OF lease",
        dialect.leases
    );
    sql.push_with(&text, [partitions, epochs]);
}

/// How many partitions have a row, and how many leases were granted before the clock was set back. Reads all rows.
pub(crate) fn rows(dialect: &Dialect) -> Statement {
    let ahead = dialect.count_where(&is_ahead(dialect));
    let text = format!(
        "SELECT count(*) AS leases, {ahead} AS ahead FROM {} WHERE partition_no >= 0 AND partition_no < {PARTITIONS}",
        dialect.leases
    );
    dialect.statement(&text, [])
}

/// Lets leases that were granted before the clock was set back end within [`LEASE_TTL_MAX`]. Rows in the order of the
/// primary key, as settlements lock them.
pub(super) fn shorten(dialect: &Dialect) -> Statement {
    let (table, ahead) = (&dialect.leases, is_ahead(dialect));
    let rows = match dialect.backend {
        DbBackend::Postgres => format!(
            "partition_no IN (SELECT partition_no FROM {table} WHERE owner IS NOT NULL AND {ahead} \
             ORDER BY partition_no FOR UPDATE SKIP LOCKED)"
        ),
        _ => format!("owner IS NOT NULL AND {ahead}"),
    };
    dialect.statement(
        &format!(
            "UPDATE {table} SET expires_at = {} WHERE {rows}",
            latest_end(dialect)
        ),
        [],
    )
}

/// Inserts the partitions that have no row. An epoch counts acquisitions, and the epoch of a new row counts microseconds.
/// So it is above all earlier epochs of its partition, and a relay that was suspended since before the rows were lost
/// settles nothing.
pub(crate) fn repair(dialect: &Dialect) -> Statement {
    let epoch = dialect.micros(dialect.statement_now());
    let on_conflict = match dialect.backend {
        DbBackend::MySql => "ON DUPLICATE KEY UPDATE epoch = epoch",
        _ => "ON CONFLICT DO NOTHING",
    };
    let rows = match dialect.backend {
        DbBackend::Postgres => {
            format!(
                "SELECT n, {epoch} FROM pg_catalog.generate_series(0, {}) AS n",
                PARTITIONS - 1
            )
        }
        _ => {
            let rows: Vec<String> = (0..PARTITIONS).map(|n| format!("({n}, {epoch})")).collect();
            format!("VALUES {}", rows.join(", "))
        }
    };
    let text = format!(
        "INSERT INTO {} (partition_no, epoch) {rows} {on_conflict}",
        dialect.leases
    );
    dialect.statement(&text, [])
}

/// The latest end that a lease or an announcement of now can have.
fn latest_end(dialect: &Dialect) -> String {
    dialect.now_plus(&micros(LEASE_TTL_MAX).to_string())
}

/// Whether a lease or an announcement was granted before the clock was set back.
pub(crate) fn is_ahead(dialect: &Dialect) -> String {
    format!("expires_at > {}", latest_end(dialect))
}

/// Locks leases against takeover until the transaction ends, and reads their epochs. Leaves out released leases. Rows in
/// the order of the primary key, so that two settlements cannot deadlock. SQLite needs no lock, because the transaction is
/// the only writer.
pub(crate) fn lock(dialect: &Dialect, partitions: &[i64]) -> Statement {
    let partition = dialect.int("partition_no");
    let mut sql = dialect.sql(format!(
        "SELECT {partition} AS partition_no, epoch FROM {} WHERE partition_no",
        dialect.leases
    ));
    sql.any(partitions);
    sql.push(" AND owner IS NOT NULL ORDER BY partition_no")
        .push(dialect.for_share());
    sql.statement()
}

/// Locks all leases of a relay, in the order in which settlements lock leases.
pub(super) fn lock_all(dialect: &Dialect, owner: Uuid) -> Statement {
    let text = format!(
        "SELECT epoch FROM {} WHERE owner = ? ORDER BY partition_no FOR UPDATE",
        dialect.leases
    );
    dialect.statement(&text, [owner.into()])
}

/// Releases all leases of a relay. They must be locked.
pub(super) fn release_all(dialect: &Dialect, owner: Uuid) -> Statement {
    let (leases, now) = (&dialect.leases, dialect.now());
    let text = format!("UPDATE {leases} SET owner = NULL, expires_at = {now} WHERE owner = ?");
    dialect.statement(&text, [owner.into()])
}

/// Appends a condition: the row is one of these leases.
fn push_leases(sql: &mut Sql, leases: &[Lease]) {
    // SQLite takes a list of rows only with VALUES, MySQL only without it.
    sql.push(match sql.backend() {
        DbBackend::Sqlite => "(partition_no, epoch) IN (VALUES ",
        _ => "(partition_no, epoch) IN (",
    });
    let row = |lease: &Lease| [Value::from(i64::from(lease.partition)), Value::from(lease.epoch)];
    sql.bind_rows(leases.iter().map(row));
    sql.push(")");
}

/// All 64 leases, live or not (primary key).
pub(super) fn all(dialect: &Dialect) -> Statement {
    let text = format!(
        "SELECT {} AS partition_no, epoch, owner, {} AS expires_micros, {} AS now_micros FROM {} l \
         ORDER BY l.partition_no",
        dialect.int("partition_no"),
        dialect.micros_of_any("expires_at"),
        dialect.micros(dialect.statement_now()),
        dialect.leases,
    );
    dialect.statement(&text, [])
}

/// Lets the lease of this partition expire a microsecond later (primary key, MySQL).
pub(crate) fn touch(dialect: &Dialect, partition: i64) -> Statement {
    let text = format!(
        "UPDATE {} SET expires_at = TIMESTAMPADD(MICROSECOND, 1, expires_at) WHERE partition_no = ?",
        dialect.leases
    );
    dialect.statement(&text, [partition.into()])
}

#[cfg(all(test, feature = "postgres"))]
mod tests {
    use super::*;
    use crate::names::TableNames;

    #[test]
    fn leases_are_picked_in_a_materialised_cte() {
        let dialect = Dialect::new(DbBackend::Postgres, &TableNames::new());
        let sql = acquire(&dialect, Uuid::nil(), 5, 3).sql;
        assert!(sql.starts_with("WITH free AS MATERIALIZED (SELECT"), "{sql}");
        assert!(sql.contains("LIMIT $1 FOR UPDATE SKIP LOCKED"), "{sql}");
    }
}
