//! SQL that fetches. It reads snapshots and locks nothing.
//!
//! A relay that owns all partitions scans one index in its order. A relay that shares them looks at each of its own
//! ([`super::partition`]).

use outbox_core::message::PARTITIONS;
use outbox_core::store::RowKey;
use sea_orm::{DbBackend, Statement};

use crate::sql::{COPIES_FROM, bind_keys, integers};
use crate::sql::{Dialect, Key, Sql};
use crate::store::row::sql::{columns, payload};

/// The predicate of the index of pending rows by aggregate and of no other.
const PENDING_OF: &str = "m.status::int8 = 0";

/// Where to fetch, what to leave out, and how much.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scope<'a> {
    pub(crate) partitions: &'a [i64],
    /// Rows to leave out.
    pub(crate) in_flight: &'a [RowKey],
    /// Most rows of the result.
    pub(crate) limit: i64,
}

impl Scope<'_> {
    /// Whether these are all partitions, so that no other relay owns one.
    pub(crate) fn owns_all(&self) -> bool {
        self.partitions.len() >= usize::from(PARTITIONS)
    }

    /// How many rows of each partition are read: an equal part of the limit, at least one.
    pub(crate) fn share(&self) -> i64 {
        (self.limit / (self.partitions.len().max(1) as i64)).max(1)
    }
}

/// Pending messages in the order of their row ids, whether they may be published or not. Those that have to wait come with a null payload, which
/// makes scanning them cheap. For a relay that owns all partitions.
///
/// The plan must scan the index of pending rows in its order and stop at the limit, whatever the statistics: a plan that sorts the backlog takes
/// seconds per batch. Measured with missing, stale and fresh statistics, this is ensured as follows:
///
/// * PostgreSQL: the planner does not know the limit of the inner query, so it assumes a tenth of the rows and compares plans by their ratio;
///   with a known limit above its estimate of the rows, it would sort. It knows the outer limit, which makes the whole look as cheap as it is;
///   otherwise the server compiles the plan (JIT), which takes longer than running it. Conditions have the form `… <> 0`, which the planner
///   expects to remove next to nothing.
/// * MySQL: FORCE INDEX keeps the planner from scanning the primary key, which is the table with all its published rows.
/// * SQLite: INDEXED BY does the same.
///
/// On every database, whether the aggregate is blocked is a scalar subquery: one look-up in the primary key of the blocks. If the planner could turn
/// it into a join or a hash, each fetch would read all blocks, or lose the order.
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

/// Pending messages with these row ids, in their order (primary key), with the columns of [`scan`].
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
    // Evaluated once per statement. Mostly there is no block, and then it saves half of the scan's time (measured).
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

/// Blocks that have ended, in the order of their ends (index `outbox_blocks_due`). For a relay that owns all partitions. PostgreSQL must not know the inner limit,
/// as in [`scan`]: it would sort if it expected fewer blocks.
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

/// The first waiting originals, and as many replayed copies, of each of these aggregates, by place
/// (index `outbox_messages_waiting`). Reads no more rows than it returns: an aggregate may have
/// 100,000. Delayed messages come with a null payload.
pub(crate) fn waiting_of(
    dialect: &Dialect,
    keys: &[Key],
    in_flight: &[RowKey],
    per_aggregate: i64,
) -> Statement {
    let columns = waiting_columns(dialect);
    first_of(
        dialect,
        &columns,
        "m.status::int8 = 3",
        keys,
        in_flight,
        per_aggregate,
    )
}

/// As [`waiting_of`], of the pending messages (index `outbox_messages_pending_of`), with
/// the columns of [`scan`].
pub(crate) fn pending_of(
    dialect: &Dialect,
    keys: &[Key],
    in_flight: &[RowKey],
    per_aggregate: i64,
) -> Statement {
    let columns = scanned_columns(dialect);
    first_of(dialect, &columns, PENDING_OF, keys, in_flight, per_aggregate)
}

