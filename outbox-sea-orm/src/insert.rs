//! Writes messages inside the caller's transaction and numbers them.
//!
//! Each aggregate has a head row with its last sequence. Counting it up locks it until the transaction ends, so the next writer of the
//! aggregate waits, and sequences are commit order without holes. Invariants: head rows are locked in one order everywhere (by aggregate
//! type, then id), and a message's `row_id` is drawn after its head row is locked, so that `row_id` order within an aggregate is
//! sequence order. Absent: beginning and ending the transaction, and checking the messages (`NewMessage::check`).
//!
//! A crash or a dropped future between two statements leaves the caller's transaction open and undecided; rolling it back
//! removes all of it.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use outbox_core::{Aggregate, NewMessage};
use sea_orm::{ConnectionTrait, DbBackend, DbErr, QueryResult, SqlErr};

#[cfg(feature = "postgres")]
use crate::dialect::postgres;
use crate::dialect::{Dialect, mysql, sqlite, unsupported};
use crate::names::TableNames;

/// Most bytes of payloads and headers in one statement. MySQL's smallest default of `max_allowed_packet` is 16 MiB (MariaDB). A single larger
/// message goes alone.
const STATEMENT_BYTES_MAX: usize = 4 * 1024 * 1024;

/// 9999-12-31 23:59:59.999999 UTC in microseconds, the last time that MySQL can hold.
pub(crate) const TIME_MICROS_MAX: i64 = 253_402_300_799_999_999;

/// Why messages were not inserted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InsertError {
    /// A message with the same deduplication key exists.
    #[error("deduplication key exists")]
    DuplicateKey(#[source] DbErr),
    /// The database failed.
    #[error("database failed")]
    Database(#[source] DbErr),
}

impl From<DbErr> for InsertError {
    fn from(error: DbErr) -> Self {
        match error.sql_err() {
            // PostgreSQL and MySQL name the constraint, SQLite table and column. A repeated message id is a database error.
            Some(SqlErr::UniqueConstraintViolation(message))
                if message.contains("outbox_messages_dedup_key")
                    || message.contains("outbox_messages.dedup_key") =>
            {
                Self::DuplicateKey(error)
            }
            _ => Self::Database(error),
        }
    }
}

/// Inserts messages in their order. `conn` is an open transaction.
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

    #[cfg(feature = "postgres")]
    if let (DbBackend::Postgres, [message]) = (backend, messages.as_slice()) {
        conn.execute_raw(postgres::insert_one(&dialect, message)).await?;
        return Ok(());
    }

    let heads = heads(&messages);
    let chunks = chunks(&messages, rows_max(backend));

    #[cfg(feature = "postgres")]
    if backend == DbBackend::Postgres && chunks.len() == 1 {
        let numbers = number(&messages, |aggregate, position| heads[aggregate] - position);
        let heads: Vec<_> = heads.into_iter().collect();
        let sequences = postgres::Sequences::CountUp(&heads);
        conn.execute_raw(postgres::insert_many(&dialect, &messages, &numbers, sequences))
            .await?;
        return Ok(());
    }

    // All head rows are locked before the first message is inserted, in one order over all statements.
    let last = count_up(
        conn,
        &dialect,
        heads.iter().map(|(a, count)| (a.clone(), *count)).collect(),
    )
    .await?;
    let numbers = number(&messages, |aggregate, position| {
        last[aggregate] - heads[aggregate] + position
    });
    for chunk in chunks {
        let (messages, numbers) = (&messages[chunk.clone()], &numbers[chunk]);
        let statement = match backend {
            #[cfg(feature = "postgres")]
            DbBackend::Postgres => {
                postgres::insert_many(&dialect, messages, numbers, postgres::Sequences::Given)
            }
            _ => dialect.insert_rows(messages, numbers),
        };
        conn.execute_raw(statement).await?;
    }
    Ok(())
}

