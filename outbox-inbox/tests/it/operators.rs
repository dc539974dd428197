//! Operators and dead letters: list, retry, discard.

use std::collections::BTreeSet;

use outbox_core::{Aggregate, Incoming};
use outbox_inbox::testing::{Harness, Outcome};
use outbox_inbox::{DeadLetter, DeadLetterSelection, DeadLetterStatus, DeadLetters};
use sea_orm::ConnectionTrait as _;
use uuid::Uuid;

use crate::on_every_backend;
use crate::support::{OrderPlaced, Script, Step, TestDb, book};

fn foreign(stream_sequence: u64) -> Incoming {
    Incoming {
        subject: "foreign".to_owned(),
        headers: Vec::new(),
        payload: b"x".to_vec().into(),
        delivery_count: 1,
        stream_sequence,
    }
}

async fn four_letters(test: &TestDb) -> (Harness, DeadLetters) {
    let harness = test.harness(&Script::new([], Step::Fatal));
    for (order_id, line) in [(1, 0), (1, 1), (2, 0)] {
        let outcome = harness.deliver::<book>(&OrderPlaced { order_id, line }).await;
        assert_eq!(outcome.unwrap(), Outcome::DeadLettered);
    }
    let outcome = harness.deliver_raw::<book>(foreign(7)).await;
    assert_eq!(outcome.unwrap(), Outcome::DeadLettered);
    (harness, DeadLetters::new(test.db.clone()))
}

async fn count(letters: &DeadLetters, selection: &DeadLetterSelection) -> u64 {
    let count = letters.count(selection).await.unwrap();
    let listed = letters.list(selection, 100).await.unwrap();
    assert_eq!(count, listed.len() as u64, "{selection:?}");
    count
}

async fn dead_letters_are_found_by_their_fields(test: TestDb) {
    let (_, letters) = four_letters(&test).await;
    let all = letters.list(&DeadLetterSelection::all(), 100).await.unwrap();
    assert_eq!(all.len(), 4);
    let of_order_2: Vec<&DeadLetter> = all
        .iter()
        .filter(|letter| letter.aggregate == Some(Aggregate::new("order", "2")))
        .collect();
    let [found] = of_order_2.as_slice() else {
        panic!("{all:?}")
    };
    assert_eq!(found.event_type.as_deref(), Some("order.placed"));
    assert_eq!((found.sequence, found.attempts), (Some(1), 1));
    assert_eq!(
        (found.consumer.as_str(), found.status),
        ("books", DeadLetterStatus::Open)
    );
    assert_eq!(letters.get(found.id).await.unwrap().as_ref(), Some(*found));
    assert_eq!(letters.get(Uuid::nil()).await.unwrap(), None);

    let books = DeadLetterSelection::consumer("books");
    for (selection, expected) in [
        (books.clone(), 4),
        (DeadLetterSelection::consumer("Books"), 0),
        (books.clone().event_type("order.placed"), 3),
        (books.clone().event_type("order.%"), 0),
        (books.clone().aggregate(Aggregate::new("order", "1")), 2),
        (
            DeadLetterSelection::all().aggregate(Aggregate::new("Order", "1")),
            0,
        ),
        (books.clone().status(DeadLetterStatus::Open), 4),
        (books.clone().status(DeadLetterStatus::Retry), 0),
        (DeadLetterSelection::ids([found.id, Uuid::nil()]), 1),
        (DeadLetterSelection::ids([]), 0),
        (books.clone().from(all[0].created_at), 4),
        (books.clone().until(all[0].created_at), 0),
        (
            books
                .clone()
                .from(all[3].created_at)
                .event_type("order.cancelled"),
            0,
        ),
        (
            books
                .clone()
                .until(all[3].created_at + time::Duration::MICROSECOND),
            4,
        ),
    ] {
        assert_eq!(count(&letters, &selection).await, expected, "{selection:?}");
    }
    assert!(
        letters
            .count(&DeadLetterSelection::ids(vec![Uuid::nil(); 10_001]))
            .await
            .is_err()
    );
}

async fn pages_neither_miss_nor_repeat(test: TestDb) {
    let (_, letters) = four_letters(&test).await;
    let zero = match test.sql_backend() {
        sea_orm::DbBackend::Sqlite => "1234567890123456",
        _ => "TIMESTAMP '2026-01-02 03:04:05.678901'",
    };
    test.execute(&format!("UPDATE inbox_dead_letters SET created_at = {zero}"))
        .await;
    let mut seen = BTreeSet::new();
    let mut selection = DeadLetterSelection::consumer("books");
    loop {
        let page = letters.list(&selection, 1).await.unwrap();
        let Some(last) = page.last() else { break };
        assert!(seen.insert(last.id), "{last:?} came twice");
        selection = selection.after(last);
    }
    assert_eq!(seen.len(), 4);
}

async fn two_operators_share_the_work(test: TestDb) {
    const LETTERS: u64 = 2_500;
    let harness = test.harness(&Script::ok());
    harness.deliver_raw::<book>(foreign(0)).await.unwrap();
    let (id, numbers) = match test.sql_backend() {
        sea_orm::DbBackend::Postgres => (
            "md5(n.n::text)::uuid",
            format!("(SELECT generate_series(1, {}) AS n) n", LETTERS - 1),
        ),
        sea_orm::DbBackend::MySql => ("UNHEX(MD5(n.n))", recursive_numbers(LETTERS - 1)),
        _ => ("randomblob(16)", recursive_numbers(LETTERS - 1)),
    };
    test.db
        .execute_unprepared(&format!(
            "INSERT INTO inbox_dead_letters (id, consumer, subject, stream_sequence, headers, payload, error, attempts, status, created_at) \
             SELECT {id}, consumer, subject, n.n, headers, payload, error, attempts, status, created_at \
             FROM inbox_dead_letters, {numbers}"
        ))
        .await
        .unwrap();
    let letters = DeadLetters::new(test.db.clone());
    assert_eq!(letters.count(&DeadLetterSelection::all()).await.unwrap(), LETTERS);
    let (one, two) = (letters.clone(), letters.clone());
    let selection = DeadLetterSelection::consumer("books");
    let (one, two) = tokio::join!(one.retry(&selection), two.retry(&selection));
    assert_eq!(one.unwrap() + two.unwrap(), LETTERS);
    let (one, two) = (letters.clone(), letters.clone());
    let (one, two) = tokio::join!(one.discard(&selection), two.cancel_retry(&selection));
    let (discarded, cancelled) = (one.unwrap(), two.unwrap());
    // If a dead letter was reopened before it was discarded, both operators count it.
    assert!(discarded + cancelled >= LETTERS, "{discarded} {cancelled}");
    let rest = letters.discard(&selection).await.unwrap();
    assert_eq!(discarded + rest, LETTERS);
    assert_eq!(letters.count(&DeadLetterSelection::all()).await.unwrap(), 0);
}

fn recursive_numbers(count: u64) -> String {
    format!(
        "(WITH RECURSIVE s (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < {}) \
         SELECT a.n + 50 * (b.n - 1) AS n FROM s a, s b WHERE a.n + 50 * (b.n - 1) <= {count}) n",
        50
    )
}

on_every_backend!(
    dead_letters_are_found_by_their_fields,
    pages_neither_miss_nor_repeat,
    two_operators_share_the_work,
);
