//! Replayed responses.

use std::time::Duration;

use axum::http::HeaderName;
use outbox_inbox::http::purge_requests;
use outbox_inbox::migration;
use outbox_sea_orm::{OutboxConfig, TableNames};

use super::shop::{BYTES, Shop, Step, books, by_ann};
use crate::on_every_backend;
use crate::support::{Backend, SOON, TestDb};

async fn a_replay_is_the_first_response(test: TestDb) {
    let shop = Shop::new([]);
    let bytes = HeaderName::from_static("x-bytes");
    let client = shop.serve(Shop::layer(&test.db).with_stored_header(bytes)).await;
    let first = client.order(1, "k").await;
    assert_eq!((first.status, first.is_replayed()), (201, false));
    assert_eq!(first.body, [BYTES, b"tea1"].concat());
    for name in ["set-cookie", "x-token", "x-receipt"] {
        assert!(first.header(name).is_some(), "{name}");
    }
    for _ in 0..2 {
        let mut again = client.order(1, "k").await;
        assert!(again.is_replayed());
        again.headers.retain(|(name, _)| name != "idempotency-replayed");
        again.headers.sort();
        let mut expected = first.clone();
        expected
            .headers
            .retain(|(name, _)| !["set-cookie", "x-token", "x-receipt"].contains(&name.as_str()));
        expected.headers.sort();
        assert_eq!(again, expected);
    }
    assert_eq!((shop.runs(), books(&test, 1).await), (1, (1, 1, 1)));
    let stored = match test.backend {
        Backend::Postgres => "headers::text",
        _ => "headers",
    };
    let secrets = format!("SELECT count(*) FROM inbox_requests WHERE {stored} LIKE '%secret%'");
    assert_eq!(test.int(&secrets).await, 0);
}

async fn a_library_records_in_the_transaction_of_the_request(test: TestDb) {
    let shop = Shop::new([Step::Library]);
    let client = shop.serve(Shop::layer(&test.db)).await;
    assert_eq!(client.order(1, "k").await.status, 201);
    assert!(client.order(1, "k").await.is_replayed());
    assert_eq!((shop.runs(), books(&test, 1).await), (1, (1, 2, 1)));
}

async fn are_stored(test: &TestDb, steps: &[(Step, u16)]) {
    let shop = Shop::new(steps.iter().map(|(step, _)| *step));
    let client = shop.serve(Shop::layer(&test.db)).await;
    for (count, (step, status)) in (1..).zip(steps) {
        let key = format!("k-{status}");
        let first = client.order(1, &key).await;
        let again = client.order(1, &key).await;
        assert_eq!((first.status, again.status), (*status, *status), "{step:?}");
        assert!(again.is_replayed() && !first.is_replayed(), "{step:?}");
        assert_eq!(again.body, first.body);
        assert_eq!(i64::from(shop.runs()), count);
        assert_eq!(books(test, 1).await, (count, count, count), "{step:?}");
    }
}

async fn successes_and_redirections_are_stored(test: TestDb) {
    let statuses = [200, 202, 204, 302, 303];
    are_stored(&test, &statuses.map(|status| (Step::Status(status), status))).await;
}

async fn a_redirect_before_the_handler_is_not_stored(test: TestDb) {
    let shop = Shop::new([]);
    let client = shop.serve(Shop::layer(&test.db)).await;
    let [key, tenant, user] = by_ann("k");
    let json = "content-type: application/json";
    let body = br#"{"units": 2}"#;
    let away = client
        .send(
            "POST /checked/1",
            &[key, tenant, user, json, "x-refuse: 303"],
            body,
        )
        .await;
    assert_eq!((away.status, books(&test, 1).await), (303, (0, 0, 0)));
    let first = client
        .send("POST /checked/1", &[key, tenant, user, json], body)
        .await;
    assert_eq!((first.status, first.is_replayed()), (201, false));
}

async fn a_handler_may_commit_any_status(test: TestDb) {
    let statuses = [402, 409, 429, 502];
    are_stored(&test, &statuses.map(|status| (Step::Committed(status), status))).await;
}

