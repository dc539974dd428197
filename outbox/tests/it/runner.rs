//! Relays and inboxes that run together.

use std::time::Duration;

use outbox::core::testing::{MemoryBroker, MemoryPublisher};
use outbox::core::{Message, PublishError, Publisher, Receipt};
use outbox::prelude::*;
use outbox::{RunError, Runner};
use sea_orm::{ConnectOptions, Database, DatabaseConnection};

use crate::end_to_end;

/// One that does not end would hang the test.
async fn soon<T: Send + 'static>(run: impl Future<Output = T> + Send + 'static) -> T {
    let run = tokio::spawn(tokio::time::timeout(Duration::from_secs(30), run));
    run.await.unwrap().unwrap()
}

#[tokio::test]
async fn nothing_to_run_is_an_error() {
    let error = soon(Runner::new().run_until(CancellationToken::new()))
        .await
        .unwrap_err();
    assert!(matches!(error, RunError::Empty), "{error:?}");
}

/// A broker's driver of the application.
#[derive(Debug)]
struct Panics(MemoryPublisher);

impl Publisher for Panics {
    async fn publish(&self, message: &Message) -> Result<Receipt, PublishError> {
        self.0.publish(message).await
    }

    async fn preflight(&self) -> Result<Vec<String>, PublishError> {
        panic!("a mistake of the application");
    }
}

#[tokio::test]
async fn a_panic_of_one_stops_the_others() {
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
async fn they_stop_together() {
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

/// The service would otherwise go on without half of what it is for.
#[tokio::test]
async fn the_error_of_one_stops_the_others() {
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
