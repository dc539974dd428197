//! Keys of dead letters, and retries.

use outbox_core::codec;
use sea_orm::{DatabaseTransaction, Statement};

use super::*;
use crate::dedup::Outcome;
use crate::dedup::sql::{Key, Status};
use crate::tests::database::TestDb;
pub(super) use crate::tests::database::incoming;

mod audit;
mod erase;
mod recreated_stream;
mod rejection;
mod sources;

pub(super) fn message() -> Message {
    Message {
        sequence: None,
        content_type: "application/json".to_owned(),
        ..crate::tests::database::message()
    }
}

const DEAD: Outcome = Outcome::Revived;

fn key(consumer: &str, message: Option<&Message>, incoming: &Incoming) -> Uuid {
    let letter = NewDeadLetter {
        consumer,
        message,
        incoming,
        error: "",
        attempts: 0,
    };
    letter.id().unwrap()
}

#[test]
fn redelivered_dead_letter_keeps_its_key() {
    let (first, again) = (
        incoming(1, b"a"),
        Incoming {
            delivery_count: 2,
            ..incoming(1, b"a")
        },
    );
    assert_eq!(key("a", None, &first), key("a", None, &again));
    assert_ne!(key("a", None, &first), key("b", None, &first));
    assert_ne!(key("a", None, &first), key("a", None, &incoming(2, b"a")));
    assert_ne!(key("a", None, &first), key("a", None, &incoming(1, b"b")));
    let message = message();
    assert_eq!(
        key("a", Some(&message), &first),
        key("a", Some(&message), &incoming(9, b"z"))
    );
}

pub(super) fn letter<'a>(message: Option<&'a Message>, incoming: &'a Incoming) -> NewDeadLetter<'a> {
    NewDeadLetter {
        consumer: "billing",
        message,
        incoming,
        error: "declined",
        attempts: 3,
    }
}

async fn make_dead_letter(test: &TestDb, stream_sequence: u64) -> Message {
    let message = message();
    let (headers, payload) = codec::encode(&message, "test").received();
    let incoming = Incoming {
        subject: "events.order.1.placed".to_owned(),
        headers,
        payload,
        delivery_count: 7,
        stream_sequence,
    };
    insert(&test.db, &test.sql, &letter(Some(&message), &incoming))
        .await
        .unwrap();
    let inserted = test
        .sql
        .insert(&test.db, test.key(&message), Status::Failed, 3, None);
    assert!(inserted.await.unwrap());
    assert!(
        test.sql
            .bury(&test.db, test.key(&message), "declined")
            .await
            .unwrap()
    );
    message
}

impl TestDb {
    fn key(&self, message: &Message) -> Key<'static> {
        Key {
            consumer: "billing",
            id: message.event_id.as_uuid(),
        }
    }

    fn letters(&self) -> DeadLetters {
        DeadLetters::new(self.db.clone()).with_names(self.names.clone())
    }

    async fn due(&self) -> Vec<StoredDeadLetter> {
        retry::due(&self.db, &self.sql, "billing", &[], 10, usize::MAX)
            .await
            .unwrap()
    }

    async fn due_places(&self) -> Vec<u64> {
        let due = self.due().await;
        due.iter().map(|letter| letter.incoming.stream_sequence).collect()
    }

    async fn begin_retry(&self, letter: &StoredDeadLetter) -> bool {
        retry::begin(&self.db, &self.sql, letter).await.unwrap()
    }

    async fn fail(&self, letter: &StoredDeadLetter, error: &str) {
        let _ = self.fails_again(letter, error).await;
    }

    async fn fails_again(&self, letter: &StoredDeadLetter, error: &str) -> bool {
        let behind = Aggregate::new("order", "1");
        retry::failed_again(&self.db, &self.sql, letter, Some(("billing", &behind)), error)
            .await
            .unwrap()
    }

    async fn row(&self, message: &Message) -> Option<(Status, u32)> {
        let row = self.sql.row(&self.db, self.key(message)).await.unwrap();
        row.map(|row| (row.status, row.attempts))
    }

    async fn claim(&self, tx: &DatabaseTransaction, letter: &StoredDeadLetter, message: &Message) -> Outcome {
        retry::claim(tx, &self.sql, "billing", letter, message)
            .await
            .unwrap()
    }
}

