//! The runtime's side of [`retry`](super::DeadLetters::retry): which dead letters are tried again, and how that ends.
//!
//! Invariant: a dead letter is tried by one process at a time, and it is gone if and only if its message is handled. Its lock is taken first in
//! the handler's transaction, then the inbox row's; nobody else who holds both takes them the other way round, because whoever gives a message up
//! finds its row failed, which it is not while its dead letter exists. Not here: decoding and running, see
//! `runtime::retries`.

use outbox_core::store::storable_error;
use outbox_core::{Aggregate, Incoming, Message};
use outbox_sea_orm::Sql;
use sea_orm::{ConnectionTrait, DatabaseTransaction, DbBackend, DbErr};
use uuid::Uuid;

use super::admin::{headers_column, read_headers, stream_sequence};
use super::{OPEN, RETRY};
use crate::dedup::sql::{InboxSql, Key, Status};

/// A dead letter that is to be tried again.
#[derive(Debug, Clone)]
pub(crate) struct StoredDeadLetter {
    pub(crate) id: Uuid,
    /// As it was delivered, to be decoded again, which may give another answer than the last time. The delivery count is 1: the attempts are counted in
    /// the dead letter.
    pub(crate) incoming: Incoming,
    /// The message's number within its aggregate, if it has one.
    pub(crate) sequence: Option<i64>,
    /// Failed attempts so far.
    pub(crate) attempts: u32,
}

/// The dead letters of a consumer that are to be tried again, in the order of the stream: at most `limit`, and no more after their payloads have reached
/// `bytes`. The first is always among them. Index `inbox_dead_letters_retry`; no lock.
///
/// A stream that was made anew counts from 1 again, so messages of the new one would come before those of the old one. Within an aggregate the message's
/// number tells: one is left out while an earlier one with a later place is to be tried as well (index `inbox_dead_letters_of_aggregate`).
pub(crate) async fn due<C: ConnectionTrait>(
    db: &C,
    inbox: &InboxSql,
    consumer: &str,
    limit: u32,
    bytes: usize,
) -> Result<Vec<StoredDeadLetter>, DbErr> {
    let mut sql = inbox.sql(format!(
        "SELECT CAST(LENGTH(payload) AS {}) AS bytes",
        match inbox.backend() {
            DbBackend::MySql => "SIGNED",
            _ => "BIGINT",
        },
    ));
    push_due(&mut sql, inbox, consumer, limit.into());
    let (mut before, mut fit) = (0, 0_i64);
    for row in db.query_all_raw(sql.statement()).await? {
        if fit > 0 && before >= bytes {
            break;
        }
        before += usize::try_from(row.try_get::<i64>("", "bytes")?).unwrap_or_default();
        fit += 1;
    }
    if fit == 0 {
        return Ok(Vec::new());
    }
    let mut sql = inbox.sql(format!(
        "SELECT id, subject, stream_sequence, sequence, {}, payload, attempts",
        headers_column(inbox.backend()),
    ));
    push_due(&mut sql, inbox, consumer, fit);
    let rows = db.query_all_raw(sql.statement()).await?;
    rows.iter()
        .map(|row| {
            Ok(StoredDeadLetter {
                id: row.try_get("", "id")?,
                incoming: Incoming {
                    subject: row.try_get("", "subject")?,
                    headers: read_headers(row)?,
                    payload: row.try_get::<Vec<u8>>("", "payload")?.into(),
                    delivery_count: 1,
                    stream_sequence: stream_sequence(row)?,
                },
                sequence: row.try_get("", "sequence")?,
                attempts: u32::try_from(row.try_get::<i32>("", "attempts")?).unwrap_or_default(),
            })
        })
        .collect()
}

fn push_due(sql: &mut Sql, inbox: &InboxSql, consumer: &str, limit: i64) {
    let letters = inbox.dead_letters();
    sql.push(&format!(" FROM {letters} l WHERE l.consumer = "))
        .bind(inbox.key(consumer));
    sql.push(&format!(
        " AND l.status = {RETRY} AND NOT EXISTS (SELECT 1 FROM {letters} e WHERE e.consumer = l.consumer AND e.status = {RETRY} \
         AND e.aggregate_type = l.aggregate_type AND e.aggregate_id = l.aggregate_id \
         AND e.sequence < l.sequence AND e.stream_sequence > l.stream_sequence) ORDER BY l.stream_sequence LIMIT "
    ))
    .bind(limit);
}

