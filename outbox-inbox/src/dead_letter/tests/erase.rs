//! Erasing the dead letters of an aggregate.

use super::*;

async fn make(test: &TestDb, aggregate_id: &str, stream_sequence: u64, form: Form) -> Message {
    let message = Message {
        aggregate: Aggregate::new("order", aggregate_id),
        payload: Bytes::from_static(b"{\"email\":\"ada@example.org\"}"),
        ..message()
    };
    let (headers, payload) = codec::encode(&message, "test").received();
    let incoming = Incoming {
        subject: "events.order".to_owned(),
        headers,
        payload,
        delivery_count: 7,
        stream_sequence,
    };
    let letter = letter(Some(&message), &incoming);
    let id = letter.id().unwrap();
    assert!(insert_as(&test.db, &test.sql, id, &letter, form).await.unwrap());
    let key = test.key(&message);
    let row = test.sql.insert(&test.db, key, Status::Failed, 3, None);
    assert!(row.await.unwrap());
    assert!(test.sql.bury(&test.db, key, "ada@example.org").await.unwrap());
    message
}

async fn last_error(test: &TestDb, message: &Message) -> Option<String> {
    let row = test.sql.row(&test.db, test.key(message)).await.unwrap();
    row.expect("its inbox row").last_error
}

fn counts(erased: u64, busy: u64, unattributed: u64) -> ErasedDeadLetters {
    ErasedDeadLetters {
        erased,
        busy,
        unattributed,
    }
}

#[tokio::test]
async fn erase_removes_all_letters_of_the_aggregate() {
    for test in TestDb::open_all().await {
        let letters = test.letters();
        let open = make(&test, "1", 1, Form::Whole).await;
        let marked = make(&test, "1", 2, Form::Whole).await;
        let plain = make(&test, "1", 3, Form::Plain).await;
        let other = make(&test, "10", 4, Form::Whole).await;
        let other_plain = make(&test, "10", 5, Form::Plain).await;
        let foreign = incoming(6, b"ada@example.org");
        assert!(
            insert(&test.db, &test.sql, &letter(None, &foreign))
                .await
                .unwrap()
        );
        let id = id_of_message("billing", marked.event_id.as_uuid());
        assert_eq!(letters.retry(&DeadLetterSelection::ids([id])).await.unwrap(), 1);

        let due = test.due().await;

        let aggregate = Aggregate::new("order", "1");
        assert_eq!(letters.erase(&aggregate).await.unwrap(), counts(3, 0, 1));
        assert!(!test.fails_again(&due[0], "ada@example.org").await);
        assert_eq!(letters.erase(&aggregate).await.unwrap(), counts(0, 0, 1));

        let left = letters.list(&DeadLetterSelection::all(), 10).await.unwrap();
        let left: Vec<_> = left.iter().map(|letter| letter.stream_sequence).collect();
        assert_eq!(left, [4, 5, 6]);
        assert_eq!(letters.retry(&DeadLetterSelection::ids([id])).await.unwrap(), 0);
        assert!(test.due().await.is_empty());
        for message in [&open, &marked, &plain] {
            assert_eq!(last_error(&test, message).await, None);
            assert_eq!(test.row(message).await, Some((Status::Dead, 3)));
        }
        for message in [&other, &other_plain] {
            assert_eq!(
                last_error(&test, message).await.as_deref(),
                Some("ada@example.org")
            );
        }
    }
}

#[tokio::test]
async fn foreign_headers_do_not_stop_erasure() {
    for test in TestDb::open_all().await {
        let letters = test.letters();
        let incoming = incoming(1, b"ada@example.org");
        let foreign = insert(&test.db, &test.sql, &letter(None, &incoming)).await;
        assert!(foreign.unwrap());
        let update = format!("UPDATE {} SET headers = '{{}}'", test.sql.dead_letters());
        test.db.execute_unprepared(&update).await.unwrap();
        make(&test, "1", 2, Form::Whole).await;
        let aggregate = Aggregate::new("order", "1");
        assert_eq!(letters.erase(&aggregate).await.unwrap(), counts(1, 0, 1));
        let error = letters.list(&DeadLetterSelection::all(), 10).await.unwrap_err();
        let left = letters.count(&DeadLetterSelection::all()).await.unwrap();
        assert_eq!(left, 1, "it is still there");
        assert!(error.to_string().contains("headers of dead letter"), "{error}");
    }
}

#[tokio::test]
async fn running_retry_counts_as_busy() {
    for test in TestDb::open_all().await {
        if test.db.get_database_backend() == DbBackend::Sqlite {
            continue;
        }
        let (letters, aggregate) = (test.letters(), Aggregate::new("order", "1"));
        let message = make(&test, "1", 1, Form::Whole).await;
        assert_eq!(letters.retry(&DeadLetterSelection::all()).await.unwrap(), 1);
        let due = test.due().await;
        assert!(test.begin_retry(&due[0]).await);
        let tx = test.begin().await;
        assert_eq!(test.claim(&tx, &due[0], &message).await, DEAD);
        assert_eq!(letters.erase(&aggregate).await.unwrap(), counts(0, 1, 0));
        tx.rollback().await.unwrap();
        assert_eq!(letters.erase(&aggregate).await.unwrap(), counts(1, 0, 0));
    }
}

#[tokio::test]
async fn many_plain_letters_are_erased_in_one_call() {
    let test = TestDb::open_all().await.remove(0);
    for stream_sequence in 0..=LIST_MAX as u64 {
        make(&test, "1", stream_sequence, Form::Plain).await;
    }
    let erased = test.letters().erase(&Aggregate::new("order", "1")).await.unwrap();
    assert_eq!(erased, counts(LIST_MAX as u64 + 1, 0, 0));
}
