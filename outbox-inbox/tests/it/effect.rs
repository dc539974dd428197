//! Guarantee G4: one effect per consumer and message.

use outbox_inbox::{Router, StableKey};
use outbox_testing::MemoryBroker;

use crate::on_every_backend;
use crate::support::{Script, TestDb, book, message, placed, publish, quick, reserve};

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
    two_inboxes_share_a_consumer,
);
