//! Deliveries by order, with several processes, and with a silent broker.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use outbox_core::retry::Backoff;
use outbox_core::{ConsumerSpec, DomainEvent as _, Subscriber, SubscriberError, Subscription};
use outbox_inbox::{Handler, Inbox, InboxConfig, Router};
use outbox_testing::{MemoryBroker, MemoryDelivery, MemorySubscriber, MemorySubscription, eventually};
use sea_orm::DatabaseConnection;

use crate::noting;
use crate::on_every_backend;
use crate::orders::{Orders, Rule, lines, numbered, prepare, put};
use crate::runtime::{finish, spawn, stop, within};
use crate::support::{
    Backend, OrderPlaced, SOON, Script, TestDb, book, only_letter, placed, publish, quick, slow,
    with_ack_wait,
};

noting!(note_in_any_order, consumer = "unordered", order = none);

noting!(note_strictly, consumer = "strict", order = strict);

noting!(note_in_order, consumer = "ordered");

noting!(note_by_number, consumer = "numbered", strategy = sequence);

noting!(
    note_patiently,
    consumer = "patient",
    strategy = sequence(gap = "1h")
);

fn inbox<H: Handler>(
    db: DatabaseConnection,
    broker: &MemoryBroker,
    orders: &Orders,
    config: InboxConfig,
) -> Inbox<MemorySubscriber> {
    Inbox::new(db, broker.subscriber())
        .with_router(Router::new().handler::<H>())
        .with_config(config)
        .with_state(orders.clone())
}

fn stubborn(config: InboxConfig) -> InboxConfig {
    config.attempts_max(1_000_000)
}

async fn without_order_a_failed_message_blocks_no_others(test: TestDb) {
    prepare(&test).await;
    let (broker, orders) = (MemoryBroker::new(), Orders::default());
    orders.line_rule((1, 1), Rule::Fail);
    for line in 1..=5 {
        put(&broker, &numbered(1, line)).await;
    }
    let inbox = inbox::<note_in_any_order>(test.db.clone(), &broker, &orders, stubborn(slow()));
    let (shutdown, run) = spawn(inbox);
    eventually("the other lines of the order", async || {
        lines(&test, "unordered", 1).await.len() == 4
    })
    .await;
    orders
        .until("the first line fails again", |state| {
            state.runs.iter().filter(|run| **run == (1, 1)).count() > 2
        })
        .await;
    assert!(broker.deliveries("unordered") > 6);
    orders.line_rule((1, 1), None);
    let report = finish(&broker, "unordered", (shutdown, run)).await;
    assert_eq!((report.handled, report.dead_letters), (5, 0), "{report:?}");
    let lines = lines(&test, "unordered", 1).await;
    assert_eq!((lines.len(), lines.last()), (5, Some(&1)));
}

async fn strict_order_runs_singly_and_a_failure_blocks_all(test: TestDb) {
    prepare(&test).await;
    let (broker, orders) = (MemoryBroker::new(), Orders::default());
    let stream = [(1, 1), (2, 1), (1, 2), (3, 1), (2, 2), (3, 2)];
    for (order_id, line) in stream {
        put(&broker, &numbered(order_id, line)).await;
    }
    orders.line_rule((1, 1), Rule::Wait);
    orders.line_rule((2, 1), Rule::Fail);
    let running: Vec<_> = [test.db.clone(), test.connect_again().await]
        .into_iter()
        .map(|db| spawn(inbox::<note_strictly>(db, &broker, &orders, stubborn(slow()))))
        .collect();
    orders
        .until("the first message", |state| !state.runs.is_empty())
        .await;
    assert_eq!(broker.deliveries("strict"), 1);
    orders.line_rule((1, 1), None);
    orders
        .until("the second message fails again", |state| state.runs.len() > 4)
        .await;
    assert_eq!(broker.deliveries("strict"), 2, "it waits where it failed");
    orders.line_rule((2, 1), None);
    within(broker.until_idle("strict")).await;
    let mut handled = 0;
    for (shutdown, run) in running {
        shutdown.cancel();
        handled += within(run).await.unwrap().handled;
    }
    assert_eq!(handled, 6);
    let mut runs = orders.seen().runs;
    runs.dedup();
    assert_eq!(runs, stream);
    assert_eq!(broker.deliveries("strict"), 6);
}

