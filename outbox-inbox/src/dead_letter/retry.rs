//! Retries the dead letters that [`retry`](super::DeadLetters::retry) has marked.
//!
//! Invariant: one process at a time retries a dead letter. The dead letter is deleted only when its
//! message is handled. Lock order in the handler's transaction: dead letter, then inbox row. No
//! other path locks both in the opposite order: dead-lettering requires a `failed` inbox row, and a
//! message with a `failed` row has no dead letter.

use outbox_core::store::storable_error;
use outbox_core::{Aggregate, Incoming, Message};
use outbox_sea_orm::Sql;
use sea_orm::{ConnectionTrait, DatabaseTransaction, DbBackend, DbErr, QueryResult, Statement};
use uuid::Uuid;

use super::admin::{headers_column, read_headers, stream_sequence};
use super::selection::is_marked;
use super::{OPEN, RETRY};
use crate::columns::read_name;
use crate::dedup::Outcome;
use crate::dedup::sql::{InboxSql, Key, Status};

#[derive(Debug, Clone)]
pub(crate) struct StoredDeadLetter {
    pub(crate) id: Uuid,
    pub(crate) incoming: Incoming,
    pub(crate) aggregate: Option<Aggregate>,
    pub(crate) sequence: Option<i64>,
    source: Option<String>,
    pub(crate) attempts: u32,
}

impl StoredDeadLetter {
    /// Whether this letter comes from an older stream: compared with `other`, its sequence number
    /// is smaller and its stream sequence is later. Only numbers of one source are comparable.
    pub(crate) fn is_of_older_stream_than(&self, other: &Self) -> bool {
        let places = (self.incoming.stream_sequence, other.incoming.stream_sequence);
        let numbers = self.sequence.zip(other.sequence);
        places.0 > places.1
            && numbers.is_some_and(|(own, other)| own < other)
            && self.aggregate.is_some()
            && self.source.is_some()
            && (&self.aggregate, &self.source) == (&other.aggregate, &other.source)
    }
}

/// Returns marked letters in stream order: at most `limit`, with at most about `bytes` of payload,
/// but always one. The query uses index `inbox_dead_letters_retry` and no lock. Aggregates in
/// `held` are skipped, because their later letters must not fill the page.
///
/// A recreated stream counts from 1 again. A letter is therefore skipped while a marked letter of
/// its aggregate has a smaller number and a later stream sequence. A letter whose retry is running
/// has status open and is not compared by the query. The process that runs it compares it with
/// [`StoredDeadLetter::is_of_older_stream_than`].
pub(crate) async fn due<C: ConnectionTrait>(
    db: &C,
    inbox: &InboxSql,
    consumer: &str,
    held: &[Aggregate],
    limit: u32,
    bytes: usize,
) -> Result<Vec<StoredDeadLetter>, DbErr> {
    if limit == 0 {
        return Ok(Vec::new());
    }
    let (mut before, mut fit) = (0, 0_i64);
    for row in db
        .query_all_raw(sizes_of_due(inbox, consumer, held, limit))
        .await?
    {
        if fit > 0 && before >= bytes {
            break;
        }
        before += usize::try_from(row.try_get::<i64>("", "bytes")?).unwrap_or_default();
        fit += 1;
    }
    if fit == 0 {
        return Ok(Vec::new());
    }
    let rows = db.query_all_raw(read_due(inbox, consumer, held, fit)).await?;
    rows.iter().map(|row| read(row, inbox.backend())).collect()
}

pub(crate) fn sizes_of_due(inbox: &InboxSql, consumer: &str, held: &[Aggregate], limit: u32) -> Statement {
    let mut sql = inbox.sql(format!(
        "SELECT CAST(LENGTH(payload) AS {}) AS bytes",
        match inbox.backend() {
            DbBackend::MySql => "SIGNED",
            _ => "BIGINT",
        },
    ));
    push_due(&mut sql, inbox, consumer, held, limit.into());
    sql.statement()
}

