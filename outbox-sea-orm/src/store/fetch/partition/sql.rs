//! SQL for the first rows of each own partition.
//!
//! Invariant: rows and blocks of other partitions cost nothing: each partition is a lookup in an
//! index that begins with the partition. PostgreSQL uses one statement (LATERAL). MariaDB and
//! SQLite first select row ids. Nothing is locked.

use std::collections::HashMap;

use sea_orm::{DbBackend, Statement, Value};

use crate::sql::{Dialect, Key, Sql, integers};
use crate::store::fetch::sql::scanned_columns;
use crate::store::fetch::sql::{Scope, block_columns, push_not_of};
use crate::store::row::sql::{columns, payload};

/// Only the index by partition has the status condition as predicate. Otherwise a plan cached for
/// an empty table could scan all partitions.
pub(crate) fn scan(dialect: &Dialect, scope: Scope<'_>) -> Statement {
    let mut sql = dialect.sql(format!("SELECT {}", scanned_columns(dialect)));
    push_each_own(&mut sql, scope.partitions, &dialect.messages, "m");
    sql.push(" AND m.status::int4 = 0");
    dialect.push_not_in_flight(&mut sql, scope.in_flight);
    push_limits(&mut sql, "m", "m.row_id", (scope.share(), scope.limit));
    sql.statement()
}

pub(crate) fn unsequenced(dialect: &Dialect, scope: Scope<'_>, excluding: &[Key]) -> Statement {
    let mut sql = dialect.sql(format!(
        "SELECT {}, {} AS due_micros",
        columns(dialect, &payload(dialect)),
        dialect.micros_of_any("m.available_at")
    ));
    push_each_own(&mut sql, scope.partitions, &dialect.messages, "m");
    sql.push(" AND m.status::int4 = 3 AND m.sequence IS NULL AND m.available_at <= ")
        .push(dialect.statement_now());
    dialect.push_not_in_flight(&mut sql, scope.in_flight);
    push_not_of(dialect, &mut sql, "m", excluding);
    push_limits(&mut sql, "m", "m.available_at", (scope.share(), scope.limit));
    sql.statement()
}

/// Selects (`partition_no`, `place`, `row_id`) of pending rows from the index alone.
pub(crate) fn first_pending(dialect: &Dialect, partitions: &[i64], limit: i64) -> Statement {
    union(dialect, partitions, |sql, partition| {
        let text = format!(
            "SELECT m.partition_no, m.row_id AS place, m.row_id FROM {} m{} \
             WHERE m.status = 0 AND m.partition_no = ? ORDER BY m.row_id LIMIT ?",
            dialect.messages,
            dialect.by_index(&format!("{}_own", dialect.pending))
        );
        sql.push_with(&text, [partition.into(), limit.into()]);
    })
}

pub(crate) fn first_unsequenced(
    dialect: &Dialect,
    partitions: &[i64],
    limit: i64,
    excluding: &[Key],
) -> Statement {
    let due = unsequenced_due(dialect);
    let excluding = by_partition(excluding);
    union(dialect, partitions, |sql, partition| {
        sql.push(&format!(
            "SELECT m.partition_no, {} AS place, m.row_id FROM {} m",
            dialect.micros_of_any(due),
            dialect.messages
        ));
        sql.push(&by_unsequenced_index(dialect));
        match dialect.backend {
            DbBackend::MySql => sql.push(" WHERE m.waiting_key = ").bind(own_key(partition)),
            _ => sql.push_with(
                " WHERE m.status = 3 AND m.sequence IS NULL AND m.partition_no = ?",
                [partition.into()],
            ),
        };
        sql.push(&format!(" AND {due} <= {}", dialect.statement_now()));
        push_not_of(dialect, sql, "m", of_partition(&excluding, partition));
        sql.push(&format!(" ORDER BY {due} LIMIT ")).bind(limit);
    })
}

pub(crate) fn ended_blocks(dialect: &Dialect, scope: Scope<'_>, share: i64, excluding: &[Key]) -> Statement {
    let columns = block_columns(dialect);
    if dialect.backend == DbBackend::Postgres {
        let mut sql = dialect.sql(format!("SELECT {columns}"));
        push_each_own(&mut sql, scope.partitions, &dialect.blocks, "h");
        // With the predicate of `of_any_partition`, PostgreSQL could choose another index.
        sql.push(" AND h.blocked_until <= ").push(dialect.statement_now());
        push_not_of(dialect, &mut sql, "h", excluding);
        push_limits(&mut sql, "h", "h.blocked_until", (share, scope.limit));
        return sql.statement();
    }
    let excluding = by_partition(excluding);
    union(dialect, scope.partitions, |sql, partition| {
        let (now, hint) = (dialect.statement_now(), dialect.by_index(&dialect.blocks_own));
        let text = format!(
            "SELECT {columns} FROM {} h{hint} WHERE h.partition_no = ? AND h.blocked_until <= {now}",
            dialect.blocks
        );
        sql.push_with(&text, [partition.into()]);
        push_not_of(dialect, sql, "h", of_partition(&excluding, partition));
        sql.push(" ORDER BY h.blocked_until LIMIT ").bind(share);
    })
}

