//! Relays and inboxes that run together.

use outbox::core::testing::MemoryBroker;
use outbox::prelude::*;
use outbox::{RunError, Runner};
use sea_orm::{ConnectOptions, Database, DatabaseConnection};

async fn database() -> DatabaseConnection {
    let mut options = ConnectOptions::new("sqlite::memory:");
    options.max_connections(1);
    Database::connect(options).await.unwrap()
}

#[tokio::test]
async fn they_stop_together() {
    let (db, broker, shutdown) = (database().await, MemoryBroker::new(), CancellationToken::new());
    outbox::migrate(&db).await.unwrap();
    let runner = Runner::new()
        .with_relay(Relay::new(SqlStore::new(db.clone()), broker.publisher()))
        .with_inbox(Inbox::new(db, broker.subscriber()));
    let stop = async {
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        shutdown.cancel();
    };
    let (report, ()) = tokio::join!(runner.run_until(shutdown.clone()), stop);
    let report = report.unwrap();
    assert_eq!((report.relays.len(), report.inboxes.len()), (1, 1));
}

/// The service would otherwise go on without half of what it is for.
#[tokio::test]
async fn the_error_of_one_stops_the_others() {
    let (db, without_tables, broker) = (database().await, database().await, MemoryBroker::new());
    outbox::migrate(&db).await.unwrap();
    let shutdown = CancellationToken::new();
    let runner = |relay: &DatabaseConnection, inbox: &DatabaseConnection| {
        Runner::new()
            .with_relay(Relay::new(SqlStore::new(relay.clone()), broker.publisher()))
            .with_inbox(Inbox::new(inbox.clone(), broker.subscriber()))
            .run_until(shutdown.clone())
    };
    let error = runner(&without_tables, &db).await.unwrap_err();
    assert!(matches!(error, RunError::Relay(_)), "{error:?}");
    let error = runner(&db, &without_tables).await.unwrap_err();
    assert!(matches!(error, RunError::Inbox(_)), "{error:?}");
    assert!(!shutdown.is_cancelled(), "it belongs to the caller");
}