#[tokio::test]
async fn due_letters_come_in_stream_order() {
    for test in TestDb::open_all().await {
        let (late, early, open) = (
            make_dead_letter(&test, 9).await,
            make_dead_letter(&test, 2).await,
            make_dead_letter(&test, 5).await,
        );
        assert!(test.due().await.is_empty());
        let open_letter = test
            .letters()
            .list(&DeadLetterSelection::all(), 10)
            .await
            .unwrap();
        let open_letter = open_letter
            .iter()
            .find(|letter| letter.stream_sequence == 5)
            .unwrap();
        assert_eq!(open_letter.event_id, Some(open.event_id));
        assert_eq!(
            test.letters().retry(&DeadLetterSelection::all()).await.unwrap(),
            3
        );
        let selection = DeadLetterSelection::ids([open_letter.id]);
        assert_eq!(test.letters().cancel_retry(&selection).await.unwrap(), 1);
        let due = test.due().await;
        let stream_sequences: Vec<_> = due.iter().map(|letter| letter.incoming.stream_sequence).collect();
        assert_eq!(stream_sequences, [2, 9]);
        for (letter, expected) in due.iter().zip([early, late]) {
            let decoded = codec::decode(&letter.incoming.headers, letter.incoming.payload.clone());
            assert_eq!(decoded.unwrap(), expected);
            assert_eq!((letter.attempts, letter.incoming.delivery_count), (3, 1));
        }
    }
}

#[tokio::test]
async fn successful_retry_handles_message_and_deletes_letter() {
    for test in TestDb::open_all().await {
        let message = make_dead_letter(&test, 1).await;
        test.letters().retry(&DeadLetterSelection::all()).await.unwrap();
        let letter = test.due().await.remove(0);
        let tx = test.begin().await;
        assert_eq!(test.claim(&tx, &letter, &message).await, DEAD);
        tx.rollback().await.unwrap();
        assert_eq!(test.row(&message).await, Some((Status::Dead, 3)));
        assert_eq!(test.due().await.len(), 1);

        let tx = test.begin().await;
        assert_eq!(test.claim(&tx, &letter, &message).await, DEAD);
        tx.commit().await.unwrap();
        assert_eq!(test.row(&message).await, Some((Status::Handled, 3)));
        assert_eq!(
            test.letters().count(&DeadLetterSelection::all()).await.unwrap(),
            0
        );
        let tx = test.begin().await;
        assert_eq!(
            test.claim(&tx, &letter, &message).await,
            Outcome::Skipped,
            "a second effect"
        );
        tx.commit().await.unwrap();
        test.fail(&letter, "late").await;
        assert_eq!(
            test.letters().count(&DeadLetterSelection::all()).await.unwrap(),
            0
        );
    }
}

#[tokio::test]
async fn failed_retry_reopens_letter_with_new_error() {
    for test in TestDb::open_all().await {
        let message = make_dead_letter(&test, 1).await;
        test.letters().retry(&DeadLetterSelection::all()).await.unwrap();
        let letter = test.due().await.remove(0);
        assert!(test.begin_retry(&letter).await);
        assert!(!test.begin_retry(&letter).await, "two processes retry the letter");
        assert!(
            test.due().await.is_empty(),
            "a handler that kills the process is retried forever"
        );
        test.fail(&letter, &"x\0".repeat(2_000)).await;
        assert!(
            test.due().await.is_empty(),
            "a failed retry is repeated without a new mark"
        );
        let found = test.letters().get(letter.id).await.unwrap().unwrap();
        assert_eq!((found.status, found.attempts), (DeadLetterStatus::Open, 4));
        assert_eq!(found.error, "x".repeat(1_000));
        assert_eq!(test.row(&message).await, Some((Status::Dead, 3)));
        test.letters().retry(&DeadLetterSelection::all()).await.unwrap();
        assert!(test.begin_retry(&letter).await);
        retry::put_back(&test.db, &test.sql, &letter).await.unwrap();
        assert_eq!(test.due().await[0].attempts, 4);
    }
}

#[tokio::test]
async fn cancelled_or_discarded_letter_is_not_retried() {
    for test in TestDb::open_all().await {
        let message = make_dead_letter(&test, 1).await;
        test.letters().retry(&DeadLetterSelection::all()).await.unwrap();
        let letter = test.due().await.remove(0);
        assert_eq!(
            test.letters()
                .cancel_retry(&DeadLetterSelection::all())
                .await
                .unwrap(),
            1
        );
        assert!(!test.begin_retry(&letter).await);
        assert_eq!(
            test.letters().count(&DeadLetterSelection::all()).await.unwrap(),
            1
        );

        test.letters().retry(&DeadLetterSelection::all()).await.unwrap();
        assert_eq!(
            test.letters().discard(&DeadLetterSelection::all()).await.unwrap(),
            1
        );
        let tx = test.begin().await;
        assert_eq!(test.claim(&tx, &letter, &message).await, Outcome::Skipped);
        tx.commit().await.unwrap();
        assert_eq!(
            test.row(&message).await,
            Some((Status::Dead, 3)),
            "a copy takes effect"
        );
    }
}

