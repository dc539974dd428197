//! Limits of single handlers.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use outbox_core::retry::Backoff;
use outbox_inbox::testing::dead_letters;
use outbox_inbox::{
    Event, HandlerError, HandlerLimits, HandlerState, InboxConfig, Router, Tx, idempotent_handler,
};
use outbox_testing::{MemoryBroker, eventually};
use tokio::sync::Semaphore;

use crate::on_every_backend;
use crate::orders::{Orders, Rule};
use crate::runtime::{finish, spawn, stop, within};
use crate::support::{Backend, OrderBooked, OrderPlaced, TestDb, placed, publish, slow};

#[derive(Debug, Clone)]
struct Carrier(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    asked: AtomicUsize,
    running: AtomicUsize,
    /// The largest number of requests at a time.
    most: AtomicUsize,
    answers: Semaphore,
    booked: AtomicUsize,
}

impl Carrier {
    fn new() -> Self {
        Self(Arc::new(Inner {
            asked: AtomicUsize::new(0),
            running: AtomicUsize::new(0),
            most: AtomicUsize::new(0),
            answers: Semaphore::new(0),
            booked: AtomicUsize::new(0),
        }))
    }

    async fn ask(&self) -> Result<(), HandlerError> {
        let Inner {
            asked,
            running,
            most,
            answers,
            ..
        } = &*self.0;
        asked.fetch_add(1, Ordering::SeqCst);
        most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        let answer = answers.acquire().await;
        running.fetch_sub(1, Ordering::SeqCst);
        answer?.forget();
        Ok(())
    }

    fn answer_all(&self) {
        self.0.answers.add_permits(10_000);
    }

    fn asked(&self) -> usize {
        self.0.asked.load(Ordering::SeqCst)
    }

    fn booked(&self) -> usize {
        self.0.booked.load(Ordering::SeqCst)
    }
}

#[idempotent_handler(consumer = "carrier", strategy = natural)]
async fn ask_carrier(_event: Event<OrderPlaced>, carrier: HandlerState<Carrier>) -> Result<(), HandlerError> {
    carrier.ask().await
}

#[idempotent_handler(consumer = "carrier", strategy = natural)]
async fn book(_event: Event<OrderBooked>, carrier: HandlerState<Carrier>) -> Result<(), HandlerError> {
    carrier.0.0.booked.fetch_add(1, Ordering::SeqCst);
    Ok(())
}

/// The slow handler has far more messages than memory has room for.
async fn do_not_stop_others(test: &TestDb, config: InboxConfig, of_carrier: u64) {
    let (broker, carrier) = (MemoryBroker::new(), Carrier::new());
    for order_id in 0..of_carrier {
        publish(&broker, &placed(order_id)).await;
    }
    for order_id in 0..50 {
        let order_id = of_carrier + order_id;
        publish(&broker, &OrderBooked { order_id }).await;
    }
    let router = Router::new().handler::<ask_carrier>().handler::<book>();
    let inbox = test
        .inbox(&broker, router)
        .with_config(config)
        .with_limits::<ask_carrier>(HandlerLimits::new().concurrency(2))
        .with_state(carrier.clone());
    let (shutdown, run) = spawn(inbox);
    eventually("the messages of the other handler", async || {
        carrier.booked() == 50 && carrier.asked() == 2
    })
    .await;
    carrier.answer_all();
    let report = finish(&broker, "carrier", (shutdown, run)).await;
    assert_eq!(
        (report.handled, report.failed, report.dead_letters),
        (of_carrier + 50, 0, 0),
        "{report:?}"
    );
    assert_eq!(carrier.0.most.load(Ordering::SeqCst), 2);
    let attempts = "SELECT count(*) FROM inbox_messages WHERE attempts > 1";
    assert_eq!(test.int(attempts).await, 0);
}

async fn a_limited_handler_does_not_stop_the_others_of_its_consumer(test: TestDb) {
    do_not_stop_others(&test, slow().concurrency(4), 10).await;
    do_not_stop_others(
        &test,
        slow().concurrency(4).in_flight_max(16).blocked_max(30),
        120,
    )
    .await;
}

