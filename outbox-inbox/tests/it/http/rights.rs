//! The layer with exactly its documented rights.

use outbox_inbox::InboxError;
use outbox_inbox::http::purge_requests;
use outbox_sea_orm::TableNames;
use sea_orm::ConnectionTrait as _;

use super::shop::{Shop, Step, books};
use crate::rights::{Login, documented, log_in};
use crate::support::{Backend, TestDb};

static SHOP: Login = Login {
    name: "outbox_test_shop",
    roles: &["writer"],
    own: &["INSERT ON effects"],
};

async fn the_documented_rights_are_enough_and_needed(backend: Backend) {
    let Some(test) = TestDb::open(backend, "http_rights").await else {
        return;
    };
    SHOP.make(&test).await;
    let db = test.connect_with(|options| log_in(options, backend, SHOP.name, test.name()));
    let db = db.await;
    let refused = Shop::layer(&db).check().await.unwrap_err();
    assert!(matches!(refused, InboxError::Tables(_)), "{refused:?}");

    SHOP.grant(&test, &documented("http")).await;
    let layer = Shop::layer(&db);
    layer.check().await.unwrap();
    let shop = Shop::new([Step::Created, Step::Status(503)]);
    let client = shop.serve(layer).await;
    assert_eq!(client.order(1, "k").await.status, 201);
    assert!(client.order(1, "k").await.is_replayed());
    assert_eq!(client.order(2, "l").await.status, 503);
    assert_eq!(client.order(2, "l").await.status, 201);
    test.execute("UPDATE inbox_requests SET expires_at = created_at")
        .await;
    let anew = client.order(1, "k").await;
    assert_eq!((anew.status, anew.is_replayed()), (201, false));
    assert_eq!(purge_requests(&db, &TableNames::new(), 10).await.unwrap(), 1);
    assert_eq!(books(&test, 1).await, (2, 2, 1));

    for table in ["inbox_messages", "inbox_dead_letters", "outbox_messages"] {
        let read = format!("SELECT 1 FROM {table}");
        let refused = db.execute_unprepared(&read).await.unwrap_err().to_string();
        assert!(refused.contains("denied"), "{read}: {refused}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn documented_rights_of_the_layer_are_exact_on_postgres() {
    the_documented_rights_are_enough_and_needed(Backend::Postgres).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn documented_rights_of_the_layer_are_exact_on_mariadb() {
    the_documented_rights_are_enough_and_needed(Backend::MariaDb).await;
}
