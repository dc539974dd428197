//! SQL of operators' changes to messages.

use outbox_core::Selection;
use outbox_core::store::RowKey;
use sea_orm::DbBackend;
use sea_orm::Statement;
use uuid::Uuid;

use crate::sql::Dialect;
use crate::sql::uuids;
use crate::store::message::sql::{halts, index_of_page, push_selection, settled};

/// The plan must scan the index of dead rows in order, up to the limit. Otherwise each batch reads
/// all remaining dead letters.
pub(crate) fn select_dead(dialect: &Dialect, selection: &Selection, halting: bool, limit: i64) -> Statement {
    let mut sql = dialect.limited(&format!(
        "SELECT m.row_id, m.id, {}, {} AS is_sequenced FROM {} m",
        dialect.key_columns("m"),
        dialect.flag("m.sequence IS NOT NULL"),
        dialect.messages,
    ));
    sql.push(&index_of_page(dialect, selection, true));
    push_selection(dialect, &mut sql, selection, Some("m.status = 2"), None);
    if halting {
        // A join could read all blocks for each dead letter.
        sql.push(" AND ").push(&halts(dialect));
    }
    sql.push(" ORDER BY m.row_id");
    dialect.push_limit(&mut sql, "row_id", limit);
    sql.statement()
}

/// PostgreSQL has no index by row id. So it sorts the whole table or, with a start time, only the
/// rows recorded since then.
pub(super) fn replayable(
    dialect: &Dialect,
    selection: &Selection,
    first: Option<Uuid>,
    until: Option<i64>,
    limit: i64,
    has_log: bool,
) -> Statement {
    let mut sql = dialect.sql(format!("SELECT m.row_id, m.id FROM {} m", dialect.messages));
    let settled = settled(dialect, "IN (1, 2)", has_log);
    push_selection(dialect, &mut sql, selection, Some(&settled), first);
    if let Some(until) = until {
        sql.push(" AND m.row_id <= ").bind(until);
    }
    sql.push(" ORDER BY m.row_id LIMIT ").bind(limit).statement()
}

pub(super) fn retry(dialect: &Dialect, rows: &[RowKey], waiting: bool) -> Statement {
    let mut sql = dialect.sql(format!(
        "UPDATE {} SET status = {}, attempts = 0{} WHERE status = 2 AND ",
        dialect.messages,
        if waiting { 3 } else { 0 },
        if waiting { "" } else { ", available_at = NULL" },
    ));
    dialect.push_rows_of(&mut sql, rows);
    sql.statement()
}

/// PostgreSQL computes the maximum from the whole table, because reading the row id sequence needs
/// a privilege.
pub(super) fn last_row_id(dialect: &Dialect) -> Statement {
    dialect.statement(
        &format!(
            "SELECT COALESCE(MAX(row_id), 0) AS row_id FROM {}",
            dialect.messages
        ),
        [],
    )
}

pub(super) fn copy(dialect: &Dialect, ids: &[(Uuid, Uuid)], has_log: bool) -> Statement {
    let (messages, settled) = (&dialect.messages, settled(dialect, "IN (1, 2)", has_log));
    let mut sql = dialect.sql(format!(
        "INSERT INTO {messages} (id, event_id, partition_no, aggregate_type, aggregate_id, sequence, event_type, \
         event_version, subject, content_type, payload, headers, created_at) \
         SELECT n.new_id, COALESCE(m.event_id, m.id), m.partition_no, m.aggregate_type, m.aggregate_id, m.sequence, \
         m.event_type, m.event_version, m.subject, m.content_type, m.payload, m.headers, m.created_at FROM "
    ));
    if dialect.backend == DbBackend::Postgres {
        let (old, new) = (ids.iter().map(|(old, _)| *old), ids.iter().map(|(_, new)| *new));
        let text = format!(
            "unnest(?::uuid[], ?::uuid[]) AS n (old_id, new_id) JOIN {messages} m ON m.id = n.old_id \
             WHERE {settled} ORDER BY m.row_id"
        );
        return sql.push_with(&text, [uuids(old), uuids(new)]).statement();
    }
    sql.push("(");
    for (n, (old, new)) in ids.iter().enumerate() {
        sql.push(if n == 0 { "SELECT " } else { " UNION ALL SELECT " });
        sql.bind(*old).push(if n == 0 { " AS old_id, " } else { ", " });
        sql.bind(*new).push(if n == 0 { " AS new_id" } else { "" });
    }
    let rest = format!(") n JOIN {messages} m ON m.id = n.old_id WHERE {settled} ORDER BY m.row_id");
    sql.push(&rest).statement()
}
