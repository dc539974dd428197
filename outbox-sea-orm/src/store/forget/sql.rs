//! SQL that deletes the state of aggregates.

use std::time::Duration;

use sea_orm::{Statement, Value};
use uuid::Uuid;

use crate::sql::{Dialect, Key, Sql, micros};

/// Locks aggregate rows in key order, so that no sequenced message is recorded until the
/// transaction ends.
pub(super) fn lock_heads(dialect: &Dialect, keys: &[Key], idle_for: Option<Duration>) -> Statement {
    let mut sql = dialect.sql(format!(
        "SELECT {} FROM {} head WHERE ",
        dialect.key_columns("head"),
        dialect.aggregates
    ));
    dialect.push_keys(&mut sql, "head", keys);
    if let Some(idle_for) = idle_for {
        push_idle(dialect, &mut sql, idle_for);
    }
    sql.push(" ORDER BY head.aggregate_type, head.aggregate_id")
        .push(dialect.for_update())
        .statement()
}

/// The query reads the whole table, which has no index by aggregate.
pub(super) fn messages_of(dialect: &Dialect, keys: &[Key]) -> Statement {
    let mut sql = dialect.sql(format!("SELECT m.id FROM {} m WHERE ", dialect.messages));
    dialect.push_keys(&mut sql, "m", keys);
    sql.push(" ORDER BY m.id").statement()
}

pub(super) fn lock_messages_by_id(dialect: &Dialect, ids: &[Uuid]) -> Statement {
    let mut sql = dialect.sql(format!(
        "SELECT m.id, {}, {} AS status, m.dedup_key FROM {} m WHERE m.id IN ",
        dialect.key_columns("m"),
        dialect.int("m.status"),
        dialect.messages
    ));
    sql.bind_rows([ids.iter().copied().map(Value::from)]);
    sql.push(" ORDER BY m.id").push(dialect.for_update()).statement()
}

pub(super) fn delete_messages(dialect: &Dialect, ids: &[Uuid]) -> Statement {
    let mut sql = dialect.sql(format!("DELETE FROM {} WHERE id IN ", dialect.messages));
    sql.bind_rows([ids.iter().copied().map(Value::from)]).statement()
}

pub(super) fn delete_heads(dialect: &Dialect, keys: &[Key]) -> Statement {
    // MariaDB, and MySQL before 8.0.16, support no alias in DELETE.
    let table = &dialect.aggregates;
    let mut sql = dialect.sql(format!("DELETE FROM {table} WHERE "));
    dialect.push_keys(&mut sql, table, keys);
    sql.statement()
}

pub(super) fn idle_heads(
    dialect: &Dialect,
    aggregate_type: &str,
    idle_for: Duration,
    after: Option<&Key>,
    limit: i64,
) -> Statement {
    let mut sql = dialect.sql(format!(
        "SELECT {} FROM {} head WHERE head.aggregate_type = ",
        dialect.key_columns("head"),
        dialect.aggregates
    ));
    sql.bind(dialect.key(aggregate_type));
    push_idle(dialect, &mut sql, idle_for);
    if let Some(after) = after {
        let [_, id] = dialect.bind_key(&mut sql, after);
        sql.push(" AND head.aggregate_id > ").push(&id);
    }
    sql.push(" ORDER BY head.aggregate_id LIMIT ").bind(limit);
    sql.statement()
}

pub(super) fn unpublished_of(dialect: &Dialect, keys: &[Key]) -> Statement {
    let mut sql = dialect.sql("");
    for (n, status) in [0, 2, 3].into_iter().enumerate() {
        sql.push(if n == 0 { "" } else { " UNION " }).push(&format!(
            "SELECT {} FROM {} m WHERE m.status = {status} AND ",
            dialect.key_columns("m"),
            dialect.messages
        ));
        dialect.push_keys(&mut sql, "m", keys);
    }
    sql.statement()
}

fn push_idle(dialect: &Dialect, sql: &mut Sql, idle_for: Duration) {
    let age = sql.placeholder(-micros(idle_for));
    sql.push(" AND head.recorded_at <= ")
        .push(&dialect.now_plus(&age));
}

pub(super) fn delete_keys(dialect: &Dialect, keys: &[Value]) -> Statement {
    let mut sql = dialect.sql(format!("DELETE FROM {} WHERE dedup_key IN ", dialect.dedup_keys));
    sql.bind_rows([keys.iter().cloned()]);
    sql.statement()
}
