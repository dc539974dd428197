//! SQL for a relay that owns all partitions. Statements read snapshots and lock nothing.

use outbox_core::message::PARTITIONS;
use outbox_core::store::RowKey;
use sea_orm::{DbBackend, Statement};

use crate::sql::bind_keys;
use crate::sql::{Dialect, Key, Sql};
use crate::store::row::sql::{columns, payload};

#[derive(Debug, Clone, Copy)]
pub(crate) struct Scope<'a> {
    pub(crate) partitions: &'a [i64],
    pub(crate) in_flight: &'a [RowKey],
    pub(crate) limit: i64,
}

impl Scope<'_> {
    pub(crate) fn owns_all(&self) -> bool {
        self.partitions.len() >= usize::from(PARTITIONS)
    }

    pub(crate) fn share(&self) -> i64 {
        (self.limit / (self.partitions.len().max(1) as i64)).max(1)
    }
}

/// Rows of waiting messages get a null payload, so their scan is cheap.
///
/// The plan must scan the index of pending rows in order and stop at the limit, whatever the
/// statistics. A sort of the backlog takes seconds.
///
/// * PostgreSQL: if the planner saw an inner limit above its row estimate, it would sort. The
///   visible outer limit prevents JIT compilation. Conditions like `… <> 0` barely change the
///   estimate.
/// * MySQL: FORCE INDEX prevents a scan of all published rows.
/// * SQLite: INDEXED BY prevents a scan of all published rows.
///
/// Each row's block is a scalar subquery. A join or hash could read all blocks or lose the order.
pub(crate) fn scan(dialect: &Dialect, scope: Scope<'_>) -> Statement {
    debug_assert!(scope.owns_all());
    let select = format!("SELECT {} FROM {} m", scanned_columns(dialect), dialect.messages);
    let mut sql = dialect.limited(&select);
    sql.push(&dialect.by_index(&dialect.pending))
        .push(" WHERE m.status = 0");
    dialect.push_not_in_flight(&mut sql, scope.in_flight);
    sql.push(" ORDER BY m.row_id");
    dialect.push_limit(&mut sql, "row_id", scope.limit);
    sql.statement()
}

pub(crate) fn scan_rows(dialect: &Dialect, row_ids: &[i64]) -> Statement {
    let columns = scanned_columns(dialect);
    let mut sql = dialect.sql(format!(
        "SELECT {columns} FROM {} m WHERE m.status = 0 AND m.row_id",
        dialect.messages
    ));
    sql.any(row_ids).push(" ORDER BY m.row_id").statement()
}

pub(crate) fn scanned_columns(dialect: &Dialect) -> String {
    let (blocks, now, payload) = (&dialect.blocks, dialect.statement_now(), payload(dialect));
    let force = dialect.by_primary();
    let any_block = match dialect.backend {
        DbBackend::Postgres => format!("(SELECT EXISTS (SELECT 1 FROM {blocks})) AND "),
        _ => String::new(),
    };
    columns(
        dialect,
        &format!(
            "CASE WHEN m.available_at > {now} THEN NULL WHEN m.sequence IS NOT NULL AND {any_block}(SELECT 1 FROM {blocks} h{force} \
         WHERE h.aggregate_type = m.aggregate_type AND h.aggregate_id = m.aggregate_id) IS NOT NULL \
         THEN NULL ELSE {payload} END"
        ),
    )
}

pub(crate) fn ended_blocks(dialect: &Dialect, scope: Scope<'_>, excluding: &[Key]) -> Statement {
    let mut sql = dialect.limited(&format!(
        "SELECT {} FROM {} h WHERE h.blocked_until <= {}{}",
        block_columns(dialect),
        dialect.blocks,
        dialect.statement_now(),
        dialect.of_any_partition("h"),
    ));
    push_not_of(dialect, &mut sql, "h", excluding);
    sql.push(" ORDER BY h.blocked_until");
    dialect.push_limit(&mut sql, "due_micros", scope.limit);
    sql.statement()
}