/// Nothing is lost, and the next process begins with the first.
async fn a_stop_gives_back_what_waits_for_a_limit(test: TestDb) {
    let (broker, carrier) = (MemoryBroker::new(), Carrier::new());
    for order_id in 0..10 {
        publish(&broker, &placed(order_id)).await;
    }
    let inbox = || {
        test.inbox(&broker, Router::new().handler::<ask_carrier>())
            .with_config(slow())
            .with_limits::<ask_carrier>(HandlerLimits::new().concurrency(1))
            .with_state(carrier.clone())
    };
    let (shutdown, run) = spawn(inbox());
    eventually("the first request", async || carrier.asked() == 1).await;
    shutdown.cancel();
    carrier.0.answers.add_permits(1);
    let report = within(run).await.unwrap();
    assert_eq!((report.handled, carrier.asked()), (1, 1), "{report:?}");
    carrier.answer_all();
    let report = within(inbox().drain()).await.unwrap();
    assert_eq!((report.handled, report.failed), (9, 0), "{report:?}");
    assert!(dead_letters(&test.db, "carrier").await.unwrap().is_empty());
}

async fn a_rate_is_kept_and_others_go_on(test: TestDb) {
    let (broker, carrier) = (MemoryBroker::new(), Carrier::new());
    carrier.answer_all();
    for order_id in 0..10 {
        publish(&broker, &placed(order_id)).await;
        publish(&broker, &OrderBooked { order_id }).await;
    }
    let router = Router::new().handler::<ask_carrier>().handler::<book>();
    let inbox = test
        .inbox(&broker, router)
        .with_config(slow())
        .with_limits::<ask_carrier>(HandlerLimits::new().rate(1, Duration::from_secs(3600)))
        .with_state(carrier.clone());
    let (shutdown, run) = spawn(inbox);
    // Of the same aggregate one waits for the other.
    eventually("the messages of the other handler", async || {
        carrier.asked() == 1 && carrier.booked() >= 1
    })
    .await;
    let report = stop((shutdown, run)).await;
    assert_eq!((carrier.asked(), report.failed), (1, 0), "{report:?}");
}

async fn limits_out_of_range_are_refused_at_the_start(test: TestDb) {
    let limits = [
        HandlerLimits::new().concurrency(0),
        HandlerLimits::new().rate(0, Duration::from_secs(1)),
        HandlerLimits::new().rate(1, Duration::ZERO),
    ];
    for limits in limits {
        let inbox = test
            .inbox(&MemoryBroker::new(), Router::new().handler::<ask_carrier>())
            .with_state(Carrier::new())
            .with_limits::<ask_carrier>(limits);
        let error = inbox.drain().await.unwrap_err().to_string();
        assert!(
            error.contains("limits of handler") && error.contains("ask_carrier"),
            "{error}"
        );
    }
}

#[idempotent_handler(consumer = "counting", strategy = sequence)]
async fn count_orders(_event: Event<OrderPlaced>, _tx: Tx<'_>) -> Result<(), HandlerError> {
    Ok(())
}

/// Another process would take what waits for a limit for a gap, and pass it.
async fn limits_and_waits_for_gaps_do_not_go_together(test: TestDb) {
    let inbox = test
        .inbox(&MemoryBroker::new(), Router::new().handler::<count_orders>())
        .with_limits::<count_orders>(HandlerLimits::new().concurrency(1));
    let error = inbox.drain().await.unwrap_err().to_string();
    assert!(
        error.contains("count_orders") && error.contains("takes a message that waits for a limit for a gap"),
        "{error}"
    );
}

#[idempotent_handler(consumer = "shared", strategy = natural)]
async fn ask(event: Event<OrderPlaced>, orders: HandlerState<Orders>) -> Result<(), HandlerError> {
    orders.follow(&event).await
}

/// The orders that were booked are those from 1,000 on.
#[idempotent_handler(consumer = "shared", strategy = natural)]
async fn enter(event: Event<OrderBooked>, orders: HandlerState<Orders>) -> Result<(), HandlerError> {
    let order_id = event.order_id;
    orders.follow(&OrderPlaced { order_id, line: 0 }).await
}

/// Number of runs of the orders in a range.
fn runs_in(orders: &Orders, range: std::ops::Range<u64>) -> usize {
    let runs = orders.seen().runs;
    runs.iter().filter(|(order, _)| range.contains(order)).count()
}

