//! Failing messages take only a bounded share of slots and memory.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use outbox_core::retry::Backoff;
use outbox_inbox::{Event, HandlerError, HandlerState, Inbox, InboxConfig, Router, Tx, idempotent_handler};
use outbox_testing::MemoryBroker;
use tokio::sync::{Notify, RwLock};

use crate::noting;
use crate::on_every_backend;
use crate::orders::{Orders, lines, numbered, prepare, put};
use crate::runtime::{finish, spawn, stop, within};
use crate::support::{Backend, OrderBooked, OrderPlaced, SOON, TestDb, publish, quick};

const BAD: u64 = 1_000_000;

#[derive(Debug, Clone, Default)]
struct Runs(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    good: AtomicU32,
    bad: AtomicU32,
    bad_before: Mutex<Vec<u32>>,
    gate: RwLock<()>,
    failed: Mutex<HashSet<u64>>,
    lines: Mutex<HashMap<u64, Vec<u32>>>,
    once: Mutex<Vec<(u64, u32)>>,
    changed: Notify,
}

impl Runs {
    fn good(&self) -> u32 {
        self.0.good.load(Ordering::SeqCst)
    }

    fn bad(&self) -> u32 {
        self.0.bad.load(Ordering::SeqCst)
    }

    async fn until(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        self.until_at_last(what, SOON, holds).await;
    }

    async fn until_at_last(&self, what: &str, bound: Duration, holds: impl Fn(&Self) -> bool) {
        let wait = async {
            loop {
                let changed = self.0.changed.notified();
                if holds(self) {
                    return;
                }
                changed.await;
            }
        };
        if tokio::time::timeout(bound, wait).await.is_err() {
            panic!("{what} did not happen: {} good, {} bad", self.good(), self.bad());
        }
    }
}

#[idempotent_handler(consumer = "isolated")]
async fn note(event: Event<OrderPlaced>, _tx: Tx<'_>, runs: HandlerState<Runs>) -> Result<(), HandlerError> {
    let counts = &runs.0.0;
    let fails_once = {
        let mut once = counts.once.lock().unwrap();
        let found = once.iter().position(|line| *line == (event.order_id, event.line));
        found.map(|index| once.swap_remove(index)).is_some()
    };
    let fails = event.order_id >= BAD || fails_once;
    if fails {
        counts.bad.fetch_add(1, Ordering::SeqCst);
        counts.failed.lock().unwrap().insert(event.order_id);
    } else {
        drop(counts.gate.read().await);
        counts.bad_before.lock().unwrap().push(runs.0.bad());
        counts.good.fetch_add(1, Ordering::SeqCst);
        let mut lines = counts.lines.lock().unwrap();
        lines.entry(event.order_id).or_default().push(event.line);
    }
    counts.changed.notify_waiters();
    if fails {
        return Err(HandlerError::retry("out of stock"));
    }
    Ok(())
}

#[idempotent_handler(consumer = "mixed")]
async fn wait_for_ever(_event: Event<OrderPlaced>, runs: HandlerState<Runs>) -> Result<(), HandlerError> {
    runs.0.0.bad.fetch_add(1, Ordering::SeqCst);
    runs.0.0.changed.notify_waiters();
    std::future::pending().await
}

#[idempotent_handler(consumer = "mixed")]
async fn note_booked(_event: Event<OrderBooked>, runs: HandlerState<Runs>) -> Result<(), HandlerError> {
    runs.0.0.good.fetch_add(1, Ordering::SeqCst);
    runs.0.0.changed.notify_waiters();
    Ok(())
}

noting!(note_by_number, consumer = "relayed", strategy = sequence);

fn stubborn(min: Duration, max: Duration) -> InboxConfig {
    quick().attempts_max(1_000_000).backoff(Backoff { min, max })
}

