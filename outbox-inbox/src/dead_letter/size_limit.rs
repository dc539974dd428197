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
    use super::super::tests::{incoming, letter};
    use super::super::{DeadLetterSelection, DeadLetters, insert};
    use super::*;
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
}
