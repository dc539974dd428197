//! Crash points C1–C7 and C12: whatever a process has done when it ends, the next delivery completes it once.
//!
//! A crash is a Tokio runtime that is dropped with everything that runs in it: no line of the inbox runs any more, its connections end
//! and the server rolls back. Each test first brings a handler to the point, then crashes, then lets a healthy process go on.

use std::time::Duration;

use outbox_core::testing::MemoryBroker;
use outbox_inbox::testing::{Harness, Outcome, dead_letters};
use outbox_inbox::{Inbox, Router};
use tokio_util::sync::CancellationToken;

use crate::on_every_backend;
use crate::support::{SOON, Script, Step, TestDb, book, message, placed, publish, quick, slow};

/// Runs an inbox in a process of its own, which ends as soon as the handler has written its effect.
async fn crash_in_handler(test: &TestDb, broker: &MemoryBroker) {
    let script = Script::new([], Step::Hang);
    let (connect, broker, crashing) = (test.connector(), broker.clone(), script.clone());
    let process = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async move {
            let inbox = Inbox::new(connect().await, broker.source())
                .router(Router::new().handler::<book>())
                .config(quick())
                .state(crashing.clone());
            let run = tokio::spawn(async move { inbox.run(CancellationToken::new()).await });
            crashing.started().await;
            assert!(!run.is_finished());
            // Not dropped: that would be an orderly end.
            std::mem::forget(run);
        });
        runtime.shutdown_timeout(SOON);
    });
    tokio::task::spawn_blocking(move || process.join().unwrap())
        .await
        .unwrap();
    assert_eq!(script.runs(), 1);
}

/// C3, C4, C5: row, effect and follow-up event are written, nothing is committed.
async fn a_crash_before_the_commit_leaves_nothing(test: TestDb) {
    let broker = MemoryBroker::new();
    publish(&broker, &placed(1)).await;
    crash_in_handler(&test, &broker).await;
    assert_eq!((test.effects("books", 1).await, test.follow_ups().await), (0, 0));
    assert_eq!(test.row().await, None);
    assert!(!broker.is_idle("books"));

    let script = Script::ok();
    let inbox = test
        .inbox(&broker, Router::new().handler::<book>())
        .state(script.clone());
    let report = inbox.drain_until_idle().await.unwrap();
    assert_eq!((report.handled, report.duplicates), (1, 0));
    assert_eq!((test.effects("books", 1).await, test.follow_ups().await), (1, 1));
    assert_eq!(script.runs(), 1);
}

/// C12, and C2 on the way: a message that ends the process each time reaches its limit. The first delivery leaves no count, each later one
/// is counted before it runs.
async fn a_message_that_ends_the_process_is_given_up(test: TestDb) {
    let message = message(&placed(1));
    for delivery in 1..=3 {
        let script = Script::new([], Step::Hang);
        let (connect, message, crashing) = (test.connector(), message.clone(), script.clone());
        let process = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(1)
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async move {
                let harness = Harness::new(connect().await)
                    .state(crashing.clone())
                    .config(slow().attempts_max(2));
                let run =
                    tokio::spawn(async move { harness.redeliver_message::<book>(&message, delivery).await });
                crashing.started().await;
                std::mem::forget(run);
            });
            runtime.shutdown_timeout(SOON);
        });
        tokio::task::spawn_blocking(move || process.join().unwrap())
            .await
            .unwrap();
        let counted = delivery.cast_signed() - 1;
        assert_eq!(test.row().await, (delivery > 1).then_some((0, counted)));
    }
    let script = Script::ok();
    // The last one may still be running, as long as it can.
    let harness = test.harness(&script).config(slow().attempts_max(2));
    assert_eq!(
        harness.redeliver_message::<book>(&message, 4).await.unwrap(),
        Outcome::Later
    );
    assert_eq!(test.row().await, Some((0, 2)));
    let harness = test
        .harness(&script)
        .config(quick().handler_timeout(Duration::ZERO).attempts_max(2));
    let outcome = harness.redeliver_message::<book>(&message, 4).await.unwrap();
    assert_eq!((outcome, script.runs()), (Outcome::DeadLettered, 0));
    assert_eq!(test.effects("books", 1).await, 0);
    let letters = dead_letters(&test.db, "books").await.unwrap();
    assert_eq!((letters.len(), letters[0].attempts), (1, 2));
    assert!(
        letters[0].error.contains("its process ended"),
        "{}",
        letters[0].error
    );
    assert_eq!(test.row().await, Some((2, 2)));
}

on_every_backend!(without memory: a_crash_before_the_commit_leaves_nothing, a_message_that_ends_the_process_is_given_up);

/// C1: delivered and not begun. Nobody answers, so it comes again.
async fn a_delivery_that_nobody_began_comes_again(test: TestDb) {
    use outbox_core::{ConsumerSpec, Source as _, Subscription as _};
    let broker = MemoryBroker::new();
    publish(&broker, &placed(1)).await;
    let spec = ConsumerSpec {
        name: "books".to_owned(),
        events: <crate::support::OrderPlaced as outbox_core::DomainEvent>::DESCRIPTORS
            .iter()
            .collect(),
        ack_wait: Duration::from_secs(1),
        whole_aggregates: false,
        in_flight_max: 10,
        prefetch: 10,
    };
    let mut subscription = broker.source().subscribe(&spec).await.unwrap();
    drop(subscription.next().await.unwrap());
    drop(subscription);
    let script = Script::ok();
    let inbox = test
        .inbox(&broker, Router::new().handler::<book>())
        .state(script.clone());
    let report = inbox.drain_until_idle().await.unwrap();
    assert_eq!((report.handled, script.runs()), (1, 1));
    assert_eq!(test.effects("books", 1).await, 1);
}

/// C6 and C7: committed, and the acknowledgement is lost, or was never sent.
async fn a_lost_acknowledgement_makes_a_duplicate(test: TestDb) {
    let broker = MemoryBroker::new();
    broker.lose_consumer_acks(1);
    publish(&broker, &placed(1)).await;
    let script = Script::ok();
    let inbox = test
        .inbox(&broker, Router::new().handler::<book>())
        .state(script.clone());
    let report = inbox.drain_until_idle().await.unwrap();
    assert_eq!((report.handled, report.duplicates), (1, 1));
    assert_eq!(
        (
            test.effects("books", 1).await,
            test.follow_ups().await,
            script.runs()
        ),
        (1, 1, 1)
    );
    assert_eq!(
        test.row().await,
        Some((1, 0)),
        "a duplicate is not counted as an attempt"
    );
}

on_every_backend!(
    a_delivery_that_nobody_began_comes_again,
    a_lost_acknowledgement_makes_a_duplicate
);
