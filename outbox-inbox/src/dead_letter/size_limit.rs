//! Dead letters above the database's packet limit are stored without their payload, and not
//! retried.
//!
//! MySQL and MariaDB close the connection above `max_allowed_packet`. Their error (1153, `08S01`)
//! looks like a lost connection and may not arrive, so the limit is read first.

use bytes::Bytes;
use outbox_core::Incoming;
use outbox_core::store::storable_error;
use sea_orm::{ConnectionTrait, DbBackend, DbErr, Statement};

use super::NewDeadLetter;

const OMITTED: &str = "outbox-payload-omitted";

const REST_MAX: usize = 16 * 1024;

pub(super) async fn shortened<C: ConnectionTrait>(
    db: &C,
    letter: &NewDeadLetter<'_>,
    headers: &str,
) -> Result<Option<(Incoming, String)>, DbErr> {
    if db.get_database_backend() != DbBackend::MySql {
        return Ok(unmarked(letter));
    }
    let ask = "SELECT CAST(@@max_allowed_packet AS SIGNED) AS packet";
    let row = db
        .query_one_raw(Statement::from_string(DbBackend::MySql, ask))
        .await?;
    let row = row.ok_or_else(|| DbErr::RecordNotFound(ask.to_owned()))?;
    let most = usize::try_from(row.try_get::<i64>("", "packet")?).unwrap_or(usize::MAX);
    let incoming = letter.incoming;
    let others = (headers.len() + incoming.subject.len() + letter.error.len()) * 3 + REST_MAX;
    if incoming.payload.len() + others <= most {
        return Ok(unmarked(letter));
    }
    let bytes = incoming.payload.len();
    let mut short = Incoming {
        payload: Bytes::new(),
        ..incoming.clone()
    };
    if others > most {
        short.headers.clear();
    }
    short.headers.retain(|(name, _)| name != OMITTED);
    short.headers.push((OMITTED.to_owned(), bytes.to_string()));
    let error = format!(
        "{} The database accepts at most {most} bytes (max_allowed_packet). Error of the last attempt: {}",
        text(bytes, incoming.stream_sequence),
        letter.error
    );
    Ok(Some((short, storable_error(&error))))
}

fn unmarked(letter: &NewDeadLetter<'_>) -> Option<(Incoming, String)> {
    let is_mark = |(name, _): &(String, String)| name == OMITTED;
    if !letter.incoming.headers.iter().any(is_mark) {
        return None;
    }
    let mut incoming = letter.incoming.clone();
    incoming.headers.retain(|header| !is_mark(header));
    Some((incoming, letter.error.to_owned()))
}

pub(crate) fn without_payload(incoming: &Incoming) -> Option<String> {
    let (_, bytes) = incoming.headers.iter().find(|(name, _)| name == OMITTED)?;
    let bytes = bytes.parse().ok()?;
    incoming
        .payload
        .is_empty()
        .then(|| text(bytes, incoming.stream_sequence))
}

fn text(bytes: usize, stream_sequence: u64) -> String {
    format!(
        "The payload of {bytes} bytes could not be stored; the message is at stream sequence \
         {stream_sequence}."
    )
}

#[cfg(test)]
mod tests {
    use super::super::tests::{incoming, letter, message};
    use super::super::{DeadLetterSelection, DeadLetters, Form, insert, insert_as, insert_in};
    use super::*;
    use crate::database::{Trouble, trouble};
    use crate::tests::database::TestDb;

    #[tokio::test]
    async fn a_foreign_mark_does_not_stop_a_retry() {
        for test in TestDb::open_all().await {
            let mark = |bytes: &str| (OMITTED.to_owned(), bytes.to_owned());
            let marked = Incoming {
                headers: vec![mark("7"), ("x".to_owned(), "y".to_owned()), mark("8")],
                ..incoming(7, b"")
            };
            let unreadable = letter(None, &marked);
            assert!(insert(&test.db, &test.sql, &unreadable).await.unwrap());
            assert!(
                !insert(&test.db, &test.sql, &unreadable).await.unwrap(),
                "it has the same id"
            );
            let all = DeadLetters::new(test.db.clone()).with_names(test.names.clone());
            let [stored] = &all.list(&DeadLetterSelection::all(), 100).await.unwrap()[..] else {
                panic!("one dead letter");
            };
            assert_eq!(stored.headers, [("x".to_owned(), "y".to_owned())]);
        }
    }

    #[tokio::test]
    async fn oversized_payload_is_omitted() {
        for test in TestDb::open_all().await {
            let message = message();
            let large = Incoming {
                payload: vec![b' '; 17 * 1024 * 1024].into(),
                ..incoming(7, b"")
            };
            let tx = test.begin().await;
            let was_dead = letter(Some(&message), &large);
            assert!(insert_in(&tx, &test.sql, &was_dead).await.unwrap());
            tx.commit().await.unwrap();
            let unreadable = letter(None, &large);
            if test.db.get_database_backend() == DbBackend::MySql {
                let id = unreadable.id().unwrap();
                let whole = insert_as(&test.db, &test.sql, id, &unreadable, Form::Whole).await;
                let error = whole.unwrap_err();
                assert_eq!(trouble(&error), Trouble::Unavailable, "{error:?}");
            }
            assert!(insert(&test.db, &test.sql, &unreadable).await.unwrap());
            assert!(!insert(&test.db, &test.sql, &unreadable).await.unwrap());
            let all = DeadLetters::new(test.db.clone()).with_names(test.names.clone());
            let all = all.list(&DeadLetterSelection::all(), 100).await.unwrap();
            assert_eq!(all.len(), 2);
            for stored in all {
                assert_eq!(stored.stream_sequence, 7);
                if test.db.get_database_backend() != DbBackend::MySql {
                    assert_eq!(stored.payload.len(), 17 * 1024 * 1024);
                    continue;
                }
                assert!(stored.payload.is_empty());
                let expected =
                    "The payload of 17825792 bytes could not be stored; the message is at stream sequence 7.";
                assert!(stored.error.starts_with(expected), "{}", stored.error);
                assert!(stored.error.ends_with("declined"), "{}", stored.error);
                let again = Incoming {
                    headers: stored.headers,
                    ..incoming(7, b"")
                };
                assert_eq!(without_payload(&again).as_deref(), Some(expected));
            }
        }
    }
}
