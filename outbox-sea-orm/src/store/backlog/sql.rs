//! SQL that counts unpublished messages.

use sea_orm::{DbBackend, Statement};

use crate::sql::Dialect;
use crate::store::block::sql::waiting_where;
use crate::store::pause::sql::HELD_BETWEEN;

/// A delayed row that has just become due may precede older rows.
const DUE_ROWS: u32 = 100;

pub(crate) fn backlog(dialect: &Dialect, count_max: u64) -> Statement {
    let (messages, blocks, now) = (&dialect.messages, &dialect.blocks, dialect.statement_now());
    // If PostgreSQL's planner saw the limit, stale statistics could make it read the whole index.
    let limit = match dialect.backend {
        DbBackend::Postgres => format!("LIMIT (SELECT {count_max}::int8)"),
        _ => format!("LIMIT {count_max}"),
    };
    let count = |from: &str, condition: &str, order: &str| {
        format!(
            "(SELECT count(*) FROM (SELECT 1 AS one FROM {from} WHERE {condition} ORDER BY {order} {limit}) c)"
        )
    };
    let text = format!(
        "SELECT {} AS pending, {} AS waiting, {} AS dead, {} AS halted, {} AS backing_off, \
         {} AS first_row_id, {} AS last_row_id, {} AS pending_due_micros, {} AS waiting_due_micros, {} AS now_micros",
        count(messages, "status = 0", "row_id"),
        count(messages, "status = 3", "row_id"),
        count(messages, "status = 2", "row_id"),
        count(blocks, "halted_by IS NOT NULL", "halted_by"),
        count(
            &format!("{blocks} h"),
            &format!("h.blocked_until > {now}{}", dialect.of_any_partition("h")),
            "h.blocked_until"
        ),
        end_of_pending(dialect, "ASC"),
        end_of_pending(dialect, "DESC"),
        first_due(dialect, 0, &limit),
        first_due(dialect, 3, &limit),
        dialect.micros(now),
    );
    dialect.statement(&text, [])
}

fn end_of_pending(dialect: &Dialect, direction: &str) -> String {
    let (messages, hint) = (&dialect.messages, dialect.by_index(&dialect.pending));
    format!(
        "(SELECT m.row_id FROM {messages} m{hint} WHERE m.status = 0 ORDER BY m.row_id {direction} LIMIT 1)"
    )
}

/// Earliest due time among the first [`DUE_ROWS`] due rows. Not due: delayed, paused or halted
/// rows, and rows behind a delayed row of their aggregate.
fn first_due(dialect: &Dialect, status: i64, limit: &str) -> String {
    let (blocks, pauses, now) = (&dialect.blocks, &dialect.pauses, dialect.statement_now());
    let index = match (dialect.backend, status) {
        (DbBackend::Sqlite, 3) => dialect.by_index(&format!("{}_row_id", dialect.waiting)),
        _ => dialect.by_index(&dialect.pending),
    };
    // Only failures and pauses set `available_at` of an unsequenced waiting row.
    let is_delayed = format!(
        "c.available_at > {now} AND NOT (c.sequence IS NULL AND c.failures > 0 AND c.available_at < {})",
        dialect.time(&HELD_BETWEEN.0.to_string())
    );
    let is_paused = format!(
        "(SELECT 1 FROM {pauses} p WHERE (p.ends_at IS NULL OR p.ends_at > {now}) \
         AND p.aggregate_type IN ('', c.aggregate_type) LIMIT 1) IS NOT NULL"
    );
    let is_halted = format!(
        "(SELECT 1 FROM {blocks} h WHERE h.aggregate_type = c.aggregate_type AND h.aggregate_id = c.aggregate_id \
         AND h.halted_by IS NOT NULL) IS NOT NULL"
    );
    let is_behind = format!(
        "(SELECT CASE WHEN e.available_at > {now} THEN 1 ELSE 0 END FROM {} ORDER BY e.row_id LIMIT 1) = 1",
        waiting_where(dialect, "e", "c"),
    );
    // PostgreSQL assumes that a filter on a CASE removes almost no rows, so it reads up to the
    // outer limit.
    let due = "CASE WHEN c.available_at > c.created_at AND (c.failures = 0 OR c.sequence IS NOT NULL) \
               THEN c.available_at ELSE c.created_at END";
    format!(
        "(SELECT {} FROM (SELECT {due} AS due FROM (SELECT m.row_id, m.aggregate_type, m.aggregate_id, m.sequence, m.failures, \
         m.available_at, m.created_at FROM {} m{index} WHERE m.status = {status} ORDER BY m.row_id {limit}) c \
         WHERE CASE WHEN {is_delayed} THEN 1 WHEN {is_paused} THEN 1 WHEN c.sequence IS NULL THEN 0 \
         WHEN {is_halted} THEN 1 WHEN {is_behind} THEN 1 ELSE 0 END <> 1 ORDER BY c.row_id LIMIT {DUE_ROWS}) d)",
        dialect.micros_of_any("MIN(d.due)"),
        dialect.messages,
    )
}
