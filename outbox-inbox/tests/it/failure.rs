//! Failing handlers leave only their count, and at the limit a dead letter.

use std::time::Duration;

use outbox_inbox::Router;
use outbox_inbox::testing::{Outcome, dead_letters, handled};
use outbox_testing::MemoryBroker;
use sea_orm::ConnectionTrait as _;

use crate::on_every_backend;
use crate::support::{Script, Step, TestDb, book, delivered, message, placed, publish, quick, take_effect};

/// Guarantee G5.
async fn a_panicking_message_becomes_a_dead_letter_and_others_flow(test: TestDb) {
    let broker = MemoryBroker::new();
    let poison = publish(&broker, &placed(0)).await;
    for order in 1..20 {
        publish(&broker, &placed(order)).await;
    }
    // The panicking message competes with the others for the only slot.
    let config = quick().concurrency(1).attempts_max(3);
    let script = PanicsFor { poison: 0 };
    let inbox = test
        .inbox(&broker, Router::new().handler::<book_or_panic>())
        .with_config(config)
        .with_state(script);
    let report = inbox.drain().await.unwrap();
    assert_eq!(
        (report.handled, report.failed, report.dead_letters),
        (19, 2, 1),
        "{report:?}"
    );
    let letters = dead_letters(&test.db, "panics").await.unwrap();
    assert_eq!(letters.len(), 1);
    assert_eq!(letters[0].event_id, Some(poison.event_id));
    assert_eq!(letters[0].attempts, 3);
    assert!(
        letters[0].error.contains("handler panicked: order 0 panics"),
        "{}",
        letters[0].error
    );
    assert_eq!(letters[0].raw_payload(), poison.payload);
    assert_eq!(handled(&test.db, "panics").await.unwrap().len(), 19);
    assert_eq!(
        (test.effects("panics", 0).await, test.effects("panics", 1).await),
        (0, 1)
    );
}

struct PanicsFor {
    poison: u64,
}

#[outbox_inbox::idempotent_handler(consumer = "panics")]
async fn book_or_panic(
    event: outbox_inbox::Event<crate::support::OrderPlaced>,
    tx: outbox_inbox::Tx<'_>,
    key: outbox_inbox::StableKey,
    panics_for: outbox_inbox::HandlerState<PanicsFor>,
) -> Result<(), outbox_inbox::HandlerError> {
    take_effect("panics", &event, &tx, key).await?;
    assert!(
        event.order_id != panics_for.poison,
        "order {} panics",
        event.order_id
    );
    Ok(())
}

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
    // PostgreSQL cannot store NUL.
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

async fn slow_handler_is_cancelled(test: TestDb) {
    let script = Script::new([Step::Hang], Step::Ok);
    let harness = test
        .harness(&script)
        .with_config(quick().handler_timeout(Duration::from_millis(50)));
    let message = message(&placed(1));
    delivered::<book>(&harness, &message, 1, Outcome::Failed).await;
    assert_eq!(
        (test.effects("books", 1).await, test.row().await),
        (0, Some((0, 1)))
    );
    // The old script still has its step if the time limit passed before the handler reached it.
    let harness = test.harness(&Script::ok());
    delivered::<book>(&harness, &message, 2, Outcome::Handled).await;
    assert_eq!(test.effects("books", 1).await, 1);
}

/// On PostgreSQL `COMMIT` then answers with a rollback that no driver reports. The other databases
/// keep the transaction.
async fn a_swallowed_database_error_loses_nothing(test: TestDb) {
    let script = Script::new([Step::Swallow], Step::Ok);
    let harness = test.harness(&script);
    let message = message(&placed(1));
    let first = harness.deliver_message::<book>(&message).await.unwrap();
    let again = harness.redeliver_message::<book>(&message, 2).await.unwrap();
    let expected = match test.backend {
        crate::support::Backend::Postgres => (Outcome::Failed, Outcome::Handled),
        _ => (Outcome::Handled, Outcome::Duplicate),
    };
    assert_eq!((first, again), expected);
    assert_eq!((test.effects("books", 1).await, test.follow_ups().await), (1, 1));
}

#[outbox_inbox::idempotent_handler(consumer = "people")]
async fn register(
    _event: outbox_inbox::Event<crate::support::OrderPlaced>,
    tx: outbox_inbox::Tx<'_>,
    panics: outbox_inbox::HandlerState<bool>,
) -> Result<(), outbox_inbox::HandlerError> {
    let added = tx.execute_unprepared(ADD_ADDRESS).await;
    if *panics {
        added.unwrap();
    } else {
        added?;
    }
    Ok(())
}

const ADD_ADDRESS: &str = "INSERT INTO people (email) VALUES ('ann@example.com')";

/// MySQL and MariaDB quote the existing value.
async fn values_in_database_errors_are_not_recorded(test: TestDb) {
    test.execute("CREATE TABLE people (email VARCHAR(99) UNIQUE)")
        .await;
    test.execute(ADD_ADDRESS).await;
    for panics in [false, true] {
        let broker = MemoryBroker::new();
        let message = publish(&broker, &placed(1)).await;
        let inbox = test
            .inbox(&broker, Router::new().handler::<register>())
            .with_config(quick().attempts_max(2))
            .with_state(panics);
        let report = inbox.drain().await.unwrap();
        assert_eq!((report.failed, report.dead_letters), (1, 1), "{report:?}");
        let letters = dead_letters(&test.db, "people").await.unwrap();
        let letter = letters
            .iter()
            .find(|letter| letter.event_id == Some(message.event_id));
        let error = letter.unwrap().error.to_lowercase();
        assert!(!error.contains("ann@"), "{error}");
        assert!(
            ["unique", "duplicate entry", "1062"]
                .iter()
                .any(|words| error.contains(words)),
            "{error}"
        );
        assert_eq!(error.contains("panicked"), panics, "{error}");
    }
    let recorded = "SELECT count(*) FROM inbox_messages WHERE last_error LIKE '%ann@%'";
    assert_eq!(test.int(recorded).await, 0);
}

on_every_backend!(
    values_in_database_errors_are_not_recorded,
    a_panicking_message_becomes_a_dead_letter_and_others_flow,
    bounded_interruptions_use_no_attempts,
    a_fatal_error_is_a_dead_letter_at_once,
    slow_handler_is_cancelled,
    a_swallowed_database_error_loses_nothing,
);