async fn blocked_messages_are_not_delivered_again(test: TestDb) {
    prepare(&test).await;
    let (broker, orders) = (MemoryBroker::new(), Orders::default());
    put(&broker, &numbered(1, 1)).await;
    put(&broker, &numbered(1, 2)).await;
    orders.line_rule((1, 1), Rule::Fail);
    // The retry delay is at least half of 26 s, which is longer than `ack_wait`.
    let delay = Duration::from_secs(26);
    let config = with_ack_wait(12).backoff(Backoff {
        min: delay,
        max: delay,
    });
    let (shutdown, run) = spawn(inbox::<note_in_order>(test.db.clone(), &broker, &orders, config));
    orders
        .until("the first attempt", |state| !state.runs.is_empty())
        .await;
    orders.line_rule((1, 1), None);
    tokio::time::timeout(SOON * 2, broker.until_idle("ordered"))
        .await
        .expect("the second attempt");
    let report = stop((shutdown, run)).await;
    assert_eq!((report.handled, report.failed), (2, 1), "{report:?}");
    assert_eq!(broker.deliveries("ordered"), 2);
    assert_eq!(lines(&test, "ordered", 1).await, [1, 2]);
}

async fn shutdown_returns_blocked_and_waiting_messages(test: TestDb) {
    prepare(&test).await;
    let (broker, orders) = (MemoryBroker::new(), Orders::default());
    for line in 1..=5 {
        put(&broker, &numbered(1, line)).await;
    }
    orders.rule(1, Rule::Fail);
    let hour = Duration::from_secs(3600);
    let config = slow().backoff(Backoff { min: hour, max: hour });
    let first = inbox::<note_in_order>(test.db.clone(), &broker, &orders, config.clone());
    let (shutdown, run) = spawn(first);
    eventually("a failure that is written down", async || {
        test.int("SELECT count(*) FROM inbox_messages WHERE attempts = 1")
            .await
            == 1
            && broker.deliveries("ordered") == 5
    })
    .await;
    let report = stop((shutdown, run)).await;
    assert_eq!((report.returned, report.handled), (5, 0), "{report:?}");
    orders.rule(1, None);
    let second = inbox::<note_in_order>(test.db.clone(), &broker, &orders, config);
    let report = within(second.drain()).await.unwrap();
    assert_eq!((report.handled, report.received), (5, 5), "{report:?}");
    assert_eq!(lines(&test, "ordered", 1).await, [1, 2, 3, 4, 5]);
}

/// Two processes often share the messages of one aggregate. The test first waits until both
/// processes have received messages of another aggregate.
async fn numbers_are_kept_in_order_across_processes(test: TestDb) {
    prepare(&test).await;
    let broker = MemoryBroker::new();
    let delay = Duration::from_millis(100);
    let config = stubborn(with_ack_wait(1))
        .concurrency(1)
        .in_flight_max(1)
        .backoff(Backoff {
            min: delay,
            max: delay,
        });
    let both = [Orders::default(), Orders::default()];
    let mut running = Vec::new();
    for (orders, db) in both.iter().zip([test.db.clone(), test.connect_again().await]) {
        orders.line_rule((1, 2), Rule::Fail);
        running.push(spawn(inbox::<note_by_number>(
            db,
            &broker,
            orders,
            config.clone(),
        )));
    }
    let mut warm_ups = 0;
    eventually("both processes take part", async || {
        for line in warm_ups + 1..=warm_ups + 4 {
            put(&broker, &numbered(2, line)).await;
        }
        warm_ups += 4;
        both.iter().all(|orders| !orders.seen().runs.is_empty())
    })
    .await;
    within(broker.until_idle("numbered")).await;
    let before = broker.deliveries("numbered");
    for line in 1..=8 {
        put(&broker, &numbered(1, line)).await;
    }
    let failures = || {
        let runs = both.iter().flat_map(|orders| orders.seen().runs);
        runs.filter(|run| *run == (1, 2)).count()
    };
    eventually("many failures", async || {
        failures() > 40 && broker.deliveries("numbered") >= before + 3
    })
    .await;
    assert_eq!(lines(&test, "numbered", 1).await, [1]);
    for orders in &both {
        orders.line_rule((1, 2), None);
    }
    within(broker.until_idle("numbered")).await;
    for (shutdown, run) in running {
        assert_eq!(stop((shutdown, run)).await.dead_letters, 0);
    }
    assert_eq!(lines(&test, "numbered", 1).await, [1, 2, 3, 4, 5, 6, 7, 8]);
    let warmed_up: Vec<i64> = (1..=i64::from(warm_ups)).collect();
    assert_eq!(lines(&test, "numbered", 2).await, warmed_up);
}

