//! SQL that reads messages for operators. Locks nothing.

use std::num::NonZeroU32;

use outbox_core::{Aggregate, MessageId, MessageStatus, PageFrom, PublishedSearch, Selection};
use sea_orm::{DbBackend, Statement, Value};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::sql::{Dialect, Key, Sql};
use crate::store::id_range::{IdRange, id_at};
use crate::store::row::sql::{columns, payload};

pub(crate) fn status_code(status: MessageStatus) -> i64 {
    match status {
        MessageStatus::Pending => 0,
        MessageStatus::Published => 1,
        MessageStatus::Dead => 2,
        MessageStatus::Waiting => 3,
        MessageStatus::Logged => 4,
    }
}

pub(crate) fn list(
    dialect: &Dialect,
    selection: &Selection,
    first: Option<Uuid>,
    limit: NonZeroU32,
) -> Statement {
    let mut sql = dialect.sql(stored(dialect));
    push_selection(dialect, &mut sql, selection, None, first);
    sql.push(" ORDER BY m.row_id LIMIT ")
        .bind(i64::from(limit.get()))
        .statement()
}

pub(super) fn recorded_between(
    dialect: &Dialect,
    recorded: (OffsetDateTime, OffsetDateTime),
    ids: IdRange,
    after: Option<MessageId>,
    limit: i64,
) -> Statement {
    let mut sql = dialect.sql(stored(dialect));
    push_recorded(dialect, sql.push(" WHERE "), recorded, ids.after(after));
    sql.push(" ORDER BY m.id LIMIT ").bind(limit).statement()
}

fn push_recorded(
    dialect: &Dialect,
    sql: &mut Sql,
    (from, until): (OffsetDateTime, OffsetDateTime),
    ids: IdRange,
) {
    sql.push_with("m.id > ? AND m.id < ?", [ids.above.into(), ids.below.into()]);
    dialect.push_time(sql, " AND m.created_at >= ", from);
    dialect.push_time(sql, " AND m.created_at < ", until);
}

pub(crate) fn list_ids(dialect: &Dialect, ids: &[Uuid]) -> Statement {
    let mut sql = dialect.sql(stored(dialect));
    sql.push(" WHERE m.id IN ")
        .bind_rows([ids.iter().copied().map(Value::from)])
        .statement()
}

fn stored(dialect: &Dialect) -> String {
    format!("SELECT {} FROM {} m", stored_columns(dialect), dialect.messages)
}

pub(crate) fn stored_columns(dialect: &Dialect) -> String {
    format!(
        "m.row_id, m.id, m.event_id, {}, m.sequence, m.event_type, \
         {} AS status, {} AS attempts, {} AS failures, m.last_error, {} AS halts, {} AS created_micros, \
         {} AS published_micros",
        dialect.key_columns("m"),
        dialect.int("m.status"),
        dialect.int("m.attempts"),
        dialect.int("m.failures"),
        dialect.flag(&halts(dialect)),
        dialect.micros_of_any("m.created_at"),
        dialect.micros_of_any("m.published_at"),
    )
}

pub(crate) fn halts(dialect: &Dialect) -> String {
    let blocks = &dialect.blocks;
    format!("(SELECT h.halted_by FROM {blocks} h WHERE h.halted_by = m.row_id LIMIT 1) IS NOT NULL")
}

pub(super) fn published(
    dialect: &Dialect,
    recorded: (OffsetDateTime, OffsetDateTime),
    ids: IdRange,
    after: Option<MessageId>,
    limit: i64,
    has_log: bool,
) -> Statement {
    let mut sql = dialect.sql(format!(
        "SELECT {} FROM {} m WHERE {} AND ",
        columns(dialect, &payload(dialect)),
        dialect.messages,
        settled(dialect, "= 1", has_log)
    ));
    push_recorded(dialect, &mut sql, recorded, ids.after(after));
    sql.push(" ORDER BY m.id LIMIT ").bind(limit).statement()
}

