//! Crashes: a Tokio runtime is dropped with all its tasks, and the server rolls back.

use std::time::Duration;

use outbox_inbox::testing::{Harness, Outcome, dead_letters};
use outbox_inbox::{Inbox, Router};
use outbox_testing::MemoryBroker;
use tokio_util::sync::CancellationToken;

use crate::lost_acknowledgements::{failed_rows, lost_constraint, lost_key, lost_natural, lost_patient};
use crate::on_every_backend;
use crate::orders::{Orders, crash_after, lines, numbered, prepare, put};
use crate::runtime::{spawn, stop, within};
use crate::support::{Script, Step, TestDb, book, delivered, message, placed, quick, slow, with_ack_wait};

/// The first delivery of a message is not counted as an attempt. Each redelivery is counted before
/// the handler runs.
async fn message_that_kills_the_process_is_dead_lettered(test: TestDb) {
    let message = message(&placed(1));
    for delivery in 1..=3 {
        let script = Script::new([], Step::Hang);
        let (connect, message, crashing) = (test.connector(), message.clone(), script.clone());
        crash_after(move || async move {
            let harness = Harness::new(connect().await)
                .with_state(crashing.clone())
                .with_config(slow().attempts_max(2));
            let run =
                tokio::spawn(async move { harness.redeliver_message::<book>(&message, delivery).await });
            crashing.started().await;
            std::mem::forget(run);
        })
        .await;
        let counted = delivery.cast_signed() - 1;
        assert_eq!(test.row().await, (delivery > 1).then_some((0, counted)));
    }
    let script = Script::ok();
    let harness = test.harness(&script).with_config(slow().attempts_max(2));
    delivered::<book>(&harness, &message, 4, Outcome::Later).await;
    assert_eq!(test.row().await, Some((0, 2)));
    let harness = test
        .harness(&script)
        .with_config(quick().handler_timeout(Duration::ZERO).attempts_max(2));
    let outcome = harness.redeliver_message::<book>(&message, 4).await.unwrap();
    assert_eq!((outcome, script.runs()), (Outcome::DeadLettered, 0));
    assert_eq!(test.effects("books", 1).await, 0);
    let letters = dead_letters(&test.db, "books").await.unwrap();
    assert_eq!((letters.len(), letters[0].attempts), (1, 2));
    assert!(
        letters[0].error.contains("ended with its process"),
        "{}",
        letters[0].error
    );
    assert_eq!(test.row().await, Some((2, 2)));
}

async fn kills_leave_no_failed_row_of_a_handled_message(test: TestDb) {
    prepare(&test).await;
    let broker = MemoryBroker::new();
    for (order_id, line) in (1..=6).flat_map(|order_id| (1..=5).map(move |line| (order_id, line))) {
        put(&broker, &numbered(order_id, line)).await;
    }
    let router = || {
        Router::new()
            .handler::<lost_patient>()
            .handler::<lost_key>()
            .handler::<lost_natural>()
            .handler::<lost_constraint>()
    };
    let beside = Inbox::new(test.connect_again().await, broker.subscriber())
        .with_router(router())
        .with_config(with_ack_wait(2).concurrency(1))
        .with_state(Orders::default());
    let (shutdown, run) = spawn(beside);
    for _ in 0..4 {
        broker.lose_consumer_acks(8);
        let (connect, broker, orders) = (test.connector(), broker.clone(), Orders::default());
        crash_after(move || async move {
            let inbox = Inbox::new(connect().await, broker.subscriber())
                .with_router(router())
                .with_config(with_ack_wait(2))
                .with_state(orders.clone());
            let run = tokio::spawn(async move { inbox.run(CancellationToken::new()).await });
            let runs = orders.until("runs", |state| state.runs.len() >= 6);
            let idle = broker.until_idle("lost_patient");
            futures_util::future::select(std::pin::pin!(runs), std::pin::pin!(idle)).await;
            std::mem::forget(run);
        })
        .await;
    }
    for consumer in ["lost_patient", "lost_key", "lost_natural", "lost_constraint"] {
        within(broker.until_idle(consumer)).await;
    }
    let report = stop((shutdown, run)).await;
    assert_eq!((report.dead_letters, report.failed), (0, 0), "{report:?}");
    assert_eq!(failed_rows(&test).await, 0);
    for order_id in 1..=6 {
        for consumer in ["lost_patient", "lost_key", "lost_constraint"] {
            let mut lines = lines(&test, consumer, order_id).await;
            if consumer != "lost_patient" {
                lines.sort_unstable();
            }
            assert_eq!(lines, [1, 2, 3, 4, 5], "{consumer}, order {order_id}");
        }
    }
}

on_every_backend!(without memory:
    message_that_kills_the_process_is_dead_lettered,
    kills_leave_no_failed_row_of_a_handled_message,
);