/// Counts up the head rows, in their order, and returns each one's last sequence.
async fn count_up<C: ConnectionTrait>(
    conn: &C,
    dialect: &Dialect,
    heads: Vec<(Aggregate, i64)>,
) -> Result<HashMap<Aggregate, i64>, DbErr> {
    let mut last = HashMap::with_capacity(heads.len());
    for heads in heads.chunks(rows_max(dialect.backend)) {
        let rows = match dialect.backend {
            #[cfg(feature = "postgres")]
            DbBackend::Postgres => conn.query_all_raw(postgres::count_up(dialect, heads)).await?,
            DbBackend::MySql => {
                conn.execute_raw(mysql::count_up(dialect, heads)).await?;
                conn.query_all_raw(mysql::read_heads(dialect, heads)).await?
            }
            DbBackend::Sqlite => conn.query_all_raw(sqlite::count_up(dialect, heads)).await?,
            backend => return Err(unsupported(backend)),
        };
        if rows.len() != heads.len() {
            return Err(DbErr::Custom(format!(
                "{} of {} head rows were returned",
                rows.len(),
                heads.len()
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

/// An aggregate's type or id that this crate has written, so it is UTF-8.
fn read_key(backend: DbBackend, row: &QueryResult, column: &str) -> Result<String, DbErr> {
    match backend {
        DbBackend::MySql => String::from_utf8(row.try_get("", column)?)
            .map_err(|error| DbErr::Type(format!("{column}: {error}"))),
        _ => row.try_get("", column),
    }
}

/// How many sequenced messages each aggregate gets, sorted as head rows are locked.
fn heads(messages: &[NewMessage]) -> BTreeMap<Aggregate, i64> {
    let mut heads = BTreeMap::new();
    for message in messages.iter().filter(|message| message.is_sequenced()) {
        // Most calls have one aggregate: look before cloning.
        match heads.get_mut(message.aggregate()) {
            Some(count) => *count += 1,
            None => {
                heads.insert(message.aggregate().clone(), 1);
            }
        }
    }
    heads
}

/// A number per message from its aggregate and its position there (1, 2, 3 …); -1 for an unsequenced one.
fn number(messages: &[NewMessage], number: impl Fn(&Aggregate, i64) -> i64) -> Vec<i64> {
    let mut positions: HashMap<&Aggregate, i64> = HashMap::new();
    messages
        .iter()
        .map(|message| {
            if !message.is_sequenced() {
                return -1;
            }
            let position = positions.entry(message.aggregate()).or_default();
            *position += 1;
            number(message.aggregate(), *position)
        })
        .collect()
}

/// Rows per statement: 13 binds each, of which SQLite takes 32,766 and MySQL 65,535; PostgreSQL binds arrays.
fn rows_max(backend: DbBackend) -> usize {
    match backend {
        DbBackend::Postgres => 5_000,
        _ => 500,
    }
}

/// Splits messages into statements, bounded by rows and bytes.
fn chunks(messages: &[NewMessage], rows_max: usize) -> Vec<Range<usize>> {
    let (mut chunks, mut start, mut bytes) = (Vec::new(), 0, 0);
    for (n, message) in messages.iter().enumerate() {
        let size = message.payload().len() + message.headers().size_bytes();
        if n > start && (n - start == rows_max || bytes + size > STATEMENT_BYTES_MAX) {
            chunks.push(start..n);
            (start, bytes) = (n, 0);
        }
        bytes += size;
    }
    chunks.push(start..messages.len());
    chunks
}

/// The headers as they are stored.
pub(crate) fn headers_json(message: &NewMessage) -> String {
    serde_json::to_string(message.headers()).expect("a map of strings is JSON")
}

/// When the message is due, in microseconds since 1970; 0 for at once. Rounded up, and kept within what every database can hold.
pub(crate) fn delay_micros(message: &NewMessage) -> i64 {
    let Some(time) = message.delayed_until() else {
        return 0;
    };
    let micros = (time.unix_timestamp_nanos() + 999).div_euclid(1000);
    i64::try_from(micros)
        .unwrap_or(TIME_MICROS_MAX)
        .clamp(1, TIME_MICROS_MAX)
}