/// The statement reads no more rows than it returns. Delayed messages have a null payload.
pub(crate) fn waiting_of(
    dialect: &Dialect,
    keys: &[Key],
    in_flight: &[RowKey],
    per_aggregate: i64,
) -> Statement {
    debug_assert_eq!(dialect.backend, DbBackend::Postgres);
    let mut sql = dialect.sql(format!("SELECT {} FROM unnest(", waiting_columns(dialect)));
    bind_keys(&mut sql, keys);
    sql.push(&format!(
        ") AS h (aggregate_type, aggregate_id) CROSS JOIN LATERAL (SELECT * FROM {} m \
         WHERE m.status::int8 = 3 AND m.sequence IS NOT NULL \
         AND m.aggregate_type = h.aggregate_type COLLATE \"C\" AND m.aggregate_id = h.aggregate_id COLLATE \"C\"",
        dialect.messages
    ));
    dialect.push_not_in_flight(&mut sql, in_flight);
    sql.push(" ORDER BY m.row_id LIMIT ").bind(per_aggregate);
    sql.push(") m ORDER BY m.row_id").statement()
}

pub(crate) fn waiting_row_ids_of(dialect: &Dialect, keys: &[Key], limit: i64) -> Statement {
    let messages = &dialect.messages;
    let mut sql = dialect.sql("");
    for (n, key) in keys.iter().enumerate() {
        sql.push(if n == 0 { "" } else { " UNION ALL " });
        let [aggregate_type, id] = dialect.bind_key(&mut sql, key);
        sql.push(&match dialect.backend {
            DbBackend::MySql => format!(
                "(SELECT m.row_id, {n} AS key_no FROM {messages} m FORCE INDEX ({}) \
                 WHERE m.waiting_key = CONCAT({aggregate_type}, x'00', {id}) AND m.waiting_until IS NULL",
                dialect.waiting
            ),
            _ => format!(
                "SELECT * FROM (SELECT m.row_id, {n} AS key_no FROM {messages} m INDEXED BY {} WHERE m.status = 3 \
                 AND m.sequence IS NOT NULL AND m.aggregate_type = {aggregate_type} AND m.aggregate_id = {id}",
                dialect.waiting
            ),
        });
        sql.push(" ORDER BY m.row_id LIMIT ").bind(limit).push(")");
    }
    sql.statement()
}

pub(crate) fn waiting_rows(dialect: &Dialect, row_ids: &[i64]) -> Statement {
    let mut sql = dialect.sql(format!(
        "SELECT {} FROM {} m WHERE m.status = 3 AND m.row_id",
        waiting_columns(dialect),
        dialect.messages
    ));
    sql.any(row_ids).push(" ORDER BY m.row_id").statement()
}

fn waiting_columns(dialect: &Dialect) -> String {
    let now = dialect.statement_now();
    columns(
        dialect,
        &format!(
            "CASE WHEN m.available_at > {now} THEN NULL ELSE {} END",
            payload(dialect)
        ),
    )
}

pub(crate) fn unsequenced_rows(dialect: &Dialect, row_ids: &[i64]) -> Statement {
    let mut sql = dialect.sql(format!(
        "SELECT {}, {} AS due_micros FROM {} m WHERE m.status = 3 AND m.row_id",
        columns(dialect, &payload(dialect)),
        dialect.micros_of_any("m.available_at"),
        dialect.messages
    ));
    sql.any(row_ids);
    sql.push(" ORDER BY m.available_at, m.row_id");
    sql.statement()
}

pub(crate) fn block_columns(dialect: &Dialect) -> String {
    format!(
        "{}, {} AS due_micros",
        dialect.key_columns("h"),
        dialect.micros("h.blocked_until")
    )
}

pub(crate) fn push_not_of(dialect: &Dialect, sql: &mut Sql, table: &str, excluding: &[Key]) {
    if !excluding.is_empty() {
        sql.push(" AND CASE WHEN ");
        dialect.push_keys(sql, table, excluding);
        sql.push(" THEN 0 ELSE 1 END <> 0");
    }
}
