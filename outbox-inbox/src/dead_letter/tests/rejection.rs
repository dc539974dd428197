//! Dead letters with contents that the database rejects.

use std::collections::BTreeSet;

use outbox_core::{Headers, MessageId};
use outbox_testing::{eventually, not_applicable};

use super::*;

#[tokio::test]
async fn rejected_dead_letter_is_stored_plain() {
    for test in TestDb::open_all().await {
        let too_long = "\u{fc}".repeat(70_000);
        let ids = ["a\0b".to_owned(), "x".repeat(5_000), too_long.clone()];
        let mut letters = 0;
        for (id, subject) in ids.iter().zip(["orders", "a\0b", too_long.as_str()]) {
            let event_id = MessageId::fresh();
            let message = Message {
                id: event_id,
                event_id: event_id.into(),
                aggregate: Aggregate::new("or\0der", id.clone()),
                sequence: Some(u64::MAX),
                event_type: too_long.clone(),
                event_version: 1,
                subject: None,
                content_type: "\0".to_owned(),
                payload: vec![0, 159].into(),
                headers: Headers::default(),
                created_at: OffsetDateTime::now_utc(),
            };
            let incoming = Incoming {
                subject: subject.to_owned(),
                headers: vec![("n\0\u{fc}\u{1f600}".to_owned(), "v\0\u{7f}".to_owned())],
                payload: message.payload.clone(),
                delivery_count: 1,
                stream_sequence: u64::MAX,
            };
            let letter = |message| NewDeadLetter {
                consumer: "billing",
                message,
                incoming: &incoming,
                error: "f\u{fc}r",
                attempts: 3,
            };
            let tx = test.begin().await;
            assert!(insert_in(&tx, &test.sql, &letter(Some(&message))).await.unwrap());
            tx.commit().await.unwrap();
            assert!(insert(&test.db, &test.sql, &letter(None)).await.unwrap());
            assert!(
                !insert(&test.db, &test.sql, &letter(None)).await.unwrap(),
                "a second delivery adds a second letter"
            );
            letters += 2;
            let all = DeadLetters::new(test.db.clone()).with_names(test.names.clone());
            let all = all.list(&DeadLetterSelection::all(), 100).await.unwrap();
            assert_eq!(all.len(), letters);
            for stored in &all[letters - 2..] {
                assert_eq!(stored.headers, incoming.headers);
                assert_eq!((stored.stream_sequence, stored.attempts), (u64::MAX, 3));
                assert_eq!(stored.payload, [0, 159]);
            }
        }
    }
}

#[tokio::test]
async fn timeout_does_not_store_dead_letter_plain() {
    for test in TestDb::open_all().await {
        if test.db.get_database_backend() != DbBackend::Postgres {
            not_applicable("this database has no `statement_timeout`");
            continue;
        }
        let (message, incoming) = (message(), incoming(1, b"a"));
        let was_dead = letter(Some(&message), &incoming);
        let (first, second) = (test.begin().await, test.begin().await);
        assert!(insert_in(&first, &test.sql, &was_dead).await.unwrap());
        second
            .execute_unprepared("SET LOCAL statement_timeout = '400ms'")
            .await
            .unwrap();
        let pid = Statement::from_string(DbBackend::Postgres, "SELECT pg_backend_pid()::int8");
        let pid: i64 = first
            .query_one_raw(pid)
            .await
            .unwrap()
            .unwrap()
            .try_get_by_index(0)
            .unwrap();
        let waiting = format!(
            "SELECT query_start::text FROM pg_stat_activity WHERE {pid} = ANY(pg_blocking_pids(pid))"
        );
        let waiting = Statement::from_string(DbBackend::Postgres, waiting);
        let is_over = std::cell::Cell::new(false);
        let insert = async {
            let outcome = insert_in(&second, &test.sql, &was_dead).await;
            is_over.set(true);
            outcome
        };
        let end = async {
            let mut begun = BTreeSet::new();
            eventually("an outcome, or a second try", async || {
                for row in test.db.query_all_raw(waiting.clone()).await.unwrap() {
                    begun.insert(row.try_get_by_index::<String>(0).unwrap());
                }
                is_over.get() || begun.len() > 1
            })
            .await;
            first.rollback().await.unwrap();
        };
        let (outcome, ()) = tokio::join!(insert, end);
        assert!(timed_out(&outcome.unwrap_err()));
        second.rollback().await.unwrap();
    }
}

#[test]
fn escaped_json_is_ascii_and_equivalent() {
    let text = vec![("n\0\u{fc}\u{1f600}\"\\", "\u{2028}")];
    let json = serde_json::to_string(&text).unwrap();
    let escaped = escaped_json(&json);
    assert!(escaped.is_ascii(), "{escaped}");
    let read: Vec<(String, String)> = serde_json::from_str(&escaped).unwrap();
    assert_eq!(read, [(text[0].0.to_owned(), text[0].1.to_owned())]);
}