/// The places of the first pending original and of the first pending copy of each of these
/// aggregates that are not in flight.
pub(crate) fn first_pending_of(dialect: &Dialect, keys: &[Key], in_flight: &[RowKey]) -> Statement {
    let columns = format!("{}, {} AS place", dialect.key_columns("m"), dialect.place("m"));
    first_of(dialect, &columns, PENDING_OF, keys, in_flight, 1)
}

/// Rows of each aggregate: the first originals and the first copies, by place. `status` is the
/// predicate of one index and of no other, as in [`scan_own`].
fn first_of(
    dialect: &Dialect,
    columns: &str,
    status: &str,
    keys: &[Key],
    in_flight: &[RowKey],
    per_aggregate: i64,
) -> Statement {
    debug_assert_eq!(dialect.backend, DbBackend::Postgres);
    let place = dialect.place("m");
    let mut sql = dialect.sql(format!("SELECT {columns} FROM unnest("));
    bind_keys(&mut sql, keys);
    sql.push(") AS h (aggregate_type, aggregate_id) CROSS JOIN LATERAL (");
    for (n, kind) in ["<", ">="].into_iter().enumerate() {
        sql.push(if n == 0 { "(" } else { ") UNION ALL (" });
        sql.push(&format!(
            "SELECT * FROM {} m WHERE {status} AND m.sequence IS NOT NULL \
             AND m.aggregate_type = h.aggregate_type COLLATE \"C\" AND m.aggregate_id = h.aggregate_id COLLATE \"C\" \
             AND {place} {kind} {COPIES_FROM}",
            dialect.messages
        ));
        dialect.push_not_in_flight(&mut sql, in_flight);
        sql.push(&format!(" ORDER BY {place} LIMIT ")).bind(per_aggregate);
    }
    sql.push(&format!(")) m ORDER BY {place}"));
    sql.statement()
}

/// Returns each given aggregate whose message with the given number is pending and not in
/// flight. One look-up per aggregate in the index of pending rows by aggregate.
pub(crate) fn pending_among(dialect: &Dialect, messages: &[(Key, i64)], in_flight: &[RowKey]) -> Statement {
    let mut sql = dialect.sql(format!("SELECT {} FROM unnest(", dialect.key_columns("h")));
    bind_keys(&mut sql, messages.iter().map(|(key, _)| key));
    let sequences = integers(messages.iter().map(|(_, sequence)| *sequence));
    sql.push_with(
        ", ?::int8[]) AS h (aggregate_type, aggregate_id, sequence)",
        [sequences],
    );
    sql.push(&format!(
        " CROSS JOIN LATERAL (SELECT m.sequence FROM {} m WHERE {PENDING_OF} AND m.sequence IS NOT NULL \
         AND m.aggregate_type = h.aggregate_type COLLATE \"C\" AND m.aggregate_id = h.aggregate_id COLLATE \"C\" \
         AND {} = h.sequence",
        dialect.messages,
        dialect.place("m")
    ));
    dialect.push_not_in_flight(&mut sql, in_flight);
    sql.push(" LIMIT 1) m");
    sql.statement()
}

/// As `waiting_of`, but only row ids, with the place of their aggregate in `keys` (MariaDB and SQLite have no LATERAL). Reads only the index.
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

/// Waiting rows with these row ids, in their order (primary key).
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

/// Unsequenced waiting rows with these row ids, those first that have been due for longest (primary key).
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

/// Appends a condition: the row of `table` belongs to none of these aggregates.
pub(crate) fn push_not_of(dialect: &Dialect, sql: &mut Sql, table: &str, excluding: &[Key]) {
    if !excluding.is_empty() {
        sql.push(" AND CASE WHEN ");
        dialect.push_keys(sql, table, excluding);
        sql.push(" THEN 0 ELSE 1 END <> 0");
    }
}