async fn placed(broker: &MemoryBroker, orders: impl IntoIterator<Item = u64>) {
    for order_id in orders {
        publish(broker, &OrderPlaced { order_id, line: 0 }).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_failing_aggregates_cost_others_a_bounded_share() {
    let Some(test) = TestDb::open(Backend::Postgres, "ten_thousand").await else {
        return;
    };
    let (broker, runs) = (MemoryBroker::new(), Runs::default());
    placed(&broker, BAD..BAD + 10_000).await;
    let config = stubborn(Duration::from_millis(1), Duration::from_millis(20))
        .ack_wait(SOON * 4)
        .handler_timeout(SOON);
    let inbox = test
        .inbox(&broker, Router::new().handler::<note>())
        .with_config(config)
        .with_state(runs.clone());
    let (shutdown, run) = spawn(inbox);
    let all_failed = |runs: &Runs| runs.0.failed.lock().unwrap().len() == 10_000;
    runs.until_at_last("failures of all", 20 * SOON, all_failed).await;
    let gate = runs.0.gate.write().await;
    placed(&broker, 0..1_000).await;
    drop(gate);
    runs.until_at_last("the good orders", 4 * SOON, |runs| runs.good() == 1_000)
        .await;
    let bad_before = runs.0.bad_before.lock().unwrap().clone();
    let bad = bad_before[900] - bad_before[0];
    assert!(bad < 450, "{bad} failing runs beside 900 others");
    stop((shutdown, run)).await;
}

async fn timed_out_handler_does_not_stop_others(test: TestDb) {
    let (broker, runs) = (MemoryBroker::new(), Runs::default());
    placed(&broker, BAD..BAD + 200).await;
    for order_id in 0..50 {
        publish(&broker, &OrderBooked { order_id }).await;
    }
    let config = stubborn(Duration::from_millis(1), Duration::from_millis(20))
        .concurrency(4)
        .in_flight_max(16)
        .blocked_max(16)
        .handler_timeout(Duration::from_millis(200));
    let router = Router::new().handler::<wait_for_ever>().handler::<note_booked>();
    let inbox = test
        .inbox(&broker, router)
        .with_config(config)
        .with_state(runs.clone());
    let (shutdown, run) = spawn(inbox);
    runs.until("the good orders", |runs| runs.good() == 50).await;
    stop((shutdown, run)).await;
}

async fn processes_stay_within_a_bounded_distance(test: TestDb) {
    prepare(&test).await;
    let (broker, orders) = (MemoryBroker::new(), Orders::default());
    for line in 1..=300 {
        put(&broker, &numbered(1, line)).await;
    }
    let config = quick().concurrency(1).in_flight_max(16).blocked_max(16);
    let running: Vec<_> = [test.db.clone(), test.connect_again().await]
        .into_iter()
        .map(|db| {
            let inbox = Inbox::new(db, broker.subscriber())
                .with_router(Router::new().handler::<note_by_number>())
                .with_config(config.clone())
                .with_state(orders.clone());
            spawn(inbox)
        })
        .collect();
    within(broker.until_idle("relayed")).await;
    for (shutdown, run) in running {
        assert_eq!(stop((shutdown, run)).await.dead_letters, 0);
    }
    let all: Vec<i64> = (1..=300).collect();
    assert_eq!(lines(&test, "relayed", 1).await, all);
    let deliveries = broker.deliveries("relayed");
    assert!(deliveries < 1_000, "{deliveries} deliveries of 300 messages");
}

on_every_backend!(timed_out_handler_does_not_stop_others);
on_every_backend!(without memory: processes_stay_within_a_bounded_distance);

async fn hot_aggregates_go_on_at_once_after_a_failure(test: &TestDb, config: InboxConfig, orders: u64) {
    const LINES: u32 = 600;
    let (broker, runs) = (MemoryBroker::new(), Runs::default());
    for line in 0..LINES {
        for order_id in 0..orders {
            publish(&broker, &OrderPlaced { order_id, line }).await;
        }
    }
    let fails = (0..orders).flat_map(|order_id| [3, 100, 350].map(|line| (order_id, line)));
    runs.0.once.lock().unwrap().extend(fails);
    let inbox = test
        .inbox(&broker, Router::new().handler::<note>())
        .with_config(config)
        .with_state(runs.clone());
    let (shutdown, run) = spawn(inbox);
    let report = finish(&broker, "isolated", (shutdown, run)).await;
    assert_eq!(report.handled, orders * u64::from(LINES), "{report:?}");
    for lines in runs.0.lines.lock().unwrap().values() {
        assert!(lines.is_sorted(), "{lines:?}");
    }
}

fn second() -> InboxConfig {
    stubborn(Duration::from_secs(1), Duration::from_secs(1))
        .ack_wait(SOON * 4)
        .handler_timeout(SOON)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hot_aggregates_go_on_after_a_failure() {
    for config in [second(), second().in_flight_max(8).blocked_max(100)] {
        let test = TestDb::open(Backend::SqliteMemory, "hot").await.unwrap();
        hot_aggregates_go_on_at_once_after_a_failure(&test, config, 2).await;
    }
}
