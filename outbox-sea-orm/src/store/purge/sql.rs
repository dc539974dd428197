//! SQL that purges published messages and old deduplication keys.

use std::time::Duration;

use outbox_core::MessageId;
use sea_orm::{DbBackend, Statement, Value};
use uuid::Uuid;

use crate::sql::uuids;
use crate::sql::{Dialect, micros};

pub(crate) fn purgeable(
    dialect: &Dialect,
    older_than: Duration,
    after: Option<MessageId>,
    below: Uuid,
    limit: i64,
) -> Statement {
    let mut sql = dialect.sql("SELECT m.id, CASE WHEN m.status = 1");
    for column in ["m.created_at", "m.published_at"] {
        let age = sql.placeholder(-micros(older_than));
        sql.push(&format!(" AND {column} < "))
            .push(&dialect.now_plus(&age));
    }
    let after = after.map_or(Uuid::nil(), |after| after.as_uuid());
    let (one, zero) = (dialect.int("1"), dialect.int("0"));
    let text = format!(
        " THEN {one} ELSE {zero} END AS is_old FROM {} m WHERE m.id > ? AND m.id < ? ORDER BY m.id LIMIT ?",
        dialect.messages
    );
    sql.push_with(&text, [after.into(), below.into(), limit.into()])
        .statement()
}

/// Deletes in id order, so that two purges cannot deadlock. Without the index hint, MySQL would
/// scan the table if the list is long, and wait for business transactions.
pub(crate) fn purge(dialect: &Dialect, ids: &[Uuid]) -> Statement {
    let mut sql = dialect.sql(match dialect.backend {
        DbBackend::MySql => format!(
            "DELETE m FROM {} m FORCE INDEX (outbox_messages_id)",
            dialect.messages
        ),
        _ => format!("DELETE FROM {}", dialect.messages),
    });
    sql.push(" WHERE status = 1 AND id");
    if dialect.backend == DbBackend::Postgres {
        return sql
            .push_with(" = ANY(?)", [uuids(ids.iter().copied())])
            .statement();
    }
    sql.push(" IN ")
        .bind_rows([ids.iter().copied().map(Value::from)])
        .statement()
}

/// Deletes the oldest keys first. SKIP LOCKED prevents deadlocks of two purges on PostgreSQL. MySQL
/// needs READ COMMITTED, because gap locks block writers.
pub(crate) fn purge_keys(dialect: &Dialect, older_than: Duration, limit: i64) -> Statement {
    let keys = &dialect.dedup_keys;
    let old = format!(
        "recorded_at < {} ORDER BY recorded_at LIMIT ?",
        dialect.statement_now_plus("?")
    );
    let text = match dialect.backend {
        DbBackend::MySql => format!("DELETE FROM {keys} WHERE {old}"),
        backend => {
            let lock = if backend == DbBackend::Postgres {
                " FOR UPDATE SKIP LOCKED"
            } else {
                ""
            };
            format!(
                "DELETE FROM {keys} WHERE dedup_key IN (SELECT k.dedup_key FROM {keys} k WHERE k.{old}{lock})"
            )
        }
    };
    dialect.statement(&text, [(-micros(older_than)).into(), limit.into()])
}
