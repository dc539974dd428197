//! The health of an inbox while it runs, and afterwards.

use std::sync::OnceLock;
use std::time::Duration;

use outbox_core::Health;
use outbox_inbox::{
    ConsumerHealth, ConsumerState, Event, HandlerError, HandlerState, Inbox, InboxError, InboxHealthCheck,
    Router, SubscriptionState, idempotent_handler,
};
use outbox_testing::MemoryBroker;
use tokio_util::sync::CancellationToken;

use crate::runtime::spawn;
use crate::support::{Backend, OrderPlaced, SOON, TestDb, placed, publish, quick, reserve};

async fn until(health: &InboxHealthCheck, holds: impl Fn(&Health) -> bool) {
    let wait = async {
        while !holds(&health.now()) {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    let outcome = tokio::time::timeout(SOON, wait).await;
    outcome.unwrap_or_else(|_| panic!("{}", health.now()));
}

fn only(health: &InboxHealthCheck) -> ConsumerHealth {
    let [consumer] = health.consumers().try_into().unwrap();
    consumer
}

#[tokio::test]
async fn a_running_inbox_is_ready_until_it_has_stopped() {
    let test = TestDb::open(Backend::Sqlite, "a_running_inbox_is_ready")
        .await
        .unwrap();
    let broker = MemoryBroker::new();
    let inbox = test.inbox(&broker, Router::new().handler::<reserve>());
    let health = inbox.health();
    assert_eq!(health.now().to_string(), "stopped: it is not running");
    assert!(health.consumers().is_empty());
    let (shutdown, run) = spawn(inbox);
    until(&health, Health::is_ready).await;
    let consumer = only(&health);
    assert_eq!(
        (
            consumer.consumer,
            consumer.state,
            consumer.subscription,
            consumer.last_effect
        ),
        (
            "stock",
            ConsumerState::Running,
            SubscriptionState::Receiving,
            None
        )
    );
    publish(&broker, &placed(1)).await;
    until(&health, |_| only(&health).last_effect.is_some()).await;
    shutdown.cancel();
    run.await.unwrap();
    assert_eq!(health.now().to_string(), "stopped: it has stopped");
    assert_eq!(only(&health).state, ConsumerState::Stopped { reason: None });
}

/// The health shows the error, even if no code reads the result of `run`.
#[tokio::test]
async fn an_inbox_that_cannot_start_says_why() {
    let test = TestDb::empty(Backend::SqliteMemory, "an_inbox_that_cannot_start")
        .await
        .unwrap();
    let inbox = test.inbox(&MemoryBroker::new(), Router::new().handler::<reserve>());
    let error = inbox.run(CancellationToken::new()).await.unwrap_err();
    assert!(matches!(error, InboxError::Tables(_)), "{error:?}");
    let text = inbox.health().now().to_string();
    assert!(
        text.starts_with("stopped: it has stopped: inbox tables are missing"),
        "{text}"
    );
}

#[tokio::test]
async fn a_run_that_is_dropped_has_stopped() {
    let test = TestDb::open(Backend::SqliteMemory, "a_run_that_is_dropped")
        .await
        .unwrap();
    let inbox = test.inbox(&MemoryBroker::new(), Router::new().handler::<reserve>());
    let health = inbox.health();
    tokio::select! {
        ended = inbox.run(CancellationToken::new()) => panic!("{ended:?}"),
        () = until(&health, Health::is_ready) => {}
    }
    assert_eq!(
        health.now().to_string(),
        "stopped: it has stopped: its future was dropped"
    );
}

#[tokio::test]
async fn a_subscription_that_ended_is_told_until_the_next_one_is_open() {
    let test = TestDb::open(Backend::SqliteMemory, "a_subscription_that_ended")
        .await
        .unwrap();
    let broker = MemoryBroker::new();
    let inbox = test.inbox(&broker, Router::new().handler::<reserve>());
    let health = inbox.health();
    let (shutdown, run) = spawn(inbox);
    until(&health, Health::is_ready).await;
    // The consumer is gone, and the broker does not answer requests for a new one.
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
    let subscription = only(&health).subscription;
    assert!(
        matches!(subscription, SubscriptionState::Away { .. }),
        "{subscription:?}"
    );
    broker.set_down(false);
    until(&health, Health::is_ready).await;
    assert_eq!(only(&health).subscription, SubscriptionState::Receiving);
    shutdown.cancel();
    run.await.unwrap();
}

/// The health that a handler saw after it had run for longer than its limit.
#[derive(Debug, Default)]
struct Seen {
    health: OnceLock<InboxHealthCheck>,
    now: OnceLock<(Health, ConsumerHealth)>,
}

/// The handler moves the clock past its time limit while it is polled, so nothing can cancel it, as if it blocked its thread.
#[idempotent_handler(consumer = "hangs", timeout = "800ms")]
async fn hang(_event: Event<OrderPlaced>, seen: HandlerState<&'static Seen>) -> Result<(), HandlerError> {
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(6)).await;
    let health = seen.health.get().unwrap();
    seen.now.get_or_init(|| (health.now(), only(health)));
    tokio::time::resume();
    Ok(())
}

#[tokio::test]
async fn a_handler_that_hangs_beyond_its_limit_is_not_alive() {
    let test = TestDb::open(Backend::SqliteMemory, "a_handler_that_hangs")
        .await
        .unwrap();
    let seen: &'static Seen = Box::leak(Box::default());
    let broker = MemoryBroker::new();
    publish(&broker, &placed(1)).await;
    let inbox = Inbox::new(test.db.clone(), broker.subscriber())
        .with_router(Router::new().handler::<hang>())
        .with_config(quick())
        .with_state(seen);
    let health = inbox.health();
    seen.health.set(health.clone()).unwrap();
    let (shutdown, run) = spawn(inbox);
    until(&health, |_| seen.now.get().is_some()).await;
    let (now, consumer) = seen.now.get().unwrap();
    let text = now.to_string();
    assert!(
        text.starts_with(
            "stopped: consumer `hangs`: handler `it::health::hang` has been running for 6s, its limit is 800ms"
        ),
        "{text}"
    );
    assert!(!now.is_alive(), "a restart helps");
    let handler = consumer.oldest_handler.unwrap();
    assert!(
        handler.handler == "it::health::hang" && handler.is_over_limit(),
        "{handler:?}"
    );
    until(&health, |now| {
        now.is_ready() && only(&health).oldest_handler.is_none()
    })
    .await;
    shutdown.cancel();
    run.await.unwrap();
}
