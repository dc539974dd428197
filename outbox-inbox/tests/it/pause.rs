//! Pauses of consumers, across all their processes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use outbox_core::Health;
use outbox_inbox::testing::handled;
use outbox_inbox::{
    ConsumerState, Event, HandlerError, HandlerState, Inbox, InboxHealthCheck, PausedConsumers, Router, Tx,
    idempotent_handler,
};
use outbox_testing::{MemoryBroker, eventually};

use crate::on_every_backend;
use crate::orders::{numbered, put};
use crate::runtime::{spawn, stop, within};
use crate::support::{
    Backend, OrderPlaced, Script, Step, TestDb, book, placed, publish, quick, reserve, slow,
};

fn state_of(health: &InboxHealthCheck, name: &str) -> Option<(ConsumerState, Health)> {
    let mut consumers = health.consumers().into_iter();
    consumers
        .find(|consumer| consumer.consumer == name)
        .map(|consumer| (consumer.state, consumer.health))
}

pub(crate) async fn until_paused(health: &InboxHealthCheck, name: &str) {
    eventually("the pause", async || is_paused(health, name)).await;
}

pub(crate) fn is_paused(health: &InboxHealthCheck, name: &str) -> bool {
    matches!(state_of(health, name), Some((ConsumerState::Paused { .. }, _)))
}

async fn number_handled(test: &TestDb, consumer: &str) -> usize {
    handled(&test.db, consumer).await.unwrap().len()
}

async fn pause_stops_a_consumer_in_all_processes(test: TestDb) {
    let (broker, pauses) = (MemoryBroker::new(), PausedConsumers::new(test.db.clone()));
    let mut running = Vec::new();
    for db in [test.db.clone(), test.connect_again().await] {
        let inbox = Inbox::new(db, broker.subscriber())
            .with_router(Router::new().handler::<book>().handler::<reserve>())
            .with_config(slow())
            .with_state(Script::ok());
        let health = inbox.health();
        running.push((health, spawn(inbox)));
    }
    publish(&broker, &placed(1)).await;
    eventually("the first message", async || {
        number_handled(&test, "books").await == 1
    })
    .await;
    assert!(pauses.pause("books", "stocktaking").await.unwrap());
    for (health, _) in &running {
        until_paused(health, "books").await;
        assert_eq!(health.now(), Health::Alive);
        let running = (ConsumerState::Running, Health::Alive);
        assert_eq!(state_of(health, "stock"), Some(running));
    }
    for order_id in 2..=20 {
        publish(&broker, &placed(order_id)).await;
    }
    eventually("the other consumer", async || {
        number_handled(&test, "stock").await == 20
    })
    .await;
    assert_eq!(number_handled(&test, "books").await, 1);
    assert!(pauses.resume("books").await.unwrap());
    eventually("the rest", async || number_handled(&test, "books").await == 20).await;
    for (_, (shutdown, run)) in running {
        let report = stop((shutdown, run)).await;
        assert_eq!((report.failed, report.dead_letters), (0, 0), "{report:?}");
    }
    let attempts = "SELECT count(*) FROM inbox_messages WHERE attempts > 1";
    assert_eq!(test.int(attempts).await, 0);
}

