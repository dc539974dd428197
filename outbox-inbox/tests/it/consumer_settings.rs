//! Consumers of one inbox whose settings differ.

use std::time::Duration;

use outbox_inbox::testing::dead_letters;
use outbox_inbox::{Event, HandlerError, HandlerState, Inbox, InboxConfig, Router, Tx, idempotent_handler};
use outbox_testing::{MemoryBroker, eventually};

use crate::on_every_backend;
use crate::orders::{Orders, Rule};
use crate::runtime::{spawn, stop, within};
use crate::support::{OrderBooked, OrderPlaced, TestDb, book, placed, publish, reserve, slow};

#[idempotent_handler(consumer = "few", strategy = natural)]
async fn handle_few(event: Event<OrderPlaced>, orders: HandlerState<Orders>) -> Result<(), HandlerError> {
    orders.follow(&event).await
}

#[idempotent_handler(consumer = "many", strategy = natural)]
async fn handle_many(event: Event<OrderBooked>, orders: HandlerState<Orders>) -> Result<(), HandlerError> {
    let order_id = event.order_id;
    orders.follow(&OrderPlaced { order_id, line: 0 }).await
}

/// Handlers at a time, and attempts: one of the one consumer, and as the inbox has it of the other.
async fn consumers_of_one_inbox_have_settings_of_their_own(test: TestDb) {
    let (broker, orders) = (MemoryBroker::new(), Orders::default());
    for order_id in 0..4 {
        publish(&broker, &placed(order_id)).await;
        publish(
            &broker,
            &OrderBooked {
                order_id: 100 + order_id,
            },
        )
        .await;
        orders.rule(order_id, Rule::Wait);
        orders.rule(100 + order_id, Rule::Wait);
    }
    let router = Router::new().handler::<handle_few>().handler::<handle_many>();
    let inbox = test
        .inbox(&broker, router)
        // Its settings are those that come later, but for what is changed.
        .with_consumer_config("few", |config| config.concurrency(1).attempts_max(1))
        .with_config(slow().concurrency(3).attempts_max(2))
        .with_state(orders.clone());
    let (shutdown, run) = spawn(inbox);
    let running = || {
        let runs = orders.seen().runs;
        let few = runs.iter().filter(|(order, _)| *order < 100).count();
        (few, runs.len() - few)
    };
    eventually("as many runs as may be", async || running() == (1, 3)).await;
    // Those that run succeed, the others fail. A handler that begins after the first has ended must not find the old rule.
    orders.rule_all((0..4).chain(100..104), Rule::Fail);
    within(broker.until_idle("few")).await;
    within(broker.until_idle("many")).await;
    assert_eq!(running(), (1 + 3, 3 + 2));
    let report = stop((shutdown, run)).await;
    assert_eq!((report.failed, report.dead_letters), (1, 4), "{report:?}");
    for (consumer, expected) in [("few", &[1, 1, 1][..]), ("many", &[2])] {
        let letters = dead_letters(&test.db, consumer).await.unwrap();
        let attempts: Vec<_> = letters.iter().map(|letter| letter.attempts).collect();
        assert_eq!(attempts, expected, "{consumer}");
    }
}

async fn settings_of_single_consumers_are_checked_at_the_start(test: TestDb) {
    let day = Duration::from_secs(24 * 3600);
    let broker = MemoryBroker::new().with_retention(Some(7 * day));
    let refused = async |consumer: &str, change: fn(InboxConfig) -> InboxConfig| {
        let inbox: Inbox<_> = test
            .inbox(&broker, Router::new().handler::<book>().handler::<reserve>())
            .with_state(crate::support::Script::ok())
            .with_consumer_config(consumer, change);
        inbox.drain().await.unwrap_err().to_string()
    };
    for (consumer, change, expected) in [
        (
            "nobody",
            (|config| config) as fn(InboxConfig) -> InboxConfig,
            "consumer `nobody` has no handlers",
        ),
        (
            "books",
            |config| config.concurrency(0),
            "consumer `books`: concurrency is 0",
        ),
        (
            "books",
            |config| config.stuck_after(Duration::from_secs(7)),
            "consumer `books`: stuck_after holds for the whole inbox",
        ),
        // It would forget what the stream still has. The other consumer remembers for as long as before.
        (
            "stock",
            |config| config.retention(Duration::from_secs(3600)),
            "the inbox forgets what it handled after 3600s",
        ),
    ] {
        let error = refused(consumer, change).await;
        assert!(error.contains(expected), "{error}");
    }
}

#[idempotent_handler(consumer = "unknown_here")]
async fn elsewhere(_event: Event<OrderPlaced>, _tx: Tx<'_>) -> Result<(), HandlerError> {
    Ok(())
}

/// The same program runs everywhere; what is said of the consumers of other processes means nothing.
async fn settings_of_consumers_that_do_not_run_here_mean_nothing(test: TestDb) {
    let router = Router::new().handler::<reserve>().handler::<elsewhere>();
    let inbox = test
        .inbox(&MemoryBroker::new(), router)
        .with_consumers(["stock"])
        .with_consumer_config("unknown_here", |config| config.concurrency(0));
    within(inbox.drain()).await.unwrap();
}

on_every_backend!(
    consumers_of_one_inbox_have_settings_of_their_own,
    settings_of_single_consumers_are_checked_at_the_start,
    settings_of_consumers_that_do_not_run_here_mean_nothing,
);
