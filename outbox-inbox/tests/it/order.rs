//! Orders of messages.

use std::time::Duration;

use outbox_core::retry::Backoff;
use outbox_inbox::{InboxConfig, Router};
use outbox_testing::MemoryBroker;

use crate::noting;
use crate::on_every_backend;
use crate::orders::{Orders, Rule, lines, numbered, prepare, put};
use crate::runtime::{finish, spawn};
use crate::support::{TestDb, quick};

const BLOCKED: u64 = 1;

noting!(post, consumer = "ledger");

async fn block_an_aggregate(test: &TestDb, broker: &MemoryBroker, config: InboxConfig, last: i64) {
    let orders = Orders::default();
    orders.rule(BLOCKED, Rule::Fail);
    let inbox = test
        .inbox(broker, Router::new().handler::<post>())
        .with_config(config.attempts_max(1_000_000))
        .with_state(orders.clone());
    let running = spawn(inbox);
    orders
        .until("the other orders", |seen| {
            let failed = seen.runs_of(BLOCKED);
            seen.runs.len() >= failed + 20 && failed > 2
        })
        .await;
    assert!(lines(test, "ledger", BLOCKED).await.is_empty());
    orders.rule(BLOCKED, None);
    finish(broker, "ledger", running).await;
    let all: Vec<i64> = (1..=last).collect();
    assert_eq!(lines(test, "ledger", BLOCKED).await, all);
}

async fn nothing_of_an_aggregate_overtakes_a_failed_message(test: TestDb) {
    prepare(&test).await;
    let broker = MemoryBroker::new();
    for line in 1..=10 {
        for order_id in [BLOCKED, 2, 3] {
            put(&broker, &numbered(order_id, line)).await;
        }
    }
    block_an_aggregate(&test, &broker, quick(), 10).await;
    let all: Vec<i64> = (1..=10).collect();
    for order_id in [2, 3] {
        assert_eq!(lines(&test, "ledger", order_id).await, all, "order {order_id}");
    }
    assert_eq!(
        broker.deliveries("ledger"),
        30,
        "a failed message waits here, not at the broker"
    );
}

async fn a_blocked_aggregate_does_not_fill_the_memory(test: TestDb) {
    prepare(&test).await;
    let broker = MemoryBroker::new();
    for line in 1..=40 {
        put(&broker, &numbered(BLOCKED, line)).await;
    }
    for order_id in 2..22 {
        put(&broker, &numbered(order_id, 1)).await;
    }
    let config = quick()
        .concurrency(2)
        .in_flight_max(8)
        .blocked_max(8)
        .backoff(Backoff {
            min: Duration::from_millis(20),
            max: Duration::from_millis(50),
        });
    block_an_aggregate(&test, &broker, config, 40).await;
}

on_every_backend!(
    nothing_of_an_aggregate_overtakes_a_failed_message,
    a_blocked_aggregate_does_not_fill_the_memory,
);