#[tokio::test]
async fn two_processes_never_retry_a_letter_at_once() {
    for test in TestDb::open_all().await {
        if test.db.get_database_backend() == DbBackend::Sqlite {
            continue;
        }
        let message = make_dead_letter(&test, 1).await;
        let other = make_dead_letter(&test, 2).await;
        test.letters().retry(&DeadLetterSelection::all()).await.unwrap();
        let letters = test.due().await;
        let running = test.begin().await;
        assert_eq!(test.claim(&running, &letters[0], &message).await, DEAD);
        let second = test.begin().await;
        assert_eq!(test.claim(&second, &letters[0], &message).await, Outcome::Skipped);
        assert_eq!(test.claim(&second, &letters[1], &other).await, DEAD);
        for change in [
            test.letters().retry(&DeadLetterSelection::all()).await,
            test.letters().cancel_retry(&DeadLetterSelection::all()).await,
            test.letters().discard(&DeadLetterSelection::all()).await,
        ] {
            assert_eq!(change.unwrap(), 0, "an operator took a running letter");
        }
        second.rollback().await.unwrap();
        assert_eq!(
            test.letters().discard(&DeadLetterSelection::all()).await.unwrap(),
            1
        );
        running.commit().await.unwrap();
        assert_eq!(test.row(&message).await, Some((Status::Handled, 3)));
        assert_eq!(test.row(&other).await, Some((Status::Dead, 3)));
    }
}

#[tokio::test]
async fn letter_handled_meanwhile_has_no_second_effect() {
    for test in TestDb::open_all().await {
        let message = message();
        let incoming = incoming(1, b"unreadable then");
        insert(&test.db, &test.sql, &letter(None, &incoming))
            .await
            .unwrap();
        test.letters().retry(&DeadLetterSelection::all()).await.unwrap();
        let letter = test.due().await.remove(0);
        let key = test.key(&message);
        assert!(
            test.sql
                .insert(&test.db, key, Status::Handled, 0, None)
                .await
                .unwrap()
        );
        let tx = test.begin().await;
        assert_eq!(test.claim(&tx, &letter, &message).await, Outcome::Duplicate);
        tx.commit().await.unwrap();
        assert_eq!(
            test.letters().count(&DeadLetterSelection::all()).await.unwrap(),
            0
        );
    }
}

#[tokio::test]
async fn undecodable_letter_can_be_handled_later() {
    for test in TestDb::open_all().await {
        let message = message();
        let incoming = incoming(1, b"unreadable then");
        insert(&test.db, &test.sql, &letter(None, &incoming))
            .await
            .unwrap();
        test.letters().retry(&DeadLetterSelection::all()).await.unwrap();
        let letter = test.due().await.remove(0);
        let tx = test.begin().await;
        let taken = test.claim(&tx, &letter, &message).await;
        assert_eq!(taken, Outcome::Claimed);
        tx.commit().await.unwrap();
        assert_eq!(test.row(&message).await, Some((Status::Handled, 3)));
        assert_eq!(
            test.letters().count(&DeadLetterSelection::all()).await.unwrap(),
            0
        );
    }
}

#[tokio::test]
async fn the_view_is_readable() {
    for test in TestDb::open_all().await {
        let backend = test.db.get_database_backend();
        let message = make_dead_letter(&test, 1).await;
        let bytes = incoming(2, &[0, 159, 146, 150]);
        insert(&test.db, &test.sql, &letter(None, &bytes)).await.unwrap();
        let json = Incoming {
            payload: r#"{"name":"ü"}"#.into(),
            ..incoming(3, b"")
        };
        insert(&test.db, &test.sql, &letter(None, &json)).await.unwrap();
        let text = if backend == DbBackend::Postgres {
            "::text"
        } else {
            ""
        };
        let sql = format!(
            "SELECT id{text} AS id, event_id{text} AS event_id, consumer, payload, status, stream_sequence FROM {} ORDER BY stream_sequence",
            test.names.table(backend, "inbox_dead_letters_readable")
        );
        let rows = test
            .db
            .query_all_raw(Statement::from_string(backend, sql))
            .await
            .unwrap();
        let event_id = |row: usize| rows[row].try_get::<Option<String>>("", "event_id").unwrap();
        assert_eq!(event_id(0), Some(message.event_id.to_string()));
        assert_eq!((event_id(1), event_id(2)), (None, None));
        let string = |row: usize, column| rows[row].try_get::<String>("", column).unwrap();
        assert_eq!(string(0, "id").len(), 36);
        assert_eq!(
            (string(0, "consumer"), string(0, "status")),
            ("billing".into(), "open".into())
        );
        assert!(!string(1, "payload").is_empty());
        assert_eq!(string(2, "payload"), r#"{"name":"ü"}"#);
    }
}