pub(crate) fn push_selection(
    dialect: &Dialect,
    sql: &mut Sql,
    selection: &Selection,
    condition: Option<&str>,
    first: Option<Uuid>,
) {
    sql.push(" WHERE 1 = 1");
    if let Some(condition) = condition {
        sql.push(" AND ").push(condition);
    }
    if let Some(status) = selection.status {
        push_status(dialect, sql, selection, status);
    }
    if let Some(id) = selection.id {
        sql.push(" AND m.id = ").bind(id.as_uuid());
    }
    for (column, value) in [
        ("m.aggregate_type", &selection.aggregate_type),
        ("m.aggregate_id", &selection.aggregate_id),
    ] {
        if let Some(value) = value {
            sql.push(&format!(" AND {column} = ")).bind(dialect.key(value));
        }
    }
    if let Some(event_type) = &selection.event_type {
        sql.push(" AND m.event_type = ").bind(event_type.as_str());
    }
    if let Some(first) = first {
        sql.push(" AND m.id >= ").bind(first);
    }
    if let Some(from) = selection.recorded_from {
        dialect.push_time(sql, " AND m.created_at >= ", from);
    }
    if let Some(until) = selection.recorded_until {
        dialect.push_time(sql, " AND m.created_at < ", until);
    }
    if let Some(after) = selection.after {
        sql.push(" AND m.row_id > ").bind(after);
    }
}

/// The status is a literal, for partial indexes.
fn push_status(dialect: &Dialect, sql: &mut Sql, selection: &Selection, status: MessageStatus) {
    let key = selection
        .aggregate_type
        .as_ref()
        .zip(selection.aggregate_id.as_ref());
    let Some((aggregate_type, id)) = key.filter(|_| status == MessageStatus::Pending) else {
        sql.push(&format!(" AND m.status = {}", status_code(status)));
        return;
    };
    sql.push(match dialect.backend {
        DbBackend::Postgres => " AND m.status::int4 = 0",
        _ => " AND m.status = 0",
    });
    let partition = Aggregate::new(aggregate_type.as_str(), id.as_str()).partition();
    sql.push(" AND m.partition_no = ").bind(i64::from(partition));
}

pub(crate) fn page(
    dialect: &Dialect,
    selection: &Selection,
    first: Option<Uuid>,
    from: PageFrom,
    limit: NonZeroU32,
) -> Statement {
    let by_row_id = from.is_by_row_id(selection.status);
    let column = if by_row_id { "row_id" } else { "id" };
    let mut sql = dialect.limited(&stored(dialect));
    sql.push(&index_of_page(dialect, selection, by_row_id));
    let mut selection = selection.clone();
    selection.after = None;
    let status = selection.status.take_if(|_| !by_row_id);
    push_selection(dialect, &mut sql, &selection, None, first);
    if let Some(status) = status {
        let code = status_code(status);
        sql.push(&format!(
            " AND CASE WHEN m.status = {code} THEN 1 ELSE 0 END <> 0"
        ));
    }
    match from {
        PageFrom::Before(place) if by_row_id => sql.push(" AND m.row_id < ").bind(place.row_id),
        PageFrom::Before(place) => sql.push(" AND m.id < ").bind(place.id.as_uuid()),
        PageFrom::After(id) => sql.push(" AND m.id > ").bind(id.as_uuid()),
        _ => &mut sql,
    };
    let order = match from {
        PageFrom::After(_) => column.to_owned(),
        _ => format!("{column} DESC"),
    };
    sql.push(&format!(" ORDER BY m.{order}"));
    dialect.push_limit(&mut sql, &order, i64::from(limit.get()));
    sql.statement()
}

pub(crate) fn index_of_page(dialect: &Dialect, selection: &Selection, by_row_id: bool) -> String {
    if selection.id.is_some() || selection.aggregate_id.is_some() {
        return String::new();
    }
    let of_sqlite = |name: &str| format!("{}{name}", dialect.pending.trim_end_matches("pending"));
    let index = match (dialect.backend, by_row_id, selection.status) {
        (DbBackend::MySql, true, _) => dialect.pending.clone(),
        (DbBackend::MySql, false, _) => "outbox_messages_id".to_owned(),
        (_, true, Some(MessageStatus::Pending)) => of_sqlite("pending"),
        (_, true, Some(MessageStatus::Waiting)) => of_sqlite("waiting_row_id"),
        (_, true, _) => of_sqlite("dead"),
        (_, false, _) => of_sqlite("id"),
    };
    dialect.by_index(&index)
}

