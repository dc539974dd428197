//! SQL of leases.

use outbox_core::Lease;
use outbox_core::message::PARTITIONS;
use outbox_core::store::LEASE_TTL_MAX;
use sea_orm::{DbBackend, Statement, Value};
use uuid::Uuid;

use crate::sql::{Dialect, Sql, integers, micros};

/// SKIP LOCKED skips leases locked by a takeover or settlement.
pub(super) fn lock_free(dialect: &Dialect, max: u16) -> Statement {
    let skip = match dialect.backend {
        DbBackend::Sqlite => "",
        _ => " SKIP LOCKED",
    };
    let text = format!(
        "SELECT {} AS partition_no, epoch FROM {} l WHERE owner IS NULL OR expires_at <= {} ORDER BY l.partition_no LIMIT ?{}{skip}",
        dialect.int("partition_no"),
        dialect.leases,
        dialect.now(),
        dialect.for_update(),
    );
    dialect.statement(&text, [i64::from(max).into()])
}

pub(super) fn take(dialect: &Dialect, owner: Uuid, ttl_micros: i64, partitions: &[i64]) -> Statement {
    let text = format!(
        "owner = ?, epoch = epoch + 1, expires_at = {}",
        dialect.now_plus("?")
    );
    set(dialect, &text, [owner.into(), ttl_micros.into()], partitions)
}

/// Locks leases in primary key order, as settlements do. Excludes expired leases, even if no other
/// relay took them.
pub(super) fn lock_live(dialect: &Dialect, owner: Uuid, partitions: &[i64]) -> Statement {
    let mut sql = dialect.sql(format!(
        "SELECT {} AS partition_no, epoch FROM {} l WHERE owner = ",
        dialect.int("partition_no"),
        dialect.leases
    ));
    sql.bind(owner).push(" AND partition_no").any(partitions);
    sql.push(&format!(
        " AND expires_at > {} ORDER BY l.partition_no{}",
        dialect.now(),
        dialect.for_update()
    ));
    sql.statement()
}

pub(super) fn extend(dialect: &Dialect, ttl_micros: i64, partitions: &[i64]) -> Statement {
    let text = format!("expires_at = {}", dialect.now_plus("?"));
    set(dialect, &text, [ttl_micros.into()], partitions)
}

pub(super) fn release(dialect: &Dialect, partitions: &[i64]) -> Statement {
    let text = format!("owner = NULL, expires_at = {}", dialect.now());
    set(dialect, &text, [], partitions)
}

fn set<const N: usize>(dialect: &Dialect, text: &str, values: [Value; N], partitions: &[i64]) -> Statement {
    let mut sql = dialect.sql(format!("UPDATE {} SET ", dialect.leases));
    sql.push_with(text, values)
        .push(" WHERE partition_no")
        .any(partitions)
        .statement()
}

/// Leases with an unchanged epoch, locked against takeover.
pub(crate) fn push_claimed(sql: &mut Sql, dialect: &Dialect, leases: &[Lease]) {
    let partitions = integers(super::partitions(leases));
    let epochs = integers(leases.iter().map(|lease| lease.epoch));
    let text = format!(
        "WITH owned AS MATERIALIZED (SELECT lease.partition_no FROM {} lease JOIN unnest(?::int8[], ?::int8[]) \
         AS claimed (partition_no, epoch) ON lease.partition_no = claimed.partition_no \
         AND lease.epoch = claimed.epoch WHERE lease.owner IS NOT NULL ORDER BY lease.partition_no FOR SHARE OF lease",
        dialect.leases
    );
    sql.push_with(&text, [partitions, epochs]);
}

pub(crate) fn rows(dialect: &Dialect) -> Statement {
    let ahead = dialect.count_where(&is_ahead(dialect));
    let text = format!(
        "SELECT count(*) AS leases, {ahead} AS ahead FROM {} WHERE partition_no >= 0 AND partition_no < {PARTITIONS}",
        dialect.leases
    );
    dialect.statement(&text, [])
}

/// Locks leases in primary key order, as settlements do.
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

/// The epoch of an inserted lease row, a time in microseconds, exceeds any count of acquisitions,
/// so a relay with a lost lease cannot settle.
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

fn latest_end(dialect: &Dialect) -> String {
    dialect.now_plus(&micros(LEASE_TTL_MAX).to_string())
}

pub(crate) fn is_ahead(dialect: &Dialect) -> String {
    format!("expires_at > {}", latest_end(dialect))
}

/// Settlements lock leases in primary key order, so that they cannot deadlock. The query excludes
/// released leases.
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

pub(super) fn lock_all(dialect: &Dialect, owner: Uuid) -> Statement {
    let text = format!(
        "SELECT epoch FROM {} WHERE owner = ? ORDER BY partition_no FOR UPDATE",
        dialect.leases
    );
    dialect.statement(&text, [owner.into()])
}

pub(super) fn release_all(dialect: &Dialect, owner: Uuid) -> Statement {
    let (leases, now) = (&dialect.leases, dialect.now());
    let text = format!("UPDATE {leases} SET owner = NULL, expires_at = {now} WHERE owner = ?");
    dialect.statement(&text, [owner.into()])
}

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

/// On MySQL, the statement forces a durable commit: it adds a microsecond to an expiry.
pub(crate) fn touch(dialect: &Dialect, partition: i64) -> Statement {
    let text = format!(
        "UPDATE {} SET expires_at = TIMESTAMPADD(MICROSECOND, 1, expires_at) WHERE partition_no = ?",
        dialect.leases
    );
    dialect.statement(&text, [partition.into()])
}