pub(crate) fn read_due(inbox: &InboxSql, consumer: &str, held: &[Aggregate], limit: i64) -> Statement {
    let mut sql = inbox.sql(format!(
        "SELECT id, subject, stream_sequence, aggregate_type, aggregate_id, sequence, source, {}, payload, attempts",
        headers_column(inbox.backend()),
    ));
    push_due(&mut sql, inbox, consumer, held, limit);
    sql.statement()
}

fn read(row: &QueryResult, backend: DbBackend) -> Result<StoredDeadLetter, DbErr> {
    let name = |column| read_name(row, backend, column);
    let aggregate = name("aggregate_type")?.zip(name("aggregate_id")?);
    Ok(StoredDeadLetter {
        id: row.try_get("", "id")?,
        incoming: Incoming {
            subject: row.try_get("", "subject")?,
            headers: read_headers(row)?,
            payload: row.try_get::<Vec<u8>>("", "payload")?.into(),
            delivery_count: 1,
            stream_sequence: stream_sequence(row)?,
        },
        aggregate: aggregate.map(|(aggregate_type, id)| Aggregate::new(aggregate_type, id)),
        sequence: row.try_get("", "sequence")?,
        source: name("source")?,
        attempts: u32::try_from(row.try_get::<i32>("", "attempts")?).unwrap_or_default(),
    })
}

/// The query uses index `inbox_dead_letters_of_aggregate`. On MySQL and MariaDB, `NOT EXISTS` would
/// read all marked letters of the aggregate for each letter.
fn push_due(sql: &mut Sql, inbox: &InboxSql, consumer: &str, held: &[Aggregate], limit: i64) {
    let (letters, key) = (inbox.dead_letters(), inbox.key(consumer));
    let postgres = inbox.backend() == DbBackend::Postgres;
    // With stale statistics, PostgreSQL would run the subquery on older letters for every letter.
    // PostgreSQL cannot estimate the limit of the inner query, so it reads the letters in index
    // order.
    sql.push(&match postgres {
        true => format!(" FROM (SELECT * FROM {letters} WHERE consumer = "),
        false => format!(" FROM {letters} l WHERE l.consumer = "),
    });
    sql.bind(key).push(&match postgres {
        true => format!(
            " AND status = {RETRY} ORDER BY stream_sequence LIMIT (SELECT 9223372036854775807)) l WHERE "
        ),
        false => format!(" AND l.status = {RETRY} AND "),
    });
    // MySQL and MariaDB cannot use a column of the outer query for a range scan. With such a column
    // they read the whole aggregate.
    let range = match inbox.backend() {
        DbBackend::MySql => "",
        _ => "AND e.sequence < l.sequence ",
    };
    if !held.is_empty() {
        sql.push("CASE WHEN ");
        push_is_of(sql, inbox, held);
        sql.push(" THEN FALSE ELSE ");
    }
    sql.push(&format!(
        "(l.sequence IS NULL OR l.sequence <= COALESCE((SELECT e.sequence FROM {letters} e WHERE e.consumer = l.consumer \
         AND {} AND e.aggregate_type = l.aggregate_type AND e.aggregate_id = l.aggregate_id AND e.source = l.source \
         {range}AND e.stream_sequence > l.stream_sequence ORDER BY e.sequence LIMIT 1), l.sequence))",
        is_marked(inbox, "e."),
    ));
    sql.push(if held.is_empty() { "" } else { " END" });
    sql.push(" ORDER BY l.stream_sequence LIMIT ").bind(limit);
}