pub(crate) fn find(dialect: &Dialect, id: MessageId) -> Statement {
    let text = format!(
        "SELECT {}, {} AS available_micros FROM {} m WHERE m.id = ?",
        columns(dialect, &payload(dialect)),
        dialect.micros_of_any("m.available_at"),
        dialect.messages
    );
    dialect.statement(&text, [id.as_uuid().into()])
}

pub(crate) fn head(dialect: &Dialect, aggregate: &Aggregate) -> Statement {
    let mut sql = dialect.sql(format!(
        "SELECT a.last_sequence, {} AS recorded_micros FROM {} a WHERE a.last_sequence > 0 AND ",
        dialect.micros_of_any("a.recorded_at"),
        dialect.aggregates
    ));
    dialect.push_key(&mut sql, "a", &Key::from(aggregate));
    sql.statement()
}

/// The inner query has only the condition on the id, so no plan reads beyond its limit. On MySQL it
/// returns only ids, because MySQL materializes its result.
pub(crate) fn search_published(dialect: &Dialect, search: &PublishedSearch) -> Statement {
    let is_mysql = dialect.backend == DbBackend::MySql;
    let mut sql = dialect.sql(format!(
        "SELECT {}, {} AS headers FROM (SELECT {}",
        stored_columns(dialect),
        match dialect.backend {
            DbBackend::Postgres => "m.headers::text",
            _ => "m.headers",
        },
        if is_mysql { "i.id" } else { "i.*" },
    ));
    push_ids(dialect, &mut sql, search);
    sql.push(" ORDER BY i.id DESC LIMIT ")
        .bind(i64::from(search.looked_at_max.get()));
    match is_mysql {
        true => sql.push(&format!(") w JOIN {} m ON m.id = w.id", dialect.messages)),
        false => sql.push(") m"),
    };
    sql.push(" WHERE m.status IN (1, 4)");
    if let Some(aggregate) = &search.aggregate {
        sql.push(" AND ");
        dialect.push_key(&mut sql, "m", &Key::from(aggregate));
    }
    sql.push(" ORDER BY m.id DESC LIMIT ")
        .bind(i64::from(search.limit.get()))
        .statement()
}

pub(crate) fn search_end(dialect: &Dialect, search: &PublishedSearch) -> Statement {
    let mut sql = dialect.sql("SELECT i.id");
    push_ids(dialect, &mut sql, search);
    let passed = i64::from(search.looked_at_max.get());
    sql.push(" ORDER BY i.id DESC LIMIT 1 OFFSET ")
        .bind(passed)
        .statement()
}

fn push_ids(dialect: &Dialect, sql: &mut Sql, search: &PublishedSearch) {
    let hint = match dialect.backend {
        DbBackend::MySql => dialect.by_index("outbox_messages_id"),
        _ => String::new(),
    };
    sql.push(&format!(" FROM {} i{hint} WHERE 1 = 1", dialect.messages));
    if let Some(from) = search.from {
        sql.push(" AND i.id >= ").bind(id_at(from));
    }
    if let Some(until) = search.until {
        sql.push(" AND i.id < ").bind(id_at(until));
    }
}

/// `None`: this database has no log. The query needs no privilege on the table.
pub(crate) fn has_log(dialect: &Dialect) -> Option<Statement> {
    (dialect.backend == DbBackend::Postgres).then(|| {
        let log = dialect.log.replace('\'', "''");
        dialect.statement(&format!("SELECT to_regclass('{log}') IS NOT NULL AS has_log"), [])
    })
}

/// Condition on rows: the status is one of `statuses`. With a log, rows before the log relay's
/// stored position count as published.
///
/// Transactions are compared by age. No logged row matches if the distance exceeds two billion
/// transactions, or the log is off or of another server: transaction ids are local to a server.
pub(crate) fn settled(dialect: &Dialect, statuses: &str, has_log: bool) -> String {
    if !has_log {
        return format!("m.status {statuses}");
    }
    format!(
        "(m.status {statuses} OR (m.status = 4 AND COALESCE(age(m.xmin) > (SELECT max(CASE WHEN \
         pg_snapshot_xmax(pg_current_snapshot())::text::bigint - l.passed_xid::text::bigint BETWEEN 0 AND 2147483647 \
         THEN age(l.passed_xid::xid) ELSE 2147483647 END) FROM {} l WHERE l.is_on AND l.system_id = (SELECT system_identifier FROM pg_control_system())), false)))",
        dialect.log
    )
}