/// Takes a dead letter for this process: it is open again, with one more attempt, before its handler runs. So a handler that ends the process is not
/// started again without end; the dead letter stays, and an operator sees it. Returns false if somebody else was first, or the mark was taken back.
///
/// A crash after this: the dead letter is open, and its attempt counted.
pub(crate) async fn begin<C: ConnectionTrait>(
    db: &C,
    inbox: &InboxSql,
    letter: &StoredDeadLetter,
) -> Result<bool, DbErr> {
    let mut sql = inbox.sql(format!(
        "UPDATE {} SET status = {OPEN}, attempts = attempts + 1 WHERE id = ",
        inbox.dead_letters()
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
        "UPDATE {} SET status = {RETRY}, attempts = attempts - 1 WHERE id = ",
        inbox.dead_letters()
    ));
    sql.bind(letter.id).push(&format!(" AND status = {OPEN}"));
    db.execute_raw(sql.statement()).await?;
    Ok(())
}

/// What a dead letter and its message are to the transaction that wants to try them again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Taken {
    /// Its own. `was_dead`: the inbox row said so, which is written only if the message had not taken effect. Letters of what could not be read have
    /// no such row.
    Mine { was_dead: bool },
    /// The message was handled in another way.
    Handled,
    /// Somebody else is trying the dead letter, or has handled or discarded it.
    Gone,
}

/// Takes a dead letter and its message for the transaction: deletes the dead letter and makes the inbox row handled, whatever it was before. `message` is what
/// the dead letter's bytes were decoded to. To end a dead letter whose message took effect, **commit** what this has done.
pub(crate) async fn claim(
    tx: &DatabaseTransaction,
    inbox: &InboxSql,
    consumer: &str,
    letter: &StoredDeadLetter,
    message: &Message,
) -> Result<Taken, DbErr> {
    if inbox.backend() != DbBackend::Sqlite {
        // The row's lock, without waiting for one who runs the handler (primary key). SQLite's transaction has the only write lock.
        let mut sql = inbox.sql(format!("SELECT id FROM {}", inbox.dead_letters()));
        sql.push(" WHERE id = ")
            .bind(letter.id)
            .push(" FOR UPDATE SKIP LOCKED");
        if tx.query_one_raw(sql.statement()).await?.is_none() {
            return Ok(Taken::Gone);
        }
    }
    let mut sql = inbox.sql(format!("DELETE FROM {} WHERE id = ", inbox.dead_letters()));
    sql.bind(letter.id);
    if tx.execute_raw(sql.statement()).await?.rows_affected() == 0 {
        return Ok(Taken::Gone);
    }
    let key = Key {
        consumer,
        id: message.event_id.as_uuid(),
    };
    if inbox.revive(tx, key).await? {
        return Ok(Taken::Mine { was_dead: true });
    }
    // No row (what could not be decoded left none), one of a failed attempt, or a handled one. Primary key: waits for an open transaction with the
    // same key.
    let taken = inbox.claim(tx, key).await?
        || inbox
            .insert(tx, key, Status::Handled, letter.attempts, None)
            .await?;
    Ok(match taken {
        true => Taken::Mine { was_dead: false },
        false => Taken::Handled,
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
        "UPDATE {} SET status = {OPEN}, error = ",
        inbox.dead_letters()
    ));
    sql.bind(storable_error(error))
        .push(" WHERE id = ")
        .bind(letter.id);
    // MySQL counts the rows that are found here, as the others do: sqlx asks for that.
    let is_there = db.execute_raw(sql.statement()).await?.rows_affected() > 0;
    let Some((consumer, aggregate)) = behind else {
        return Ok(is_there);
    };
    // Index inbox_dead_letters_of_aggregate.
    let mut sql = inbox.sql(format!(
        "UPDATE {} SET status = {OPEN} WHERE consumer = ",
        inbox.dead_letters()
    ));
    sql.bind(inbox.key(consumer));
    sql.push(&format!(" AND status = {RETRY} AND "));
    let place = letter.incoming.stream_sequence.cast_signed();
    match letter.sequence {
        // Where the other one has no number, its place has to tell.
        Some(sequence) => {
            sql.push("CASE WHEN sequence IS NOT NULL THEN sequence > ")
                .bind(sequence);
            sql.push(" ELSE stream_sequence > ").bind(place).push(" END");
        }
        None => {
            sql.push("stream_sequence > ").bind(place);
        }
    }
    sql.push(" AND aggregate_type = ")
        .bind(inbox.name(Some(&aggregate.aggregate_type)));
    sql.push(" AND aggregate_id = ")
        .bind(inbox.name(Some(&aggregate.id)));
    db.execute_raw(sql.statement()).await?;
    Ok(is_there)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{incoming, letter};
    use super::super::{DeadLetterSelection, DeadLetters, insert};
    use super::*;
    use crate::test_db::TestDb;

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
                let found = due(&test.db, &test.sql, "billing", 10, bytes).await.unwrap();
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