/// Appends to the query a condition: whether a letter belongs to one of `aggregates` (NULL for a
/// letter without an aggregate). Databases never select an index by this condition.
fn push_is_of(sql: &mut Sql, inbox: &InboxSql, aggregates: &[Aggregate]) {
    sql.push("(l.aggregate_type, l.aggregate_id) IN (");
    if inbox.backend() == DbBackend::MySql {
        let padded = aggregates.len().next_power_of_two();
        let last = aggregates.last().into_iter().cycle();
        let rows = aggregates.iter().chain(last).take(padded);
        sql.bind_rows(
            rows.map(|aggregate| [&aggregate.aggregate_type, &aggregate.id].map(|name| inbox.key(name))),
        );
        sql.push(")");
        return;
    }
    let names: Vec<_> = aggregates
        .iter()
        .map(|aggregate| [&aggregate.aggregate_type, &aggregate.id])
        .collect();
    let (select, end) = match inbox.backend() {
        DbBackend::Postgres => (
            "SELECT names ->> 0, names ->> 1 FROM json_array_elements(",
            "::json) AS held (names))",
        ),
        _ => (
            "SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]') FROM json_each(",
            "))",
        ),
    };
    sql.push(select)
        .bind(serde_json::json!(names).to_string())
        .push(end);
}

/// Counts the attempt before the handler runs, so that a handler that crashes the process is not
/// retried forever. Returns false if another process was first or the letter is no longer marked.
/// The update waits for the row lock (primary key) at most the `LockLimit`.
pub(crate) async fn begin<C: ConnectionTrait>(
    db: &C,
    inbox: &InboxSql,
    letter: &StoredDeadLetter,
) -> Result<bool, DbErr> {
    let mut sql = inbox.sql(format!(
        "UPDATE {} SET status = {OPEN}, attempts = {} WHERE id = ",
        inbox.dead_letters(),
        inbox.limited_value("attempts + 1")
    ));
    sql.bind(letter.id).push(&format!(" AND status = {RETRY}"));
    Ok(db.execute_raw(sql.statement()).await?.rows_affected() > 0)
}

pub(crate) async fn put_back<C: ConnectionTrait>(
    db: &C,
    inbox: &InboxSql,
    letter: &StoredDeadLetter,
) -> Result<(), DbErr> {
    let mut sql = inbox.sql(format!(
        "UPDATE {} SET status = {RETRY}, attempts = {} WHERE id = ",
        inbox.dead_letters(),
        inbox.limited_value("attempts - 1")
    ));
    sql.bind(letter.id).push(&format!(" AND status = {OPEN}"));
    db.execute_raw(sql.statement()).await?;
    Ok(())
}

/// Claims the letter in the handler's transaction. [`Outcome::Skipped`]: another process has the
/// letter, or it no longer exists. After [`Outcome::Duplicate`] the caller must also commit, to
/// delete the letter.
pub(crate) async fn claim(
    tx: &DatabaseTransaction,
    inbox: &InboxSql,
    consumer: &str,
    letter: &StoredDeadLetter,
    message: &Message,
) -> Result<Outcome, DbErr> {
    if inbox.backend() != DbBackend::Sqlite {
        // The query uses the primary key and does not wait for a running handler. On SQLite the
        // transaction has the only write lock.
        let mut sql = inbox.sql(format!("SELECT id FROM {}", inbox.dead_letters()));
        sql.push(" WHERE id = ")
            .bind(letter.id)
            .push(" FOR UPDATE SKIP LOCKED");
        if tx.query_one_raw(sql.statement()).await?.is_none() {
            return Ok(Outcome::Skipped);
        }
    }
    let mut sql = inbox.sql(format!("DELETE FROM {} WHERE id = ", inbox.dead_letters()));
    sql.bind(letter.id);
    if tx.execute_raw(sql.statement()).await?.rows_affected() == 0 {
        return Ok(Outcome::Skipped);
    }
    let key = Key {
        consumer,
        id: message.event_id.as_uuid(),
    };
    if inbox.revive(tx, key).await? {
        return Ok(Outcome::Revived);
    }
    // If an open transaction has written the same inbox row, the claim waits for its end.
    let taken = inbox.claim(tx, key).await?
        || inbox
            .insert(tx, key, Status::Handled, letter.attempts, None)
            .await?;
    Ok(match taken {
        true => Outcome::Claimed,
        false => Outcome::Duplicate,
    })
}