async fn message_lost_by_another_process_is_not_overtaken(test: TestDb) {
    prepare(&test).await;
    let (broker, orders) = (MemoryBroker::new(), Orders::default());
    put(&broker, &numbered(1, 1)).await;
    let spec = ConsumerSpec {
        name: "patient".to_owned(),
        events: OrderPlaced::DESCRIPTORS.iter().collect(),
        siblings: Vec::new(),
        ack_wait: Duration::from_secs(2),
        whole_aggregates: true,
        in_flight_max: 10,
        prefetch: 10,
        start_at: outbox_core::StartAt::Beginning,
    };
    let mut subscription = broker.subscriber().subscribe(&spec).await.unwrap();
    drop(subscription.next().await.unwrap());
    drop(subscription);
    for line in 2..=4 {
        put(&broker, &numbered(1, line)).await;
    }
    let inbox = inbox::<note_patiently>(test.db.clone(), &broker, &orders, quick());
    let report = within(inbox.drain()).await.unwrap();
    assert_eq!((report.handled, report.dead_letters), (4, 0), "{report:?}");
    assert_eq!(lines(&test, "patient", 1).await, [1, 2, 3, 4]);
}

async fn permanent_gap_is_accepted(test: TestDb) {
    prepare(&test).await;
    let (broker, orders) = (MemoryBroker::new(), Orders::default());
    for line in [1, 3, 4] {
        put(&broker, &numbered(1, line)).await;
    }
    let inbox = inbox::<note_by_number>(test.db.clone(), &broker, &orders, with_ack_wait(2));
    let report = within(inbox.drain()).await.unwrap();
    assert_eq!((report.handled, report.dead_letters), (3, 0), "{report:?}");
    assert_eq!(lines(&test, "numbered", 1).await, [1, 3, 4]);
    let late = numbered(1, 2);
    put(&broker, &late).await;
    let report = within(inbox.drain()).await.unwrap();
    assert_eq!((report.handled, report.dead_letters), (0, 1), "{report:?}");
    let letter = only_letter(&test, "numbered").await;
    assert_eq!(letter.event_id, Some(late.event_id));
    assert!(letter.error.contains("gap"), "{}", letter.error);
    assert_eq!(lines(&test, "numbered", 1).await, [1, 3, 4]);
}

async fn a_slow_process_leaves_no_gap(test: TestDb) {
    prepare(&test).await;
    let (broker, orders) = (MemoryBroker::new(), Orders::default());
    for line in 1..=5 {
        orders.line_rule((1, line), Rule::Wait);
        put(&broker, &numbered(1, line)).await;
    }
    let config = quick()
        .ack_wait(Duration::from_secs(2))
        .handler_timeout(Duration::from_millis(1900))
        .concurrency(1)
        .in_flight_max(5);
    let slow = inbox::<note_by_number>(test.db.clone(), &broker, &orders, config.clone());
    let slow = spawn(slow);
    eventually("five deliveries", async || broker.deliveries("numbered") == 5).await;
    put(&broker, &numbered(1, 6)).await;
    let other = inbox::<note_by_number>(test.connect_again().await, &broker, &orders, config);
    let other = spawn(other);
    for line in 1..=5 {
        orders
            .until("the next line", |state| state.runs.contains(&(1, line)))
            .await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        orders.line_rule((1, line), None);
    }
    within(broker.until_idle("numbered")).await;
    for (shutdown, run) in [slow, other] {
        assert_eq!(stop((shutdown, run)).await.dead_letters, 0);
    }
    assert_eq!(lines(&test, "numbered", 1).await, [1, 2, 3, 4, 5, 6]);
}

