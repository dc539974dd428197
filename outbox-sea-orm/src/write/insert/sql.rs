//! SQL that numbers messages and inserts them.

use outbox_core::{Aggregate, NewMessage};
use sea_orm::{DbBackend, Statement, Value};

use crate::sql::{Dialect, delay_micros, headers_json, keys};

/// Keys are sorted against deadlocks.
pub(super) fn dedup_keys(messages: &[NewMessage]) -> Vec<&str> {
    let mut keys: Vec<&str> = messages.iter().filter_map(NewMessage::dedup_key).collect();
    keys.sort_unstable();
    keys
}

/// The insert waits for transactions with the same key. An existing key is a unique violation.
pub(super) fn insert_keys(dialect: &Dialect, keys: &[&str]) -> Statement {
    let mut sql = dialect.sql(format!(
        "INSERT INTO {} (dedup_key, recorded_at) VALUES ",
        dialect.dedup_keys
    ));
    for (n, key) in keys.iter().enumerate() {
        sql.push(if n == 0 { "(" } else { ", (" });
        sql.bind(dialect.key(key))
            .push(", ")
            .push(dialect.now())
            .push(")");
    }
    sql.statement()
}

/// MySQL and SQLite assign row ids in order. `numbers` are the messages' sequences, -1 if
/// unsequenced.
pub(super) fn insert_rows(dialect: &Dialect, messages: &[NewMessage], numbers: &[i64]) -> Statement {
    let mut sql = dialect.sql(format!(
        "INSERT INTO {} (id, partition_no, aggregate_type, aggregate_id, sequence, event_type, event_version, \
         subject, content_type, payload, headers, dedup_key, available_at, created_at) VALUES ",
        dialect.messages
    ));
    for (n, (message, number)) in messages.iter().zip(numbers).enumerate() {
        sql.push(if n == 0 { "(" } else { ", (" });
        let [aggregate_type, aggregate_id] = keys(dialect, message.aggregate());
        let values = [
            Value::from(message.id().as_uuid()),
            Value::from(i64::from(message.aggregate().partition())),
            aggregate_type,
            aggregate_id,
            Value::BigInt((*number >= 0).then_some(*number)),
            Value::from(message.event_type()),
            Value::from(i64::from(message.event_version())),
            Value::from(message.subject().map(str::to_owned)),
            Value::from(message.content_type()),
            Value::from(message.payload().to_vec()),
            Value::from(headers_json(message)),
            message
                .dedup_key()
                .map_or(Value::String(None), |key| dialect.key(key)),
        ];
        for value in values {
            sql.bind(value).push(", ");
        }
        let delay = sql.placeholder(delay_micros(message));
        sql.push(&dialect.time(&delay))
            .push(", ")
            .push(dialect.now())
            .push(")");
    }
    sql.statement()
}

/// Locks aggregate rows in the given order. MySQL returns no rows.
pub(super) fn count_up(dialect: &Dialect, heads: &[(Aggregate, i64)]) -> Statement {
    let mut sql = dialect.sql(format!(
        "INSERT INTO {} (aggregate_type, aggregate_id, last_sequence, recorded_at) VALUES ",
        dialect.aggregates
    ));
    for (n, (aggregate, count)) in heads.iter().enumerate() {
        sql.push(if n == 0 { "(" } else { ", (" });
        let [aggregate_type, id] = keys(dialect, aggregate);
        sql.push_with(
            &format!("?, ?, ?, {})", dialect.now()),
            [aggregate_type, id, (*count).into()],
        );
    }
    sql.push(match dialect.backend {
        DbBackend::MySql => {
            " ON DUPLICATE KEY UPDATE last_sequence = last_sequence + VALUES(last_sequence), \
             recorded_at = VALUES(recorded_at)"
        }
        _ => {
            " ON CONFLICT (aggregate_type, aggregate_id) \
             DO UPDATE SET last_sequence = last_sequence + excluded.last_sequence, recorded_at = excluded.recorded_at \
             RETURNING aggregate_type, aggregate_id, last_sequence"
        }
    });
    sql.statement()
}

/// Reads the latest rows: the transaction's snapshot may be older than its own update. Without the
/// index hint, MySQL scans the table for a long list, and waits for other locks.
pub(crate) fn read_heads(dialect: &Dialect, heads: &[(Aggregate, i64)]) -> Statement {
    let mut sql = dialect.sql(format!(
        "SELECT aggregate_type, aggregate_id, last_sequence FROM {} FORCE INDEX (PRIMARY) \
         WHERE (aggregate_type, aggregate_id) IN (",
        dialect.aggregates
    ));
    sql.bind_rows(heads.iter().map(|(aggregate, _)| keys(dialect, aggregate)));
    sql.push(") FOR UPDATE").statement()
}