/// Stores the error of a failed retry. After a crash before this update, the dead letter is open
/// with its old error.
pub(crate) async fn failed_again<C: ConnectionTrait>(
    db: &C,
    inbox: &InboxSql,
    letter: &StoredDeadLetter,
    behind: Option<(&str, &Aggregate)>,
    error: &str,
) -> Result<bool, DbErr> {
    let mut sql = inbox.sql(format!(
        "UPDATE {} SET status = {}, error = ",
        inbox.dead_letters(),
        inbox.limited_value(&OPEN.to_string())
    ));
    sql.bind(storable_error(error))
        .push(" WHERE id = ")
        .bind(letter.id);
    let is_there = db.execute_raw(sql.statement()).await?.rows_affected() > 0;
    let Some((consumer, aggregate)) = behind else {
        return Ok(is_there);
    };
    db.execute_raw(hold_behind(inbox, letter, consumer, aggregate))
        .await?;
    Ok(is_there)
}

/// Reopens the marked letters behind a failed letter. The update uses index
/// `inbox_dead_letters_of_aggregate` and waits for locked rows at most the `LockLimit`.
pub(crate) fn hold_behind(
    inbox: &InboxSql,
    letter: &StoredDeadLetter,
    consumer: &str,
    aggregate: &Aggregate,
) -> Statement {
    let mut sql = inbox.sql(format!(
        "UPDATE {} SET status = {} WHERE consumer = ",
        inbox.dead_letters(),
        inbox.limited_value(&OPEN.to_string())
    ));
    sql.bind(inbox.key(consumer));
    sql.push(&format!(" AND {} AND aggregate_type = ", is_marked(inbox, "")))
        .bind(inbox.key(&aggregate.aggregate_type));
    sql.push(" AND aggregate_id = ").bind(inbox.key(&aggregate.id));
    let place = letter.incoming.stream_sequence.cast_signed();
    match letter.sequence.zip(letter.source.as_deref()) {
        Some((sequence, source)) => {
            sql.push(" AND CASE WHEN source = ").bind(inbox.key(source));
            sql.push(" THEN sequence > ").bind(sequence);
            sql.push(" ELSE stream_sequence > ").bind(place).push(" END");
        }
        None => {
            sql.push(" AND stream_sequence > ").bind(place);
        }
    }
    sql.statement()
}

#[cfg(test)]
mod tests {
    use super::super::tests::{incoming, letter};
    use super::super::{DeadLetterSelection, DeadLetters, insert};
    use super::*;
    use crate::tests::database::TestDb;

    #[tokio::test]
    async fn due_letters_fit_the_free_memory() {
        for test in TestDb::open_all().await {
            for stream_sequence in 1..=4 {
                let incoming = incoming(stream_sequence, b"0123456789");
                let unreadable = letter(None, &incoming);
                assert!(insert(&test.db, &test.sql, &unreadable).await.unwrap());
            }
            let letters = DeadLetters::new(test.db.clone()).with_names(test.names.clone());
            assert_eq!(letters.retry(&DeadLetterSelection::all()).await.unwrap(), 4);
            for (bytes, expected) in [(0, 1), (10, 1), (11, 2), (30, 3), (1_000, 4)] {
                let found = due(&test.db, &test.sql, "billing", &[], 10, bytes).await.unwrap();
                let stream_sequences: Vec<_> = found
                    .iter()
                    .map(|letter| letter.incoming.stream_sequence)
                    .collect();
                assert_eq!(
                    stream_sequences,
                    (1..=expected).collect::<Vec<_>>(),
                    "{bytes} bytes"
                );
            }
        }
    }
}
