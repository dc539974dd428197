//! Numbers messages and inserts them in the caller's transaction.
//!
//! The head row of an aggregate has its last sequence. An increment locks it until the transaction
//! ends: sequences are gapless, in commit order.
//!
//! Invariants:
//!
//! * Messages are checked (`NewMessage::check`).
//! * Lock order: head rows by aggregate type, then id; then deduplication keys.
//! * Row ids of an aggregate have the order of sequences: the head row is locked before the insert.

mod grouping;
mod postgres;
pub(crate) mod sql;

use std::collections::HashMap;
use std::ops::Range;

use outbox_core::{Aggregate, NewMessage};
use sea_orm::{ConnectionTrait, DbBackend, DbErr, QueryResult, SqlErr, Statement};

use self::grouping::Grouped;
use self::sql::dedup_keys;
use crate::error::RecordError;
use crate::names::TableNames;
use crate::sql::{Dialect, headers_json, unsupported};
use crate::write::packet::{UNASKED_BYTES_MAX, packet_bytes_max};

/// A larger message gets its own statement. The lowest default of `max_allowed_packet` is 16 MiB
/// (MariaDB).
const STATEMENT_BYTES_MAX: usize = 4 * 1024 * 1024;

const ROW_BYTES_MAX: usize = 8 * 1024;

#[derive(Debug, thiserror::Error)]
pub(crate) enum InsertError {
    #[error("deduplication key exists")]
    DuplicateKey(#[source] DbErr),
    #[error("message is too large for the database")]
    TooLarge {
        event_type: String,
        size_bytes: usize,
        limit_bytes: usize,
    },
    #[error("database failed")]
    Database(#[source] DbErr),
}

impl From<DbErr> for InsertError {
    fn from(error: DbErr) -> Self {
        match error.sql_err() {
            // The text has the name of the table or constraint.
            Some(SqlErr::UniqueConstraintViolation(message)) if message.contains("outbox_dedup_keys") => {
                Self::DuplicateKey(error)
            }
            _ => Self::Database(error),
        }
    }
}

impl InsertError {
    /// MySQL names no table: use it only for an insert of keys.
    fn of_keys(error: DbErr) -> Self {
        match error.sql_err() {
            Some(SqlErr::UniqueConstraintViolation(_)) => Self::DuplicateKey(error),
            _ => Self::Database(error),
        }
    }
}

impl From<InsertError> for RecordError {
    fn from(error: InsertError) -> Self {
        match error {
            InsertError::TooLarge {
                event_type,
                size_bytes,
                limit_bytes,
            } => RecordError::TooLarge {
                event_type,
                size_bytes,
                limit_bytes,
            },
            InsertError::DuplicateKey(source) => RecordError::DuplicateKey { source },
            InsertError::Database(source) => RecordError::Database(source),
        }
    }
}

pub(crate) async fn insert<C: ConnectionTrait>(
    conn: &C,
    names: &TableNames,
    messages: Vec<NewMessage>,
) -> Result<(), InsertError> {
    if messages.is_empty() {
        return Ok(());
    }
    let backend = conn.get_database_backend();
    names
        .check(backend)
        .map_err(|error| DbErr::Custom(error.to_string()))?;
    let dialect = Dialect::new(backend, names);
    let chunks = chunks(&messages, rows_max(backend), bytes_max(conn, &messages).await?);
    if let Some(statement) = one_statement(&dialect, &messages, &chunks) {
        conn.execute_raw(statement).await?;
        return Ok(());
    }

    let grouped = Grouped::new(&messages);
    let last = count_up(conn, &dialect, &grouped.heads).await?;
    let numbers = grouped.numbers(|head, position| {
        let (aggregate, count) = &grouped.heads[head];
        last[aggregate] - count + position
    });
    for keys in dedup_keys(&messages).chunks(rows_max(backend)) {
        let inserted = conn.execute_raw(sql::insert_keys(&dialect, keys)).await;
        inserted.map_err(InsertError::of_keys)?;
    }
    for chunk in chunks {
        let statement = sql::insert_rows(&dialect, &messages[chunk.clone()], &numbers[chunk]);
        conn.execute_raw(statement).await?;
    }
    Ok(())
}

fn one_statement(dialect: &Dialect, messages: &[NewMessage], chunks: &[Range<usize>]) -> Option<Statement> {
    if dialect.backend != DbBackend::Postgres || chunks.len() != 1 {
        return None;
    }
    if let [message] = messages {
        return Some(postgres::insert_one(dialect, message));
    }
    let grouped = Grouped::new(messages);
    let numbers = grouped.numbers(|head, position| grouped.heads[head].1 - position);
    let sequences = postgres::Sequences::CountUp(&grouped);
    Some(postgres::insert_many(dialect, messages, &numbers, sequences))
}

async fn count_up<C: ConnectionTrait>(
    conn: &C,
    dialect: &Dialect,
    heads: &[(Aggregate, i64)],
) -> Result<HashMap<Aggregate, i64>, DbErr> {
    let mut last = HashMap::with_capacity(heads.len());
    for heads in heads.chunks(rows_max(dialect.backend)) {
        let count_up = sql::count_up(dialect, heads);
        let rows = match dialect.backend {
            DbBackend::Postgres => conn.query_all_raw(count_up).await?,
            DbBackend::MySql => {
                conn.execute_raw(count_up).await?;
                conn.query_all_raw(sql::read_heads(dialect, heads)).await?
            }
            DbBackend::Sqlite => conn.query_all_raw(count_up).await?,
            backend => return Err(unsupported(backend)),
        };
        if rows.len() != heads.len() {
            let (returned, asked) = (rows.len(), heads.len());
            return Err(DbErr::Custom(format!(
                "the database returned {returned} of {asked} head rows"
            )));
        }
        for row in rows {
            let key = |column| read_key(dialect.backend, &row, column);
            let aggregate = Aggregate::new(key("aggregate_type")?, key("aggregate_id")?);
            last.insert(aggregate, row.try_get("", "last_sequence")?);
        }
    }
    Ok(last)
}

/// Always UTF-8: this crate writes the keys.
fn read_key(backend: DbBackend, row: &QueryResult, column: &str) -> Result<String, DbErr> {
    match backend {
        DbBackend::MySql => String::from_utf8(row.try_get("", column)?)
            .map_err(|error| DbErr::Type(format!("{column}: {error}"))),
        _ => row.try_get("", column),
    }
}

/// 13 values per row. SQLite allows 32,766, MySQL 65,535; PostgreSQL binds arrays.
fn rows_max(backend: DbBackend) -> usize {
    match backend {
        DbBackend::Postgres => 5_000,
        _ => 500,
    }
}

/// Limit of a statement. Rejects a message that exceeds `max_allowed_packet`.
async fn bytes_max<C: ConnectionTrait>(conn: &C, messages: &[NewMessage]) -> Result<usize, InsertError> {
    let all: usize = messages.iter().map(size_bytes).sum();
    if conn.get_database_backend() != DbBackend::MySql || all <= UNASKED_BYTES_MAX {
        return Ok(STATEMENT_BYTES_MAX);
    }
    let packet = packet_bytes_max(conn).await?;
    for message in messages {
        let size_bytes = message.payload().len() + headers_json(message).len();
        let limit_bytes = packet.saturating_sub(ROW_BYTES_MAX);
        if size_bytes > limit_bytes {
            return Err(InsertError::TooLarge {
                event_type: message.event_type(),
                size_bytes,
                limit_bytes,
            });
        }
    }
    // Half remains for other columns.
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
