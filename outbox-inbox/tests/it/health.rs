//! The health of an inbox while it runs, and afterwards.

use std::time::Duration;

use outbox_core::Health;
use outbox_inbox::{InboxHealthCheck, Router};
use outbox_testing::MemoryBroker;

use crate::runtime::spawn;
use crate::support::{Backend, SOON, TestDb, reserve};

async fn until(health: &InboxHealthCheck, holds: impl Fn(&Health) -> bool) {
    let wait = async {
        while !holds(&health.now()) {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    let outcome = tokio::time::timeout(SOON, wait).await;
    outcome.unwrap_or_else(|_| panic!("{}", health.now()));
}

#[tokio::test]
async fn ended_subscription_is_reported_until_next_opens() {
    let test = TestDb::open(Backend::SqliteMemory, "a_subscription_that_ended")
        .await
        .unwrap();
    let broker = MemoryBroker::new();
    let inbox = test.inbox(&broker, Router::new().handler::<reserve>());
    let health = inbox.health();
    let (shutdown, run) = spawn(inbox);
    until(&health, Health::is_ready).await;
    broker.delete_consumer("stock");
    until(&health, |now| {
        now.to_string().contains("consumer `stock` was deleted")
    })
    .await;
    broker.set_down(true);
    until(&health, |now| now.to_string().contains("the broker is down")).await;
    let now = health.now();
    assert!(
        now.is_alive() && !now.is_ready(),
        "a restart does not help: {now}"
    );
    broker.set_down(false);
    until(&health, Health::is_ready).await;
    shutdown.cancel();
    run.await.unwrap();
}
