//! Guarantee G4: one effect per consumer and message.

use std::sync::Arc;

use outbox_inbox::testing::{Harness, Outcome};
use outbox_inbox::{Router, StableKey};
use outbox_testing::MemoryBroker;

use crate::on_every_backend;
use crate::support::{Script, Step, TestDb, book, message, placed, publish, quick, reserve};

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

on_every_backend!(stable_keys_reach_the_handler);

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

on_every_backend!(without memory:
    concurrent_duplicates_take_effect_once,
    two_inboxes_share_a_consumer,
);
