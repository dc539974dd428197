//! A stop returns every unhandled message to the broker, in order.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures_util::FutureExt as _;
use outbox_core::{
    ConsumerSpec, Delivery as _, DomainEvent as _, Incoming, Publisher as _, Subscriber as _,
    Subscription as _,
};
use outbox_inbox::{Event, HandlerError, HandlerState, Router, idempotent_handler};
use outbox_testing::{MemoryBroker, MemorySubscription};
use sea_orm::TransactionTrait as _;

use crate::noting;
use crate::orders::{Orders, Rule, prepare};
use crate::runtime::{finish, spawn, stop, until_delivered, within};
use crate::support::{
    Backend, OrderPlaced, SOON, Script, Step, TestDb, book, message, placed, publish, slow,
};

fn event(order_id: u64, line: u32) -> OrderPlaced {
    OrderPlaced {
        line,
        ..placed(order_id)
    }
}

async fn onlooker(broker: &MemoryBroker) -> MemorySubscription {
    let spec = ConsumerSpec {
        name: "books".to_owned(),
        events: vec![&OrderPlaced::DESCRIPTORS[0]],
        ack_wait: SOON * 4,
        whole_aggregates: false,
        siblings: Vec::new(),
        in_flight_max: 1_000,
        prefetch: 0,
        start_at: outbox_core::StartAt::Beginning,
    };
    broker.subscriber().subscribe(&spec).await.unwrap()
}

fn read(incoming: &Incoming) -> (u64, u32) {
    let event: OrderPlaced = serde_json::from_slice(&incoming.payload).unwrap();
    (event.order_id, event.line)
}

async fn next(subscription: &mut MemorySubscription) -> (u64, u32) {
    let delivery = within(subscription.next()).await.unwrap();
    read(delivery.incoming())
}

#[tokio::test]
async fn messages_return_after_running_messages_of_their_aggregate() {
    let test = TestDb::open(Backend::SqliteMemory, "stop_order").await.unwrap();
    let broker = MemoryBroker::new().with_prefetch();
    for (order, line) in [(1, 0), (1, 1), (2, 0), (1, 2), (2, 1)] {
        publish(&broker, &event(order, line)).await;
    }
    let script = Script::new([Step::Gate], Step::Ok);
    let inbox = test
        .inbox(&broker, Router::new().handler::<book>())
        .with_config(slow().concurrency(1).in_flight_max(3))
        .with_state(script.clone());
    let (shutdown, run) = spawn(inbox);
    script.started().await;
    shutdown.cancel();
    let mut other = onlooker(&broker).await;
    assert_eq!(next(&mut other).await, (2, 0));
    assert_eq!(next(&mut other).await, (2, 1));
    assert!(
        other.next().now_or_never().is_none(),
        "the first of order 1 still runs"
    );
    script.release(1);
    let report = within(run).await.unwrap();
    assert_eq!((report.handled, report.returned), (1, 4), "{report:?}");
    assert_eq!(next(&mut other).await, (1, 1));
    assert_eq!(next(&mut other).await, (1, 2));
}

#[tokio::test]
async fn memory_is_bounded_in_bytes() {
    let test = TestDb::open(Backend::SqliteMemory, "memory_bytes").await.unwrap();
    let broker = MemoryBroker::new();
    for order in 0..20 {
        let mut message = message(&event(order, 0));
        let padded = format!("{:20480}", std::str::from_utf8(&message.payload).unwrap());
        message.payload = padded.into();
        broker.publisher().publish(&message).await.unwrap();
    }
    let script = Script::new([Step::Gate], Step::Ok);
    let inbox = test
        .inbox(&broker, Router::new().handler::<book>())
        .with_config(slow().concurrency(1).buffer_bytes(64 * 1024))
        .with_state(script.clone());
    let (shutdown, run) = spawn(inbox);
    script.started().await;
    assert_eq!(broker.deliveries("books"), 4);
    script.release(1);
    assert_eq!(finish(&broker, "books", (shutdown, run)).await.handled, 20);
}

#[idempotent_handler(consumer = "books")]
async fn count_runs(
    _event: Event<OrderPlaced>,
    runs: HandlerState<Arc<AtomicU32>>,
) -> Result<(), HandlerError> {
    runs.fetch_add(1, Ordering::SeqCst);
    Ok(())
}

#[tokio::test]
async fn database_outage_does_not_delay_returns() {
    let test = TestDb::open(Backend::SqliteMemory, "stop_away").await.unwrap();
    let runs = Arc::<AtomicU32>::default();
    let broker = MemoryBroker::new().with_prefetch();
    publish(&broker, &event(1, 0)).await;
    let inbox = test
        .inbox(&broker, Router::new().handler::<count_runs>())
        .with_config(slow().shutdown_timeout(Duration::from_millis(50)))
        .with_state(runs.clone());
    let (shutdown, run) = spawn(inbox);
    within(broker.until_idle("books")).await;
    let only_connection = test.db.begin().await.unwrap();
    let lines = [(2, 0), (2, 1), (3, 0), (4, 0)];
    for (order, line) in lines {
        publish(&broker, &event(order, line)).await;
    }
    until_delivered(&broker, "books", 5).await;
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    let report = stop((shutdown, run)).await;
    assert_eq!(report.handled, 1, "{report:?}");
    let mut other = onlooker(&broker).await;
    for expected in lines {
        assert_eq!(next(&mut other).await, expected);
    }
    only_connection.rollback().await.unwrap();
    test.db.begin().await.unwrap().rollback().await.unwrap();
    assert_eq!(runs.load(Ordering::SeqCst), 1);
}

noting!(lose_the_connection, consumer = "books", order = none);

/// Before the message returns to the broker, the inbox must subtract the attempt from the stored
/// count. The database does not answer.
#[tokio::test]
async fn shutdown_waits_for_returning_messages() {
    let test = TestDb::open(Backend::SqliteMemory, "stop_way_back")
        .await
        .unwrap();
    prepare(&test).await;
    let (broker, orders) = (MemoryBroker::new(), Orders::default());
    orders.rule(1, Rule::Fail);
    publish(&broker, &event(1, 0)).await;
    let inbox = test
        .inbox(&broker, Router::new().handler::<lose_the_connection>())
        .with_config(
            slow()
                .shutdown_timeout(Duration::from_millis(50))
                .attempts_max(1_000_000),
        )
        .with_state(orders.clone());
    let (shutdown, run) = spawn(inbox);
    orders.until("a failure", |seen| !seen.runs.is_empty()).await;
    orders.rule(1, Rule::Lose);
    let failed = orders.seen().runs.len();
    orders
        .until("the attempt that was counted", |seen| seen.runs.len() > failed)
        .await;
    let db = test.db.clone();
    let next_connection = tokio::spawn(async move { db.begin().await.unwrap() });
    tokio::time::sleep(Duration::from_millis(50)).await;
    orders.rule(1, None);
    let only_connection = within(next_connection).await.unwrap();
    tokio::time::sleep(Duration::from_millis(50)).await;
    stop((shutdown, run)).await;
    let mut other = onlooker(&broker).await;
    let delivery = tokio::time::timeout(Duration::from_secs(1), other.next()).await;
    assert_eq!(
        read(delivery.expect("it is with the broker").unwrap().incoming()),
        (1, 0)
    );
    only_connection.rollback().await.unwrap();
}
