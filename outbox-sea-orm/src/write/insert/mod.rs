//! Numbers messages and inserts them in the caller's transaction.
//!
//! The head row of an aggregate has its last sequence. A writer that increments the sequence locks
//! the row until its transaction ends, so sequences are gapless and in commit order.
//!
//! Invariants:
//!
//! * Messages are checked (`NewMessage::check`).
//! * Lock order in a statement: head rows by aggregate type, then id; then deduplication keys.
//! * An aggregate's row ids have the order of its sequences: its head row is locked before the
//!   insert.

mod grouping;
mod postgres;
pub(crate) mod sql;

use std::collections::HashMap;
use std::ops::Range;

use outbox_core::{Aggregate, NewMessage};
use sea_orm::{ConnectionTrait, DbBackend, DbErr, QueryResult, SqlErr};

use self::grouping::Grouped;
use self::sql::dedup_keys;
use crate::error::RecordError;
use crate::names::TableNames;
use crate::sql::{Dialect, ROW_IDS_PER_DRAW, headers_json};
use crate::write::packet::{UNASKED_BYTES_MAX, packet_bytes_max};

/// Maximum bytes per statement; a larger message is inserted alone. MariaDB's `max_allowed_packet`
/// is 16 MiB by default.
const STATEMENT_BYTES_MAX: usize = 4 * 1024 * 1024;

const ROW_BYTES_MAX: usize = 8 * 1024;

/// Messages of a call with several chunks are sorted by aggregate, so that all head rows are locked
/// in order.
pub(crate) async fn insert<C: ConnectionTrait>(
    conn: &C,
    names: &TableNames,
    mut messages: Vec<NewMessage>,
) -> Result<(), RecordError> {
    if messages.is_empty() {
        return Ok(());
    }
    let backend = conn.get_database_backend();
    names
        .check(backend)
        .map_err(|error| RecordError::Database(DbErr::Custom(error.to_string())))?;
    let dialect = Dialect::new(backend, names);
    let bytes_max = bytes_max(conn, &messages).await?;
    let mut chunks = chunks(&messages, rows_max(backend), bytes_max);
    if chunks.len() > 1 {
        messages.sort_by(|one, other| one.aggregate().cmp(other.aggregate()));
        chunks = self::chunks(&messages, rows_max(backend), bytes_max);
    }
    for chunk in chunks {
        let messages = &messages[chunk];
        let statement = match (backend, messages) {
            (DbBackend::Postgres, [message]) => postgres::insert_one(&dialect, message),
            (DbBackend::Postgres, _) => postgres::insert_many(&dialect, messages),
            _ => {
                let numbers = count_up(conn, &dialect, messages).await?;
                let keys = dedup_keys(messages);
                if !keys.is_empty() {
                    let inserted = conn.execute_raw(sql::insert_keys(&dialect, &keys)).await;
                    inserted.map_err(|error| refused(error, |_| true))?;
                }
                sql::insert_rows(&dialect, messages, &numbers)
            }
        };
        let inserted = conn.execute_raw(statement).await;
        inserted.map_err(|error| refused(error, |text| text.contains("outbox_dedup_keys")))?;
    }
    Ok(())
}

/// MariaDB's error does not name the table.
fn refused(error: DbErr, is_of_keys: impl Fn(&str) -> bool) -> RecordError {
    match error.sql_err() {
        Some(SqlErr::UniqueConstraintViolation(text)) if is_of_keys(&text) => {
            RecordError::DuplicateKey { source: error }
        }
        _ => RecordError::Database(error),
    }
}

/// Raises the head rows. Returns the sequence of each message, -1 if unsequenced.
async fn count_up<C: ConnectionTrait>(
    conn: &C,
    dialect: &Dialect,
    messages: &[NewMessage],
) -> Result<Vec<i64>, RecordError> {
    let grouped = Grouped::new(messages);
    let heads = &grouped.heads;
    let last = match heads.is_empty() {
        true => HashMap::new(),
        false => raise(conn, dialect, heads).await.map_err(RecordError::Database)?,
    };
    Ok(grouped.numbers(|head, position| {
        let (aggregate, count) = &heads[head];
        last[aggregate] - count + position
    }))
}

async fn raise<C: ConnectionTrait>(
    conn: &C,
    dialect: &Dialect,
    heads: &[(Aggregate, i64)],
) -> Result<HashMap<Aggregate, i64>, DbErr> {
    let raise = sql::count_up(dialect, heads);
    let rows = match dialect.backend {
        DbBackend::MySql => {
            conn.execute_raw(raise).await?;
            conn.query_all_raw(sql::read_heads(dialect, heads)).await?
        }
        _ => conn.query_all_raw(raise).await?,
    };
    if rows.len() != heads.len() {
        let (returned, asked) = (rows.len(), heads.len());
        return Err(DbErr::Custom(format!(
            "the database returned {returned} of {asked} head rows"
        )));
    }
    let last = rows.iter().map(|row| {
        let key = |column| read_key(dialect.backend, row, column);
        let aggregate = Aggregate::new(key("aggregate_type")?, key("aggregate_id")?);
        Ok((aggregate, row.try_get("", "last_sequence")?))
    });
    last.collect()
}

fn read_key(backend: DbBackend, row: &QueryResult, column: &str) -> Result<String, DbErr> {
    match backend {
        DbBackend::MySql => String::from_utf8(row.try_get("", column)?)
            .map_err(|error| DbErr::Type(format!("{column}: {error}"))),
        _ => row.try_get("", column),
    }
}

fn rows_max(backend: DbBackend) -> usize {
    match backend {
        DbBackend::Postgres => ROW_IDS_PER_DRAW / 2,
        _ => 500,
    }
}

/// Rejects a message that exceeds `max_allowed_packet`.
async fn bytes_max<C: ConnectionTrait>(conn: &C, messages: &[NewMessage]) -> Result<usize, RecordError> {
    let all: usize = messages.iter().map(size_bytes).sum();
    if conn.get_database_backend() != DbBackend::MySql || all <= UNASKED_BYTES_MAX {
        return Ok(STATEMENT_BYTES_MAX);
    }
    let packet = packet_bytes_max(conn).await.map_err(RecordError::Database)?;
    for message in messages {
        let size_bytes = message.payload().len() + headers_json(message).len();
        let limit_bytes = packet.saturating_sub(ROW_BYTES_MAX);
        if size_bytes > limit_bytes {
            return Err(RecordError::TooLarge {
                event_type: message.event_type(),
                size_bytes,
                limit_bytes,
            });
        }
    }
    Ok(STATEMENT_BYTES_MAX.min(packet / 2))
}

fn size_bytes(message: &NewMessage) -> usize {
    message.payload().len() + message.headers().size_bytes()
}

fn chunks(messages: &[NewMessage], rows_max: usize, bytes_max: usize) -> Vec<Range<usize>> {
    let (mut chunks, mut start, mut bytes) = (Vec::new(), 0, 0);
    for (n, message) in messages.iter().enumerate() {
        let size = size_bytes(message);
        if n > start && (n - start == rows_max || bytes + size > bytes_max) {
            chunks.push(start..n);
            (start, bytes) = (n, 0);
        }
        bytes += size;
    }
    chunks.push(start..messages.len());
    chunks
}