async fn layer_purges_automatically(test: TestDb) {
    let shop = Shop::new([]);
    let every = Duration::from_secs(1);
    let client = shop.serve(Shop::layer(&test.db).with_purge_every(every)).await;
    for key in ["a", "b"] {
        assert_eq!(client.order(1, key).await.status, 201);
    }
    test.execute("UPDATE inbox_requests SET expires_at = created_at WHERE idempotency_key = 'a'")
        .await;
    let purged = async {
        while test.int("SELECT count(*) FROM inbox_requests").await == 2 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(SOON, purged).await.unwrap();
    assert!(client.order(1, "b").await.is_replayed());
    assert_eq!(books(&test, 1).await, (2, 2, 1));
}

async fn expired_key_is_new(test: TestDb) {
    let shop = Shop::new([Step::Created, Step::Status(500), Step::Created]);
    let client = shop.serve(Shop::layer(&test.db)).await;
    let first = client.order(1, "k").await;
    test.execute("UPDATE inbox_requests SET expires_at = created_at")
        .await;
    assert_eq!(client.order(1, "k").await.status, 500);
    assert_eq!(
        books(&test, 1).await,
        (1, 1, 1),
        "rolled back, and the expired row is still there"
    );
    let second = client.order(2, "k").await;
    assert_eq!((second.status, second.is_replayed()), (201, false));
    assert_ne!(first.body, second.body);
    let again = client.order(2, "k").await;
    assert!(again.is_replayed());
    assert_eq!(again.body, second.body);
    assert_eq!((books(&test, 1).await.0, books(&test, 2).await), (1, (1, 1, 1)));
}

async fn purge_deletes_expired_requests(test: TestDb) {
    let shop = Shop::new([]);
    let client = shop.serve(Shop::layer(&test.db)).await;
    for key in ["a", "b", "c"] {
        assert_eq!(client.order(1, key).await.status, 201);
    }
    let names = TableNames::new();
    assert_eq!(purge_requests(&test.db, &names, 10).await.unwrap(), 0);
    test.execute("UPDATE inbox_requests SET expires_at = created_at")
        .await;
    assert_eq!(client.order(1, "live").await.status, 201);
    for expected in [2, 1, 0] {
        assert_eq!(purge_requests(&test.db, &names, 2).await.unwrap(), expected);
    }
    assert!(client.order(1, "live").await.is_replayed());
    assert_eq!(books(&test, 1).await, (4, 4, 1));
}

async fn tables_can_have_other_names(test: TestDb) {
    let names = TableNames::new().with_prefix("billing_").unwrap();
    migration::migrate_with(&test.db, &names).await.unwrap();
    outbox_sea_orm::migration::migrate_with(&test.db, &names)
        .await
        .unwrap();
    let shop = Shop::new([]);
    let outbox = OutboxConfig::default().with_names(names.clone());
    let client = shop
        .serve(
            Shop::layer(&test.db)
                .with_names(names.clone())
                .with_outbox(outbox),
        )
        .await;
    assert_eq!(client.order(1, "k").await.status, 201);
    assert!(
        client
            .send("POST /orders/1", &by_ann("k"), b"tea")
            .await
            .is_replayed()
    );
    assert_eq!(test.int("SELECT count(*) FROM billing_inbox_requests").await, 1);
    assert_eq!(test.int("SELECT count(*) FROM billing_outbox_messages").await, 1);
    assert_eq!(books(&test, 1).await, (1, 0, 0));
    test.execute("UPDATE billing_inbox_requests SET expires_at = created_at")
        .await;
    assert_eq!(purge_requests(&test.db, &names, 10).await.unwrap(), 1);
}

on_every_backend!(
    a_replay_is_the_first_response,
    successes_and_redirections_are_stored,
    a_redirect_before_the_handler_is_not_stored,
    a_handler_may_commit_any_status,
    layer_purges_automatically,
    expired_key_is_new,
    purge_deletes_expired_requests,
    a_library_records_in_the_transaction_of_the_request,
    tables_can_have_other_names,
);
