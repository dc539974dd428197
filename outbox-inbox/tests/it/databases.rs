//! Databases that no inbox can use are refused at the start.

use outbox_inbox::http::IdempotencyLayer;
use outbox_inbox::{Inbox, InboxError, Router};
use outbox_testing::{MemoryBroker, backend_url};
use sea_orm::{ConnectOptions, ConnectionTrait as _, Database};
use uuid::Uuid;

use crate::support::{Script, book};

async fn refused(db: sea_orm::DatabaseConnection) -> String {
    outbox_inbox::migrate(&db).await.unwrap();
    outbox_sea_orm::migrate(&db).await.unwrap();
    let requests = IdempotencyLayer::new(db.clone(), |_| None).check().await;
    assert!(matches!(requests, Err(InboxError::Start(_))), "{requests:?}");
    let broker = MemoryBroker::new();
    let inbox = Inbox::new(db, broker.subscriber())
        .with_router(Router::new().handler::<book>())
        .with_state(Script::ok());
    match inbox.drain().await {
        Err(InboxError::Start(error)) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

/// Each connection of an in-memory pool is a separate database, and the pool closes its only
/// connection after a while.
#[tokio::test]
async fn pool_that_can_lose_its_database_is_refused() {
    let mut options = ConnectOptions::new("sqlite://refused?mode=memory");
    options.max_connections(1).sqlx_logging(false);
    let problems = refused(Database::connect(options).await.unwrap()).await;
    assert_eq!(problems, outbox_sea_orm::CAN_BE_LOST);
}

/// A database without UTF-8 cannot store the error text of a failing handler.
#[tokio::test]
async fn database_that_is_not_utf8_is_refused() {
    let Some(url) = backend_url("OUTBOX_TEST_POSTGRES_URL") else {
        return;
    };
    let name = format!("latin1_{}", Uuid::now_v7().simple());
    let admin = Database::connect(&url).await.unwrap();
    admin
        .execute_unprepared(&format!(
            "CREATE DATABASE {name} ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0"
        ))
        .await
        .unwrap();
    let (server, _) = url.rsplit_once('/').unwrap();
    let db = Database::connect(format!("{server}/{name}")).await.unwrap();
    let problems = refused(db.clone()).await;
    assert!(problems.contains("the encoding LATIN1"), "{problems}");
    let relay = outbox_core::OutboxStore::preflight(&outbox_sea_orm::SqlStore::new(db.clone()), false).await;
    assert!(
        matches!(relay, Err(outbox_core::StoreError::Setup { .. })),
        "{relay:?}"
    );
    db.close().await.unwrap();
    admin
        .execute_unprepared(&format!("DROP DATABASE {name}"))
        .await
        .unwrap();
}