/// Orders 0 to 5 fail, and wait for the limit that orders 100 to 103 use up. When those end, one slot of eight goes to one that has failed, and the others to
/// messages of the other handler.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_that_failed_and_wait_for_a_limit_get_no_more_slots_than_others_that_failed() {
    let test = TestDb::open(Backend::SqliteMemory, "limited_suspects")
        .await
        .unwrap();
    let (broker, orders) = (MemoryBroker::new(), Orders::default());
    for order_id in (0..6).chain(100..104) {
        orders.rule(order_id, if order_id < 6 { Rule::Fail } else { Rule::Wait });
        publish(&broker, &placed(order_id)).await;
    }
    // The others have half of it to begin.
    let delay = Duration::from_secs(4);
    let config = slow().concurrency(8).backoff(Backoff {
        min: delay,
        max: delay,
    });
    let inbox = test
        .inbox(&broker, Router::new().handler::<ask>().handler::<enter>())
        .with_config(config)
        .with_limits::<ask>(HandlerLimits::new().concurrency(4))
        .with_state(orders.clone());
    let (shutdown, run) = spawn(inbox);
    eventually("the first runs", async || {
        runs_in(&orders, 0..6) == 6 && runs_in(&orders, 100..104) == 4
    })
    .await;
    for order_id in 0..6 {
        orders.rule(order_id, Rule::Wait);
    }
    // Longer than the failed ones wait, so that they are due while slots are free.
    tokio::time::sleep(delay + Duration::from_millis(500)).await;
    for order_id in 1_000..1_020 {
        orders.rule(order_id, Rule::Wait);
        publish(&broker, &OrderBooked { order_id }).await;
    }
    eventually("free slots are used", async || {
        runs_in(&orders, 1_000..2_000) == 4
    })
    .await;
    for order_id in 100..104 {
        orders.rule(order_id, None);
    }
    eventually("a slot for those that failed, the rest for others", async || {
        runs_in(&orders, 0..6) == 6 + 1 && runs_in(&orders, 1_000..2_000) == 7
    })
    .await;
    for order_id in (0..6).chain(1_000..1_020) {
        orders.rule(order_id, None);
    }
    let report = finish(&broker, "shared", (shutdown, run)).await;
    assert_eq!((report.handled, report.failed), (30, 6), "{report:?}");
}

/// A handler whose messages wait for its rate has one that may begin each time that a slot is free.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_that_waited_for_a_limit_take_turns_with_others() {
    let test = TestDb::open(Backend::SqliteMemory, "limited_turns")
        .await
        .unwrap();
    let (broker, orders) = (MemoryBroker::new(), Orders::default());
    for order_id in (0..10).chain(1_000..1_010) {
        orders.rule(order_id, Rule::Wait);
    }
    for order_id in 0..10 {
        publish(&broker, &placed(order_id)).await;
    }
    for order_id in 1_000..1_010 {
        publish(&broker, &OrderBooked { order_id }).await;
    }
    let every = Duration::from_millis(100);
    let inbox = test
        .inbox(&broker, Router::new().handler::<ask>().handler::<enter>())
        .with_config(slow().concurrency(2))
        .with_limits::<ask>(HandlerLimits::new().rate(1, every))
        .with_state(orders.clone());
    let (shutdown, run) = spawn(inbox);
    let begun = async |of_limited, of_other| {
        eventually("the next run", async || {
            runs_in(&orders, 0..10) == of_limited && runs_in(&orders, 1_000..1_010) == of_other
        })
        .await;
    };
    begun(1, 1).await;
    for order_id in [0, 1_000] {
        tokio::time::sleep(2 * every).await;
        orders.rule(order_id, None);
        eventually("a run", async || orders.seen().runs.len() > 2).await;
    }
    begun(2, 2).await;
    for order_id in (0..10).chain(1_000..1_010) {
        orders.rule(order_id, None);
    }
    finish(&broker, "shared", (shutdown, run)).await;
}

on_every_backend!(
    limits_and_waits_for_gaps_do_not_go_together,
    a_limited_handler_does_not_stop_the_others_of_its_consumer,
    a_stop_gives_back_what_waits_for_a_limit,
    a_rate_is_kept_and_others_go_on,
    limits_out_of_range_are_refused_at_the_start,
);
