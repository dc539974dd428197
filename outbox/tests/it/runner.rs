//! Tests of relays and inboxes that run together.

use std::task::Poll;
use std::time::Duration;

use outbox::core::{Destination, Health, Message, PublishError, Publisher, Receipt};
use outbox::prelude::*;
use outbox::testing::{MemoryBroker, MemoryPublisher, MemoryStore};
use outbox::{RunError, Runner, RunnerHealth};
use sea_orm::{ConnectOptions, Database, DatabaseConnection};
use tokio::runtime::{Builder, Runtime};

use crate::end_to_end;

const SOON: Duration = Duration::from_secs(30);

async fn soon<T: Send + 'static>(run: impl Future<Output = T> + Send + 'static) -> T {
    let run = tokio::spawn(tokio::time::timeout(SOON, run));
    run.await.unwrap().unwrap()
}

#[tokio::test]
async fn empty_runner_is_an_error() {
    let error = soon(Runner::new().run_until(CancellationToken::new()))
        .await
        .unwrap_err();
    assert!(matches!(error, RunError::Empty), "{error:?}");
}

#[derive(Debug)]
struct Panics(MemoryPublisher);

impl Publisher for Panics {
    fn destination(&self) -> Option<Destination> {
        None
    }

    async fn publish(&self, message: &Message) -> Result<Receipt, PublishError> {
        self.0.publish(message).await
    }

    async fn preflight(&self) -> Result<Vec<String>, PublishError> {
        panic!("a mistake of the application");
    }
}

#[tokio::test]
async fn panic_of_a_part_stops_the_other_parts() {
    let (db, broker) = (database().await, MemoryBroker::new());
    outbox::migrate(&db).await.unwrap();
    let runner = Runner::new()
        .with_inbox(Inbox::new(db.clone(), broker.subscriber()))
        .with_relay(Relay::new(SqlStore::new(db), Panics(broker.publisher())));
    let error = soon(runner.run_until(CancellationToken::new()))
        .await
        .unwrap_err();
    assert!(matches!(error, RunError::Panicked), "{error:?}");
}

async fn database() -> DatabaseConnection {
    let mut options = ConnectOptions::new("sqlite::memory:");
    options.max_connections(1);
    Database::connect(options).await.unwrap()
}

#[tokio::test]
async fn shutdown_stops_all_parts() {
    let (db, broker, shutdown) = (
        end_to_end::database().await,
        MemoryBroker::new(),
        CancellationToken::new(),
    );
    end_to_end::place_order(&db).await;
    let handled = shutdown.clone();
    let inbox = Inbox::new(db.clone(), broker.subscriber()).on_handled(move |_| handled.cancel());
    let runner = Runner::new()
        .with_relay(Relay::new(SqlStore::new(db), broker.publisher()))
        .with_inbox(inbox);
    let report = soon(runner.run_until(shutdown)).await.unwrap();
    let published: Vec<_> = report.relays.iter().map(|relay| relay.published).collect();
    let handled: Vec<_> = report.inboxes.iter().map(|inbox| inbox.handled).collect();
    assert_eq!((published, handled), (vec![1], vec![1]));
}

#[tokio::test]
async fn error_of_a_part_stops_the_other_parts() {
    let (db, without_tables, broker) = (database().await, database().await, MemoryBroker::new());
    outbox::migrate(&db).await.unwrap();
    let runner = |relay: &DatabaseConnection, inbox: &DatabaseConnection, shutdown: &CancellationToken| {
        Runner::new()
            .with_relay(Relay::new(SqlStore::new(relay.clone()), broker.publisher()))
            .with_inbox(Inbox::new(inbox.clone(), broker.subscriber()))
            .run_until(shutdown.clone())
    };
    let shutdown = CancellationToken::new();
    let error = soon(runner(&without_tables, &db, &shutdown)).await.unwrap_err();
    assert!(matches!(error, RunError::Relay(_)), "{error:?}");
    assert!(shutdown.is_cancelled(), "a server beside it ends");
    let error = soon(runner(&db, &without_tables, &CancellationToken::new()))
        .await
        .unwrap_err();
    assert!(matches!(error, RunError::Inbox(_)), "{error:?}");
}

/// A dropped runtime cancels its tasks. The runner's error must not report a panic.
#[test]
fn runtime_shutdown_is_not_reported_as_a_panic() {
    let (outer, inner) = (runtime(), runtime());
    let error = outer.block_on(async {
        let relay = Relay::new(MemoryStore::new(), MemoryBroker::new().publisher());
        let mut run = Box::pin(
            Runner::new()
                .with_relay(relay)
                .run_until(CancellationToken::new()),
        );
        let started = {
            let _tasks_go_there = inner.enter();
            std::future::poll_fn(|context| Poll::Ready(run.as_mut().poll(context).is_pending())).await
        };
        assert!(started);
        inner.shutdown_background();
        tokio::time::timeout(SOON, run).await.unwrap().unwrap_err()
    });
    assert!(matches!(error, RunError::Cancelled), "{error:?}");
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

#[tokio::test]
async fn health_combines_relays_and_inboxes() {
    let (db, broker, shutdown) = (database().await, MemoryBroker::new(), CancellationToken::new());
    outbox::migrate(&db).await.unwrap();
    let runner = Runner::new()
        .with_relay(Relay::new(MemoryStore::new(), broker.publisher()))
        .with_inbox(Inbox::new(db, broker.subscriber()));
    let health = runner.health();
    assert_eq!((health.relays.len(), health.inboxes.len()), (1, 1));
    assert_eq!(
        health.now().to_string(),
        "stopped: relay 1: the relay is not running; inbox 1: the inbox is not running"
    );
    let run = tokio::spawn(runner.run_until(shutdown.clone()));
    until(&health, Health::is_ready).await;
    broker.set_down(true);
    until(&health, |now| {
        let text = now.to_string();
        text.starts_with("degraded: inbox 1: consumer `") && text.contains("the broker is down")
    })
    .await;
    broker.set_down(false);
    broker.delete_consumer("inventory");
    until(&health, Health::is_ready).await;
    shutdown.cancel();
    run.await.unwrap().unwrap();
    let now = health.now().to_string();
    assert!(now.contains("inbox 1: the inbox has stopped"), "{now}");
}

async fn until(health: &RunnerHealth, holds: impl Fn(&Health) -> bool) {
    let wait = async {
        while !holds(&health.now()) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let outcome = tokio::time::timeout(SOON, wait).await;
    outcome.unwrap_or_else(|_| panic!("{}", health.now()));
}