/// Pending messages that waiting messages must not overtake. `bounds`: partitions with a row id
/// each.
pub(crate) fn pending_below(dialect: &Dialect, bounds: &[(i64, i64)], limit: i64) -> Statement {
    let columns = format!(
        "{} AS partition_no, m.row_id, m.id, {}",
        dialect.int("m.partition_no"),
        dialect.key_columns("m")
    );
    if dialect.backend == DbBackend::Postgres {
        let text = format!(
            "SELECT {columns} FROM unnest(?::int8[], ?::int8[]) AS own (partition_no, below) \
             CROSS JOIN LATERAL (SELECT * FROM {} m WHERE m.partition_no = own.partition_no AND m.row_id < own.below \
             AND m.status::int4 = 0 AND m.sequence IS NOT NULL ORDER BY m.row_id LIMIT (SELECT ?::int8)) m",
            dialect.messages
        );
        let (partitions, below): (Vec<i64>, Vec<i64>) = bounds.iter().copied().unzip();
        let values = [integers(partitions), integers(below), limit.into()];
        return dialect.statement(&text, values);
    }
    union(dialect, bounds, |sql, (partition, below)| {
        let text = format!(
            "SELECT {columns} FROM {} m{} WHERE m.status = 0 AND m.sequence IS NOT NULL \
             AND m.partition_no = ? AND m.row_id < ? ORDER BY m.row_id LIMIT ?",
            dialect.messages,
            dialect.by_index(&format!("{}_own", dialect.pending)),
        );
        sql.push_with(&text, [partition.into(), below.into(), limit.into()]);
    })
}

fn union<P: Copy>(dialect: &Dialect, partitions: &[P], look_up: impl Fn(&mut Sql, P)) -> Statement {
    let mut sql = dialect.sql("");
    for (n, partition) in partitions.iter().enumerate() {
        sql.push(if n == 0 { "" } else { " UNION ALL " });
        sql.push(match dialect.backend {
            DbBackend::Sqlite => "SELECT * FROM (",
            _ => "(",
        });
        look_up(&mut sql, *partition);
        sql.push(")");
    }
    sql.statement()
}

pub(crate) fn unsequenced_due(dialect: &Dialect) -> &'static str {
    match dialect.backend {
        DbBackend::MySql => "m.waiting_until",
        _ => "m.available_at",
    }
}

pub(crate) fn by_unsequenced_index(dialect: &Dialect) -> String {
    match dialect.backend {
        DbBackend::MySql => dialect.by_index(&dialect.waiting),
        _ => dialect.by_index(&format!("{}_until", dialect.waiting)),
    }
}

/// A key that no aggregate has: one nonzero byte, as MySQL generates it.
pub(crate) fn own_key(partition: i64) -> Value {
    Value::Bytes(u8::try_from(partition + 1).ok().map(|byte| vec![byte]))
}

fn by_partition(keys: &[Key]) -> HashMap<i64, Vec<Key>> {
    let mut partitions: HashMap<i64, Vec<Key>> = HashMap::new();
    for key in keys {
        let partition = i64::from(key.partition());
        partitions.entry(partition).or_default().push(key.clone());
    }
    partitions
}

fn of_partition(keys: &HashMap<i64, Vec<Key>>, partition: i64) -> &[Key] {
    keys.get(&partition).map(Vec::as_slice).unwrap_or_default()
}

fn push_each_own(sql: &mut Sql, partitions: &[i64], table: &str, alias: &str) {
    let text = format!(
        " FROM pg_catalog.unnest(?::int8[]) AS own (partition_no) CROSS JOIN LATERAL (SELECT * FROM {table} {alias} \
         WHERE {alias}.partition_no = own.partition_no"
    );
    let partitions = partitions.iter().copied();
    sql.push_with(&text, [integers(partitions)]);
}

/// The planner sees only the total limit, not the limit per partition.
fn push_limits(sql: &mut Sql, alias: &str, order: &str, (share, limit): (i64, i64)) {
    let text = format!(" ORDER BY {order} LIMIT (SELECT ?::int8)) {alias} ORDER BY {order} LIMIT ?::int8");
    sql.push_with(&text, [share.into(), limit.into()]);
}
