//! Guarantee G4: one effect per consumer and message.

use std::sync::Arc;

use outbox_inbox::testing::{Harness, Outcome, handled};
use outbox_inbox::{Router, StableKey};
use outbox_testing::MemoryBroker;
use sea_orm::ConnectionTrait as _;

use crate::on_every_backend;
use crate::support::{Script, Step, TestDb, book, delivered, message, placed, publish, quick, reserve};

async fn a_duplicate_has_no_effect(test: TestDb) {
    let script = Script::ok();
    let harness = test.harness(&script);
    let message = message(&placed(1));
    delivered::<book>(&harness, &message, 1, Outcome::Handled).await;
    delivered::<book>(&harness, &message, 1, Outcome::Duplicate).await;
    delivered::<book>(&harness, &message, 5, Outcome::Duplicate).await;
    assert_eq!(test.effects("books", 1).await, 1);
    assert_eq!(test.follow_ups().await, 1);
    assert_eq!(script.runs(), 1);
    assert_eq!(test.row().await, Some((1, 0)));
    assert_eq!(handled(&test.db, "books").await.unwrap(), [message.event_id]);
}

async fn every_message_delivered_twice_takes_effect_once(test: TestDb) {
    let broker = MemoryBroker::new();
    broker.duplicate_deliveries(usize::MAX);
    for order in 0..50 {
        publish(&broker, &placed(order)).await;
    }
    let script = Script::ok();
    let inbox = test
        .inbox(&broker, Router::new().handler::<book>())
        .with_state(script.clone());
    let report = inbox.drain().await.unwrap();
    assert_eq!(report.handled, 50, "{report:?}");
    assert_eq!(script.runs(), 50);
    for order in 0..50 {
        assert_eq!(test.effects("books", order).await, 1);
    }
}

async fn a_copy_on_the_stream_has_no_effect(test: TestDb) {
    let broker = MemoryBroker::new();
    let first = publish(&broker, &placed(1)).await;
    broker.forget_ids();
    outbox_core::Publisher::publish(&broker.publisher(), &first)
        .await
        .unwrap();
    assert_eq!(broker.messages().len(), 2);
    let inbox = test
        .inbox(&broker, Router::new().handler::<book>())
        .with_state(Script::ok());
    let report = inbox.drain().await.unwrap();
    assert_eq!((report.handled, report.duplicates), (1, 1));
    assert_eq!(test.effects("books", 1).await, 1);
}

async fn stable_keys_reach_the_handler(test: TestDb) {
    let message = message(&placed(1));
    test.harness(&Script::ok())
        .deliver_message::<reserve>(&message)
        .await
        .unwrap();
    let key = StableKey::new("stock", message.event_id);
    assert_eq!(
        test.int(&format!(
            "SELECT count(*) FROM effects WHERE stable_key = '{key}'"
        ))
        .await,
        1
    );
}

on_every_backend!(
    a_duplicate_has_no_effect,
    every_message_delivered_twice_takes_effect_once,
    a_copy_on_the_stream_has_no_effect,
    stable_keys_reach_the_handler,
);

/// 32 tasks over two pools, like two processes. The first run fails: on MariaDB its rollback makes
/// the waiting inserts deadlock.
async fn concurrent_duplicates_take_effect_once(test: TestDb) {
    for round in 0..5 {
        let script = Script::new([Step::Fail], Step::Ok);
        let pools = [test.db.clone(), test.connect_again().await];
        let harnesses: Vec<_> = pools
            .into_iter()
            .map(|db| {
                Arc::new(
                    Harness::new(db)
                        .with_state(script.clone())
                        .with_config(quick().attempts_max(100)),
                )
            })
            .collect();
        let message = Arc::new(message(&placed(round)));
        let tasks: Vec<_> = (0..32)
            .map(|task| {
                let (harness, message) = (harnesses[task % 2].clone(), message.clone());
                let delivery_count = 1 + task as u64 % 4 / 2;
                tokio::spawn(async move {
                    harness
                        .redeliver_message::<book>(&message, delivery_count)
                        .await
                        .unwrap()
                })
            })
            .collect();
        let mut outcomes = Vec::new();
        for task in tasks {
            outcomes.push(task.await.unwrap());
        }
        assert_eq!(
            outcomes
                .iter()
                .filter(|outcome| **outcome == Outcome::Handled)
                .count(),
            1,
            "{outcomes:?}"
        );
        assert_eq!(test.effects("books", round).await, 1, "{outcomes:?}");
        assert_eq!(
            script.runs(),
            2,
            "the failing run and the one that took effect: {outcomes:?}"
        );
    }
}

async fn two_inboxes_share_a_consumer(test: TestDb) {
    let broker = MemoryBroker::new();
    broker.duplicate_deliveries(usize::MAX);
    for order in 0..100 {
        publish(&broker, &placed(order)).await;
    }
    let script = Script::ok();
    let router = Router::new().handler::<book>();
    let first = test.inbox(&broker, router.clone()).with_state(script.clone());
    let second = outbox_inbox::Inbox::new(test.connect_again().await, broker.subscriber())
        .with_router(router)
        .with_config(quick())
        .with_state(script.clone());
    let (first, second) = tokio::join!(first.drain(), second.drain());
    assert_eq!(first.unwrap().handled + second.unwrap().handled, 100);
    assert_eq!(script.runs(), 100);
    assert_eq!(test.int("SELECT count(*) FROM effects").await, 100);
}

on_every_backend!(without memory: concurrent_duplicates_take_effect_once, two_inboxes_share_a_consumer);

/// SeaORM's `on_conflict_do_nothing` reports a duplicate as inserted, because the driver counts
/// matched rows.
#[tokio::test]
async fn mariadb_duplicates_are_not_reported_as_new() {
    let Some(test) = TestDb::open(crate::support::Backend::MariaDb, "mariadb_duplicates").await else {
        return;
    };
    let insert = "INSERT INTO markers (id) VALUES (1) ON DUPLICATE KEY UPDATE id = id";
    for _ in 0..2 {
        assert_eq!(
            test.db.execute_unprepared(insert).await.unwrap().rows_affected(),
            1
        );
    }
    a_duplicate_has_no_effect(test).await;
}