async fn running_handlers_end_and_pause_survives_a_restart(test: TestDb) {
    let broker = MemoryBroker::new();
    let script = Script::new([Step::Gate], Step::Ok);
    let inbox = || {
        test.inbox(&broker, Router::new().handler::<book>())
            .with_config(slow())
            .with_state(script.clone())
    };
    for line in 0..2 {
        publish(&broker, &OrderPlaced { order_id: 1, line }).await;
    }
    let running = inbox();
    let health = running.health();
    let (shutdown, run) = spawn(running);
    script.started().await;
    let pauses = PausedConsumers::new(test.db.clone());
    let pausing = tokio::spawn(async move { pauses.pause("books", "stocktaking").await });
    if matches!(test.backend, Backend::Postgres | Backend::MariaDb) {
        until_paused(&health, "books").await;
    }
    script.release(1);
    assert!(within(pausing).await.unwrap().unwrap());
    until_paused(&health, "books").await;
    eventually("the end of the run", async || {
        number_handled(&test, "books").await >= 1
    })
    .await;
    shutdown.cancel();
    let before = within(run).await.unwrap();
    let paused = within(inbox().drain()).await.unwrap();
    assert_eq!(paused.handled, 0, "{paused:?}");
    assert!(
        PausedConsumers::new(test.db.clone())
            .resume("books")
            .await
            .unwrap()
    );
    let after = within(inbox().drain()).await.unwrap();
    assert_eq!(before.handled + after.handled, 2, "{before:?} {after:?}");
    assert_eq!(before.failed + paused.failed + after.failed, 0);
    let attempts = "SELECT count(*) FROM inbox_messages WHERE attempts > 1";
    assert_eq!(test.int(attempts).await, 0);
}

#[idempotent_handler(consumer = "counted", strategy = sequence(gap = "15s"))]
async fn count(
    _event: Event<OrderPlaced>,
    _tx: Tx<'_>,
    runs: HandlerState<Arc<AtomicUsize>>,
) -> Result<(), HandlerError> {
    runs.fetch_add(1, Ordering::Relaxed);
    Ok(())
}

async fn a_pause_is_no_gap_in_the_numbers(test: TestDb) {
    let (broker, pauses) = (MemoryBroker::new(), PausedConsumers::new(test.db.clone()));
    let runs = Arc::new(AtomicUsize::new(0));
    let inbox = test
        .inbox(&broker, Router::new().handler::<count>())
        .with_config(quick())
        .with_state(runs.clone());
    let health = inbox.health();
    let (shutdown, run) = spawn(inbox);
    put(&broker, &numbered(1, 1)).await;
    put(&broker, &numbered(1, 3)).await;
    eventually("the first run", async || runs.load(Ordering::Relaxed) == 1).await;
    assert!(pauses.pause("counted", "stocktaking").await.unwrap());
    until_paused(&health, "counted").await;
    tokio::time::sleep(Duration::from_secs(16)).await;
    assert!(pauses.resume("counted").await.unwrap());
    eventually("the end of the pause", async || {
        let state = state_of(&health, "counted");
        matches!(state, Some((ConsumerState::Running, Health::Alive)))
    })
    .await;
    put(&broker, &numbered(1, 2)).await;
    eventually("all runs", async || runs.load(Ordering::Relaxed) == 3).await;
    let report = stop((shutdown, run)).await;
    assert_eq!((report.handled, report.dead_letters), (3, 0), "{report:?}");
}

async fn pauses_have_a_reason_and_are_listed(test: TestDb) {
    let pauses = PausedConsumers::new(test.db.clone());
    assert!(pauses.list().await.unwrap().is_empty());
    assert!(!pauses.resume("books").await.unwrap());
    assert!(pauses.pause("stock", "moving").await.unwrap());
    assert!(pauses.pause("books", "stocktaking").await.unwrap());
    assert!(!pauses.pause("books", "another reason").await.unwrap());
    let list = pauses.list().await.unwrap();
    let list: Vec<_> = list
        .iter()
        .map(|paused| (paused.consumer.as_str(), paused.reason.as_str()))
        .collect();
    assert_eq!(list, [("books", "stocktaking"), ("stock", "moving")]);
    for name in ["", "a b", &"x".repeat(65)] {
        let error = pauses.pause(name, "").await.unwrap_err().to_string();
        assert!(error.contains("no consumer name"), "{error}");
    }
    assert!(pauses.resume("books").await.unwrap());
    assert_eq!(pauses.list().await.unwrap().len(), 1);
}

on_every_backend!(
    running_handlers_end_and_pause_survives_a_restart,
    a_pause_is_no_gap_in_the_numbers,
    pauses_have_a_reason_and_are_listed,
);
on_every_backend!(without memory: pause_stops_a_consumer_in_all_processes);
