//! The runtime's side of [`retry`](super::DeadLetters::retry): which dead letters are tried again, and how that ends.
//!
//! Invariant: a dead letter is tried by one process at a time, and it is gone if and only if its message is handled. Its lock is taken first in
//! the handler's transaction, then the inbox row's; nobody else who holds both takes them the other way round, because whoever gives a message up
//! finds its row failed, which it is not while its dead letter exists. Not here: decoding and running, see
//! `runtime::retries`.

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

/// A dead letter that is to be tried again.
#[derive(Debug, Clone)]
pub(crate) struct StoredDeadLetter {
    pub(crate) id: Uuid,
    /// As it was delivered, to be decoded again, which may give another answer than the last time. The delivery count is 1: the attempts are counted in
    /// the dead letter.
    pub(crate) incoming: Incoming,
    /// The aggregate; `None` if it is no message.
    pub(crate) aggregate: Option<Aggregate>,
    /// The message's number within its aggregate, if it has one.
    pub(crate) sequence: Option<i64>,
    /// The service that gave the number; `None` without one.
    source: Option<String>,
    /// Failed attempts so far.
    pub(crate) attempts: u32,
}

impl StoredDeadLetter {
    /// Whether it is of an older stream than `other`, and must be tried first: its number is smaller and its place is later. Only numbers of one service can be
    /// compared.
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

/// The dead letters of a consumer that are to be tried again, in the order of the stream: at most `limit`, and no more after their payloads have reached
/// `bytes`. The first is always among them. Index `inbox_dead_letters_retry`; no lock.
///
/// A stream that was made anew counts from 1 again, so messages of the new one would come before those of the old one. Within an aggregate the message's
/// number tells: one is left out while an earlier one with a later place is to be tried as well (index `inbox_dead_letters_of_aggregate`). Services number
/// their aggregates independently, so only numbers of one source are compared. One that is being tried is open and holds nothing back here: its process
/// looks for it in its memory ([`StoredDeadLetter::is_of_older_stream_than`]).
///
/// Those of the aggregates in `held` are left out: letters of them are in memory, and what is behind those must hide nobody else's.
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

/// The sizes of the payloads of those that are due.
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

/// Those that are due.
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

/// The end of a statement that reads those that are due.
///
/// Of the letters with a later place, the one with the smallest number tells whether any of them is earlier. It is looked for in the order of
/// `inbox_dead_letters_of_aggregate`. The entries before it are of letters with an earlier place, which are due before this one. So a letter reads a few entries,
/// however many of its aggregate are to be tried. `NOT EXISTS` would read all of them for each letter on MySQL and MariaDB. A letter of an aggregate in `held` is
/// read and left out before anything is looked for.
fn push_due(sql: &mut Sql, inbox: &InboxSql, consumer: &str, held: &[Aggregate], limit: i64) {
    let (letters, key) = (inbox.dead_letters(), inbox.key(consumer));
    let postgres = inbox.backend() == DbBackend::Postgres;
    // PostgreSQL would look for each letter and sort then, if its statistics are older than the marks. It does not look through a limit. One that it cannot know
    // beforehand makes it expect a tenth of the letters, so it reads them in the order of the index; it is larger than any number of letters.
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
    // MySQL and MariaDB search no range by a column of the outer query: with this they would read to the end of the aggregate, and without it they stop at the
    // first with a later place.
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

/// Appends a condition: the letter `l` is of one of these aggregates. It is never an index condition; every database hashes or sorts the list once. Null for a
/// letter without an aggregate.
fn push_is_of(sql: &mut Sql, inbox: &InboxSql, aggregates: &[Aggregate]) {
    sql.push("(l.aggregate_type, l.aggregate_id) IN (");
    if inbox.backend() == DbBackend::MySql {
        // Padded to a power of two, so that the statement cache holds few distinct statements.
        let padded = aggregates.len().next_power_of_two();
        let last = aggregates.last().into_iter().cycle();
        let rows = aggregates.iter().chain(last).take(padded);
        sql.bind_rows(
            rows.map(|aggregate| [&aggregate.aggregate_type, &aggregate.id].map(|name| inbox.key(name))),
        );
        sql.push(")");
        return;
    }
    // One value, however many there are.
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

/// Takes a dead letter for this process: it is open again, with one more attempt, before its handler runs. So a handler that ends the process is not
/// started again without end; the dead letter stays, and an operator sees it. Returns false if somebody else was first, or the mark was taken back.
/// Waits for the row's lock (primary key) as long as the `LockLimit` allows, as all that follow: none is in a handler's transaction, so nothing is restored.
///
/// A crash after this: the dead letter is open, and its attempt counted.
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

/// Marks a dead letter again that [`begin`] took and whose handler has not run, because of a shutdown.
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

/// Takes a dead letter and its message for the transaction: deletes the dead letter and makes the inbox row handled, whatever it was before. `message` is what
/// the dead letter's bytes were decoded to. [`Outcome::Skipped`]: another process tries the dead letter, or has
/// handled or discarded it. To end a dead letter whose message took effect, **commit** what this has done.
pub(crate) async fn claim(
    tx: &DatabaseTransaction,
    inbox: &InboxSql,
    consumer: &str,
    letter: &StoredDeadLetter,
    message: &Message,
) -> Result<Outcome, DbErr> {
    if inbox.backend() != DbBackend::Sqlite {
        // The row's lock, without waiting for one who runs the handler (primary key). SQLite's transaction has the only write lock.
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
    // No row (what could not be decoded left none), one of a failed attempt, or a handled one. Primary key: waits for an open transaction with the
    // same key.
    let taken = inbox.claim(tx, key).await?
        || inbox
            .insert(tx, key, Status::Handled, letter.attempts, None)
            .await?;
    Ok(match taken {
        true => Outcome::Claimed,
        false => Outcome::Duplicate,
    })
}

/// Records why a dead letter failed again, and makes those behind it in its aggregate open too, because they must not overtake it. Outside of the
/// handler's transaction, after that was rolled back. A crash before this: the dead letter is open with its old error. Returns whether the dead letter is still there.
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
    // MySQL counts the rows that are found here, as the others do: sqlx asks for that.
    let is_there = db.execute_raw(sql.statement()).await?.rows_affected() > 0;
    let Some((consumer, aggregate)) = behind else {
        return Ok(is_there);
    };
    db.execute_raw(hold_behind(inbox, letter, consumer, aggregate))
        .await?;
    Ok(is_there)
}

/// Makes those open that stand behind a dead letter in its aggregate. Reads the marked ones of the aggregate, and no others (index
/// `inbox_dead_letters_of_aggregate`).
/// Waits for the lock of a row that is being tried or changed as long as the `LockLimit` allows.
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
        // Where the other one has no number, or one of another service, its place has to tell.
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

    /// However many are marked, memory is bounded.
    #[tokio::test]
    async fn letters_are_read_as_far_as_there_is_room_for_them() {
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