on_every_backend!(
    without_order_a_failed_message_blocks_no_others,
    shutdown_returns_blocked_and_waiting_messages,
    message_lost_by_another_process_is_not_overtaken,
    permanent_gap_is_accepted,
);
on_every_backend!(servers only: a_slow_process_leaves_no_gap);
on_every_backend!(without memory:
    strict_order_runs_singly_and_a_failure_blocks_all,
    numbers_are_kept_in_order_across_processes,
);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blocked_messages_are_kept_alive() {
    let test = TestDb::open(Backend::SqliteMemory, "held").await.unwrap();
    blocked_messages_are_not_delivered_again(test).await;
}

#[derive(Debug)]
struct Silent {
    subscriber: MemorySubscriber,
    subscriptions: Arc<AtomicU32>,
    stopped: Arc<AtomicU32>,
}

struct SilentSubscription {
    subscription: MemorySubscription,
    silent: bool,
    stopped: Arc<AtomicU32>,
    fetched: Vec<MemoryDelivery>,
}

impl Subscriber for Silent {
    type Subscription = SilentSubscription;

    async fn subscribe(&self, consumer: &ConsumerSpec) -> Result<SilentSubscription, SubscriberError> {
        let silent = self.subscriptions.fetch_add(1, Ordering::SeqCst) == 0;
        if !silent {
            assert_eq!(
                self.stopped.load(Ordering::SeqCst),
                1,
                "the first is stopped before"
            );
            tokio::time::resume();
        }
        Ok(SilentSubscription {
            subscription: self.subscriber.subscribe(consumer).await?,
            silent,
            stopped: self.stopped.clone(),
            fetched: Vec::new(),
        })
    }

    outbox_testing::__forward!(double => double.subscriber; facts, standing, belongs);
}

impl Subscription for SilentSubscription {
    type Delivery = MemoryDelivery;

    async fn next(&mut self) -> Result<MemoryDelivery, SubscriberError> {
        if self.silent {
            self.fetched.push(self.subscription.next().await?);
            std::future::pending::<()>().await;
        }
        self.subscription.next().await
    }

    async fn stop(&mut self) -> Vec<MemoryDelivery> {
        self.stopped.fetch_add(1, Ordering::SeqCst);
        let mut fetched = std::mem::take(&mut self.fetched);
        fetched.extend(self.subscription.stop().await);
        fetched
    }

    outbox_testing::__forward!(double => double.subscription; backlog, flush);
}

#[tokio::test]
async fn silent_subscription_is_reopened() {
    let test = TestDb::open(Backend::Sqlite, "silent").await.unwrap();
    let (broker, script) = (MemoryBroker::new(), Script::ok());
    publish(&broker, &placed(1)).await;
    let subscriptions = Arc::new(AtomicU32::new(0));
    let inbox = Inbox::new(
        test.db.clone(),
        Silent {
            subscriber: broker.subscriber(),
            subscriptions: subscriptions.clone(),
            stopped: Arc::default(),
        },
    )
    .with_router(Router::new().handler::<book>())
    .with_config(slow())
    .with_state(script.clone());
    let (shutdown, run) = spawn(inbox);
    within(async {
        while subscriptions.load(Ordering::SeqCst) == 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    tokio::time::pause();
    tokio::time::timeout(SOON * 10, broker.until_idle("books"))
        .await
        .expect("the message is handled");
    assert_eq!(subscriptions.load(Ordering::SeqCst), 2);
    assert_eq!(stop((shutdown, run)).await.handled, 1);
}
