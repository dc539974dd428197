//! Orders of messages.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use outbox_inbox::{Event, HandlerError, HandlerState, InboxConfig, Router, Tx, idempotent_handler};
use outbox_testing::MemoryBroker;
use sea_orm::ConnectionTrait as _;
use tokio::sync::Notify;

use crate::on_every_backend;
use crate::runtime::{spawn, stop};
use crate::support::{OrderPlaced, SOON, TestDb, publish, quick};

const BLOCKED: u64 = 1;

#[derive(Debug, Clone, Default)]
struct Ledger(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    open: AtomicBool,
    posted: Mutex<Vec<(u64, u32)>>,
    refused: Mutex<u32>,
    changed: Notify,
}

impl Ledger {
    fn posted(&self) -> Vec<(u64, u32)> {
        self.0.posted.lock().unwrap().clone()
    }

    fn lines_of(&self, order_id: u64) -> Vec<u32> {
        let posted = self.posted();
        let own = posted.iter().filter(|(order, _)| *order == order_id);
        own.map(|(_, line)| *line).collect()
    }

    fn open(&self) {
        self.0.open.store(true, Ordering::SeqCst);
    }

    async fn until(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        let wait = async {
            loop {
                let changed = self.0.changed.notified();
                if holds(self) {
                    return;
                }
                changed.await;
            }
        };
        if tokio::time::timeout(SOON, wait).await.is_err() {
            panic!("{what} did not happen: {:?}", self.posted());
        }
    }

    fn refused(&self) -> u32 {
        *self.0.refused.lock().unwrap()
    }
}

#[idempotent_handler(consumer = "ledger")]
async fn post(
    event: Event<OrderPlaced>,
    tx: Tx<'_>,
    ledger: HandlerState<Ledger>,
) -> Result<(), HandlerError> {
    let inner = &ledger.0.0;
    if event.order_id == BLOCKED && !inner.open.load(Ordering::SeqCst) {
        *inner.refused.lock().unwrap() += 1;
        inner.changed.notify_waiters();
        return Err(HandlerError::retry("the order is blocked"));
    }
    let effect = format!(
        "INSERT INTO effects (consumer, order_id, stable_key) VALUES ('ledger', {}, '{}')",
        event.order_id, event.line
    );
    tx.execute_unprepared(&effect).await?;
    inner.posted.lock().unwrap().push((event.order_id, event.line));
    inner.changed.notify_waiters();
    Ok(())
}

async fn run(
    test: &TestDb,
    broker: &MemoryBroker,
    ledger: &Ledger,
    config: InboxConfig,
    during: impl Future<Output = ()>,
) {
    let inbox = test
        .inbox(broker, Router::new().handler::<post>())
        .with_config(config)
        .with_state(ledger.clone());
    let running = spawn(inbox);
    during.await;
    tokio::time::timeout(SOON, broker.until_idle("ledger"))
        .await
        .expect("everything is handled");
    stop(running).await;
}

async fn nothing_of_an_aggregate_overtakes_a_failed_message(test: TestDb) {
    let (broker, ledger) = (MemoryBroker::new(), Ledger::default());
    for line in 0..10 {
        for order_id in [BLOCKED, 2, 3] {
            publish(&broker, &OrderPlaced { order_id, line }).await;
        }
    }
    let config = quick().attempts_max(1_000_000);
    run(&test, &broker, &ledger, config, async {
        ledger
            .until("the other orders", |ledger| {
                ledger.posted().len() == 20 && ledger.refused() > 2
            })
            .await;
        assert!(ledger.lines_of(BLOCKED).is_empty());
        ledger.open();
    })
    .await;
    for order_id in [BLOCKED, 2, 3] {
        assert_eq!(
            ledger.lines_of(order_id),
            (0..10).collect::<Vec<_>>(),
            "order {order_id}"
        );
    }
    assert_eq!(
        broker.deliveries("ledger"),
        30,
        "a failed message waits here, not at the broker"
    );
}

async fn a_blocked_aggregate_does_not_fill_the_memory(test: TestDb) {
    let (broker, ledger) = (MemoryBroker::new(), Ledger::default());
    for line in 0..40 {
        publish(
            &broker,
            &OrderPlaced {
                order_id: BLOCKED,
                line,
            },
        )
        .await;
    }
    for order_id in 2..22 {
        publish(&broker, &OrderPlaced { order_id, line: 0 }).await;
    }
    let config = quick()
        .attempts_max(1_000_000)
        .concurrency(2)
        .in_flight_max(8)
        .blocked_max(8)
        .backoff(outbox_core::retry::Backoff {
            min: Duration::from_millis(20),
            max: Duration::from_millis(50),
        });
    run(&test, &broker, &ledger, config, async {
        ledger
            .until("the other orders", |ledger| ledger.posted().len() == 20)
            .await;
        ledger.open();
    })
    .await;
    assert_eq!(ledger.lines_of(BLOCKED), (0..40).collect::<Vec<_>>());
}

on_every_backend!(
    nothing_of_an_aggregate_overtakes_a_failed_message,
    a_blocked_aggregate_does_not_fill_the_memory,
);
