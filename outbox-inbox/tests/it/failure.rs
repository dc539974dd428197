//! A failed handler leaves only the number of its attempts. At the limit, a dead letter is stored.

use outbox_inbox::testing::{Outcome, dead_letters};

use crate::on_every_backend;
use crate::support::{Script, Step, TestDb, book, delivered, message, placed};

async fn bounded_interruptions_use_no_attempts(test: TestDb) {
    let script = Script::new([Step::Interrupted; 3], Step::Ok);
    assert_eq!(
        test.harness(&script).deliver::<book>(&placed(1)).await.unwrap(),
        Outcome::Handled
    );
    assert_eq!((test.row().await, script.attempts()), (Some((1, 0)), vec![1; 4]));
    test.execute("DELETE FROM inbox_messages").await;

    let script = Script::new([], Step::Interrupted);
    assert_eq!(
        test.harness(&script).deliver::<book>(&placed(2)).await.unwrap(),
        Outcome::Failed
    );
    assert_eq!(
        (test.row().await, test.effects("books", 2).await),
        (Some((0, 1)), 0)
    );
}

async fn a_fatal_error_is_a_dead_letter_at_once(test: TestDb) {
    let script = Script::new([], Step::Fatal);
    let harness = test.harness(&script);
    let message = message(&placed(1));
    delivered::<book>(&harness, &message, 1, Outcome::DeadLettered).await;
    assert_eq!((test.effects("books", 1).await, test.follow_ups().await), (0, 0));
    assert_eq!(test.row().await, Some((2, 1)));
    let letters = dead_letters(&test.db, "books").await.unwrap();
    assert_eq!(letters.len(), 1);
    let letter = &letters[0];
    assert_eq!((letter.event_id, letter.attempts), (Some(message.event_id), 1));
    assert_eq!(letter.error, "unknown product");
    assert_eq!(letter.raw_payload(), message.payload);
    assert!(
        letter
            .headers
            .contains(&("ce-id".to_owned(), message.id.to_string())),
        "{:?}",
        letter.headers
    );
    delivered::<book>(&harness, &message, 2, Outcome::Duplicate).await;
    assert_eq!(script.runs(), 1);
}

on_every_backend!(
    bounded_interruptions_use_no_attempts,
    a_fatal_error_is_a_dead_letter_at_once
);
