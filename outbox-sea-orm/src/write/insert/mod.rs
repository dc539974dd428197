//! Numbers messages and inserts them in the caller's transaction.
//!
//! The head row of an aggregate has its last sequence. A writer that increments the sequence locks
//! the row until its transaction ends, so sequences are gapless and in commit order.
//!
//! Invariants:
//!
//! * Messages are checked (`NewMessage::check`).
//! * Lock order: head rows by aggregate type, then id; then deduplication keys.
//! * An aggregate's row ids have the order of its sequences: its head row is locked before the
//!   insert.

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
use crate::sql::{Dialect, ROW_IDS_PER_DRAW, headers_json, unsupported};
use crate::write::packet::{UNASKED_BYTES_MAX, packet_bytes_max};

/// A larger message gets its own statement. MariaDB's `max_allowed_packet` is 16 MiB by default.
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
            Some(SqlErr::UniqueConstraintViolation(message)) if message.contains("outbox_dedup_keys") => {
                Self::DuplicateKey(error)
            }
            _ => Self::Database(error),
        }
    }
}

impl InsertError {
    /// MySQL's error names no table, so this is only for inserts of keys.
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
    let row_ids = match backend {
        DbBackend::Postgres => draw_row_ids(conn, &dialect, messages.len()).await?,
        _ => Vec::new(),
    };
    let last = count_up(conn, &dialect, &grouped, &row_ids).await?;
    let numbers = grouped.numbers(|head, position| {
        let (aggregate, count) = &grouped.heads[head];
        last[aggregate].sequence - count + position
    });
    let row_ids: Vec<i64> = (row_ids.iter().zip(&grouped.places))
        .map(|(row_id, place)| match place {
            Some((head, position)) => {
                let (aggregate, count) = &grouped.heads[*head];
                let (last, expected) = (last[aggregate].row_id, row_ids[grouped.lasts[*head] as usize]);
                if last == expected {
                    *row_id
                } else {
                    last - count + position
                }
            }
            None => *row_id,
        })
        .collect();
    for keys in dedup_keys(&messages).chunks(rows_max(backend)) {
        let inserted = conn.execute_raw(sql::insert_keys(&dialect, keys)).await;
        inserted.map_err(InsertError::of_keys)?;
    }
    for chunk in chunks {
        let (messages, numbers) = (&messages[chunk.clone()], &numbers[chunk.clone()]);
        let statement = match backend {
            DbBackend::Postgres => {
                let heads = postgres::Heads::Raised(&row_ids[chunk]);
                postgres::insert_many(&dialect, messages, numbers, heads)
            }
            _ => sql::insert_rows(&dialect, messages, numbers),
        };
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
    let heads = postgres::Heads::CountUp(&grouped);
    Some(postgres::insert_many(dialect, messages, &numbers, heads))
}

async fn draw_row_ids<C: ConnectionTrait>(
    conn: &C,
    dialect: &Dialect,
    messages: usize,
) -> Result<Vec<i64>, DbErr> {
    let blocks = messages.div_ceil(ROW_IDS_PER_DRAW);
    let drawn = conn.query_all_raw(postgres::draw(dialect, blocks as i64)).await?;
    let drawn: Result<Vec<i64>, DbErr> = drawn.iter().map(|row| row.try_get("", "row_id")).collect();
    let mut drawn = drawn?;
    drawn.sort_unstable();
    let row_ids = drawn
        .into_iter()
        .flat_map(|first| first..first + ROW_IDS_PER_DRAW as i64);
    Ok(row_ids.take(messages).collect())
}

struct Head {
    sequence: i64,
    /// Row id of the aggregate's last message. PostgreSQL only.
    row_id: i64,
}

/// Locks head rows in order. `row_ids`: row ids of the messages (PostgreSQL).
async fn count_up<C: ConnectionTrait>(
    conn: &C,
    dialect: &Dialect,
    grouped: &Grouped,
    row_ids: &[i64],
) -> Result<HashMap<Aggregate, Head>, DbErr> {
    let mut last = HashMap::with_capacity(grouped.heads.len());
    let chunk = rows_max(dialect.backend);
    for (heads, lasts) in grouped.heads.chunks(chunk).zip(grouped.lasts.chunks(chunk)) {
        let rows = match dialect.backend {
            DbBackend::Postgres => {
                let first = row_ids.first().copied().unwrap_or_default();
                let lasts = lasts.iter().map(|n| row_ids[*n as usize] - first);
                conn.query_all_raw(postgres::count_up(dialect, heads, first, lasts))
                    .await?
            }
            DbBackend::MySql => {
                conn.execute_raw(sql::count_up(dialect, heads)).await?;
                conn.query_all_raw(sql::read_heads(dialect, heads)).await?
            }
            DbBackend::Sqlite => conn.query_all_raw(sql::count_up(dialect, heads)).await?,
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
            let row_id = match dialect.backend {
                DbBackend::Postgres => row.try_get("", "last_row_id")?,
                _ => 0,
            };
            let sequence = row.try_get("", "last_sequence")?;
            last.insert(aggregate, Head { sequence, row_id });
        }
    }
    Ok(last)
}

fn read_key(backend: DbBackend, row: &QueryResult, column: &str) -> Result<String, DbErr> {
    match backend {
        DbBackend::MySql => String::from_utf8(row.try_get("", column)?)
            .map_err(|error| DbErr::Type(format!("{column}: {error}"))),
        _ => row.try_get("", column),
    }
}

/// A row has 13 values. SQLite allows 32,766 values, MySQL 65,535; PostgreSQL binds arrays.
fn rows_max(backend: DbBackend) -> usize {
    match backend {
        DbBackend::Postgres => ROW_IDS_PER_DRAW / 2,
        _ => 500,
    }
}

/// Rejects a message that exceeds `max_allowed_packet`.
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
