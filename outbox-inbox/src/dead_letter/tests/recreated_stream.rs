//! Dead letters of a recreated stream.

use super::*;

async fn make(test: &TestDb, aggregate: &str, sequence: Option<u64>, stream_sequence: u64) {
    let message = Message {
        aggregate: Aggregate::new("order", aggregate),
        sequence,
        ..message()
    };
    let incoming = incoming(stream_sequence, b"{}");
    let letter = letter(Some(&message), &incoming);
    assert!(insert(&test.db, &test.sql, &letter).await.unwrap());
}

#[tokio::test]
async fn letters_of_old_stream_precede_recreated_stream() {
    for test in TestDb::open_all().await {
        for (aggregate, sequence, place) in [
            ("1", Some(1), 90),
            ("1", Some(2), 91),
            ("1", None, 92),
            ("1", Some(3), 1),
            ("1", Some(4), 2),
            ("2", Some(7), 3),
        ] {
            make(&test, aggregate, sequence, place).await;
        }
        let all = DeadLetterSelection::all();
        assert_eq!(test.letters().retry(&all).await.unwrap(), 6);
        assert_eq!(test.due_places().await, [3, 90, 91, 92]);
        for letter in &test.due().await[..3] {
            assert!(test.begin_retry(letter).await);
        }
        assert_eq!(test.due_places().await, [1, 2, 92]);
    }
}

#[tokio::test]
async fn failing_letter_of_old_stream_holds_back_recreated_stream() {
    for test in TestDb::open_all().await {
        for (sequence, place) in [(Some(1), 90), (Some(3), 1), (Some(4), 2), (None, 95), (None, 3)] {
            make(&test, "1", sequence, place).await;
        }
        let all = DeadLetterSelection::all();
        test.letters().retry(&all).await.unwrap();
        let letters = test.due().await;
        let first = letters.iter().find(|letter| letter.sequence == Some(1)).unwrap();
        assert!(test.begin_retry(first).await);
        test.fail(first, "again").await;
        assert_eq!(
            test.due_places().await,
            [3],
            "a letter without a number waits for a later place"
        );

        test.letters().retry(&all).await.unwrap();
        let first = test
            .due()
            .await
            .into_iter()
            .find(|letter| letter.sequence == Some(1));
        assert!(test.begin_retry(&first.unwrap()).await);
        let new = test
            .due()
            .await
            .into_iter()
            .find(|letter| letter.sequence == Some(3));
        assert!(test.begin_retry(new.as_ref().unwrap()).await);
        test.letters().retry(&DeadLetterSelection::all()).await.unwrap();
        test.fail(&new.unwrap(), "again").await;
        let places = test.due_places().await;
        assert_eq!(
            places,
            [90],
            "letters without a number and with a later place wait"
        );
    }
}

#[tokio::test]
async fn letters_in_memory_hide_no_other_aggregates() {
    for test in TestDb::open_all().await {
        make(&test, "1", Some(1), 90).await;
        for place in 1..=15 {
            make(&test, "1", Some(place + 1), place).await;
        }
        make(&test, "2", Some(1), 16).await;
        make(&test, "3", None, 17).await;
        let unreadable = incoming(18, b"x");
        assert!(
            insert(&test.db, &test.sql, &letter(None, &unreadable))
                .await
                .unwrap()
        );
        test.letters().retry(&DeadLetterSelection::all()).await.unwrap();
        assert_eq!(test.due_places().await, [16, 17, 18, 90]);
        let old = test.due().await.pop().unwrap();
        assert!(test.begin_retry(&old).await);
        assert_eq!(test.due_places().await, (1..=10).collect::<Vec<_>>());
        let aggregate = |id| Aggregate::new("order", id);
        let others: Vec<_> = (10..5_000).map(|n| aggregate(n.to_string())).collect();
        let of = |id: &str| [&others[..], &[aggregate(id.to_owned())]].concat();
        for (held, expected) in [
            (vec![aggregate("1".to_owned())], vec![16, 17, 18]),
            (of("1"), vec![16, 17, 18]),
            (of("3"), (1..=10).collect()),
            (vec![Aggregate::new("orde", "r1")], (1..=10).collect()),
        ] {
            let found = retry::due(&test.db, &test.sql, "billing", &held, 10, usize::MAX).await;
            let places = found
                .unwrap()
                .into_iter()
                .map(|letter| letter.incoming.stream_sequence);
            assert_eq!(places.collect::<Vec<_>>(), expected, "{} held", held.len());
        }
    }
}
