//! Aggregates on a stream without their first messages.

use std::time::Duration;

use outbox_core::{
    ConsumerSpec, Delivery as _, DomainEvent as _, StartAt, Subscriber as _, Subscription as _,
};
use outbox_inbox::{Inbox, Router};
use outbox_testing::{MemoryBroker, MemorySubscriber};

use crate::noting;
use crate::on_every_backend;
use crate::orders::{Orders, Rule, lines, numbered, prepare, put};
use crate::runtime::{finish, spawn, until_delivered, within};
use crate::support::{OrderPlaced, SOON, TestDb, slow};

noting!(note, consumer = "latecomer", strategy = sequence(gap = "1h"));

fn inbox(test: &TestDb, broker: &MemoryBroker, orders: &Orders) -> Inbox<MemorySubscriber> {
    test.inbox(broker, Router::new().handler::<note>())
        .with_config(slow().concurrency(1))
        .with_state(orders.clone())
}

/// Publishes the lines 1 to `last` of each order as messages, and removes all lines except `left`
/// from the stream.
async fn put_lines(broker: &MemoryBroker, orders: u64, last: u32, left: &[u32]) {
    let mut forgotten = Vec::new();
    for line in 1..=last {
        for order_id in 0..orders {
            put(broker, &numbered(order_id, line)).await;
            if !left.contains(&line) {
                forgotten.push(broker.log().last().unwrap().stream_sequence);
            }
        }
    }
    broker.lose_stream_sequences(&forgotten.into_iter().collect(), false);
}

async fn aggregates_start_at_their_first_message_on_the_stream(test: TestDb) {
    prepare(&test).await;
    let (broker, orders) = (MemoryBroker::new(), Orders::default());
    put_lines(&broker, 20, 4, &[3, 4]).await;
    let inbox = inbox(&test, &broker, &orders);
    let report = within(inbox.drain()).await.unwrap();
    assert_eq!((report.handled, report.dead_letters), (40, 0), "{report:?}");
    for order_id in 0..20 {
        assert_eq!(
            lines(&test, "latecomer", order_id).await,
            [3, 4],
            "order {order_id}"
        );
    }
}

async fn message_waits_for_gap_after_late_start(test: TestDb) {
    prepare(&test).await;
    let (broker, orders) = (MemoryBroker::new(), Orders::default());
    put_lines(&broker, 1, 4, &[2, 4]).await;
    let (shutdown, run) = spawn(inbox(&test, &broker, &orders));
    orders.until("the beginning", |seen| seen.runs_of(0) > 0).await;
    put(&broker, &numbered(0, 3)).await;
    assert_eq!(
        finish(&broker, "latecomer", (shutdown, run)).await.dead_letters,
        0
    );
    assert_eq!(lines(&test, "latecomer", 0).await, [2, 3, 4]);
}

async fn message_waits_for_failing_predecessor(test: TestDb) {
    prepare(&test).await;
    let (broker, orders) = (MemoryBroker::new(), Orders::default());
    orders.line_rule((0, 2), Rule::Fail);
    put_lines(&broker, 1, 3, &[2, 3]).await;
    let (shutdown, run) = spawn(inbox(&test, &broker, &orders));
    orders.until("two failures", |seen| seen.runs_of(0) > 1).await;
    assert!(orders.seen().runs.iter().all(|run| *run == (0, 2)));
    orders.line_rule((0, 2), None);
    assert_eq!(
        finish(&broker, "latecomer", (shutdown, run)).await.dead_letters,
        0
    );
    assert_eq!(lines(&test, "latecomer", 0).await, [2, 3]);
}

/// Another process returns the first message of an aggregate unhandled. This process receives the
/// next message first.
async fn message_waits_for_predecessor_in_other_process(test: TestDb) {
    prepare(&test).await;
    let (broker, orders) = (MemoryBroker::new(), Orders::default());
    put_lines(&broker, 1, 3, &[2, 3]).await;
    let mut other = broker.subscriber().subscribe(&latecomer()).await.unwrap();
    let taken = other.next().await.unwrap();
    let (shutdown, run) = spawn(inbox(&test, &broker, &orders));
    until_delivered(&broker, "latecomer", 2).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(orders.seen().runs.is_empty());
    taken.retry_after(Duration::ZERO).await.unwrap();
    assert_eq!(
        finish(&broker, "latecomer", (shutdown, run)).await.dead_letters,
        0
    );
    assert_eq!(lines(&test, "latecomer", 0).await, [2, 3]);
}

fn latecomer() -> ConsumerSpec {
    ConsumerSpec {
        name: "latecomer".to_owned(),
        events: OrderPlaced::DESCRIPTORS.iter().collect(),
        ack_wait: SOON * 4,
        whole_aggregates: true,
        siblings: Vec::new(),
        in_flight_max: 100,
        prefetch: 1,
        start_at: StartAt::Beginning,
    }
}

on_every_backend!(
    aggregates_start_at_their_first_message_on_the_stream,
    message_waits_for_gap_after_late_start,
    message_waits_for_failing_predecessor,
    message_waits_for_predecessor_in_other_process,
);
