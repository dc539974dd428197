//! Failed requests leave nothing, and a retry runs the handler.

use std::time::Duration;

use outbox_inbox::http::IdempotencyLayer;
use outbox_inbox::{InboxError, StartError};
use outbox_testing::not_applicable;

use super::shop::{Shop, Step, books, by_ann};
use crate::on_every_backend;
use crate::support::{Backend, TestDb};

async fn check(test: &TestDb, step: Step, status: u16, change: Change) {
    let shop = Shop::new([step]);
    let client = shop.serve(change(Shop::layer(&test.db))).await;
    let first = client.order(1, "k").await;
    assert_eq!(first.status, status, "{step:?}");
    first.assert_problem(status);
    assert!(!first.text().contains("no_such_table"), "{}", first.text());
    assert_eq!((shop.runs(), books(test, 1).await), (1, (0, 0, 0)), "{step:?}");
    let client = shop.serve(Shop::layer(&test.db)).await;
    let second = loop {
        let second = client.order(1, "k").await;
        if second.status != 409 {
            break second;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    assert_eq!((second.status, second.is_replayed()), (201, false));
    let third = client.order(1, "k").await;
    assert!(third.is_replayed());
    assert_eq!((third.status, third.body), (201, second.body));
    assert_eq!((shop.runs(), books(test, 1).await), (2, (1, 1, 1)), "{step:?}");
}

type Change = fn(IdempotencyLayer) -> IdempotencyLayer;

async fn failures_are_rolled_back_and_their_retries_run(test: TestDb) {
    let unchanged: Change = |layer| layer;
    let mut cases: Vec<(Step, u16, Change)> = vec![
        (Step::Panic, 500, unchanged),
        (Step::Bytes(1001), 500, |layer| {
            layer.with_response_bytes_max(1000)
        }),
        (Step::Hang, 503, |layer| {
            layer.with_handler_timeout(Duration::from_millis(100))
        }),
        (Step::Undo, 500, unchanged),
    ];
    if test.backend == Backend::Postgres {
        cases.push((Step::Swallow, 500, unchanged));
    }
    if matches!(test.backend, Backend::Postgres | Backend::MariaDb) {
        cases.push((Step::Kill, 503, unchanged));
    }
    for (step, status, change) in cases {
        check(&test, step, status, change).await;
        for table in ["effects", "outbox_messages", "inbox_requests"] {
            test.execute(&format!("DELETE FROM {table}")).await;
        }
    }
}

async fn a_refused_commit_is_a_failure(test: TestDb) {
    if test.backend == Backend::MariaDb {
        return not_applicable("this database has no constraints that are checked at the commit");
    }
    test.execute(
        "CREATE TABLE children (parent BIGINT REFERENCES markers (id) DEFERRABLE INITIALLY DEFERRED)",
    )
    .await;
    check(&test, Step::Orphan, 500, |layer| layer).await;
}

async fn a_refusal_is_rolled_back_and_its_retry_runs(test: TestDb) {
    let statuses = [
        400, 401, 402, 403, 404, 408, 409, 410, 413, 415, 422, 425, 429, 451, 499, 500, 503,
    ];
    let shop = Shop::new(statuses.map(Step::Status));
    let client = shop.serve(Shop::layer(&test.db)).await;
    for status in statuses {
        let answer = client.order(1, "k").await;
        assert_eq!((answer.status, answer.is_replayed()), (status, false));
        assert_eq!(books(&test, 1).await, (0, 0, 0), "{status}");
    }
    let answer = client.order(1, "k").await;
    assert_eq!((answer.status, answer.is_replayed()), (201, false));
    assert!(client.order(1, "k").await.is_replayed());
    assert_eq!(books(&test, 1).await, (1, 1, 1));
}

async fn a_refusal_before_the_handler_is_not_stored(test: TestDb) {
    let shop = Shop::new([]);
    let client = shop.serve(Shop::layer(&test.db)).await;
    let json = "content-type: application/json";
    let large = format!(r#"{{"units": 2, "gift": "{}"}}"#, "x".repeat(2_000));
    for (header, body, status) in [
        ("x-refuse: 401", r#"{"units": 2}"#, 401),
        ("x-refuse: 403", r#"{"units": 2}"#, 403),
        ("content-type: text/plain", r#"{"units": 2}"#, 415),
        (json, "{", 400),
        (json, r#"{"units": "two"}"#, 422),
        (json, &large, 413),
    ] {
        let headers = [&by_ann("k")[..], &[header]].concat();
        let answer = client.send("POST /checked/1", &headers, body.as_bytes()).await;
        assert_eq!(answer.status, status, "{header}: {}", answer.text());
        assert_eq!((shop.runs(), books(&test, 1).await), (0, (0, 0, 0)), "{header}");
    }
    let headers = [&by_ann("k")[..], &[json]].concat();
    for replayed in [false, true] {
        let answer = client.send("POST /checked/1", &headers, br#"{"units": 2}"#).await;
        assert_eq!((answer.status, answer.is_replayed()), (201, replayed));
    }
    assert_eq!((shop.runs(), books(&test, 1).await), (1, (1, 1, 1)));
}

async fn kept_transaction_is_not_committed(test: TestDb) {
    let shop = Shop::new([Step::Keep]);
    let client = shop.serve(Shop::layer(&test.db)).await;
    client.order(1, "k").await.assert_problem(500);
    shop.let_go();
    let answer = loop {
        let answer = client.order(1, "k").await;
        if answer.status != 409 {
            break answer;
        }
    };
    assert_eq!((answer.status, shop.runs()), (201, 2));
    assert_eq!(books(&test, 1).await, (1, 1, 1));
}

async fn disconnected_client_changes_nothing(test: TestDb) {
    let shop = Shop::new([Step::Gate]);
    let client = shop.serve(Shop::layer(&test.db)).await;
    let connection = client.begin("POST /orders/1", &by_ann("k"), b"tea").await;
    shop.started().await;
    drop(connection);
    shop.ended().await;
    client.order(1, "k").await.assert_problem(409);
    shop.release();
    let answer = loop {
        let answer = client.order(1, "k").await;
        if answer.status != 409 {
            break answer;
        }
    };
    assert_eq!((answer.status, answer.is_replayed()), (201, true));
    assert_eq!((shop.runs(), books(&test, 1).await), (1, (1, 1, 1)));
}

async fn missing_tables_are_reported(test: TestDb) {
    test.execute("DROP TABLE inbox_requests").await;
    assert!(matches!(
        Shop::layer(&test.db).check().await,
        Err(InboxError::Tables(_))
    ));
    let shop = Shop::new([]);
    let client = shop.serve(Shop::layer(&test.db)).await;
    client.order(1, "k").await.assert_problem(500);
    assert_eq!(shop.runs(), 0);
}

async fn impossible_settings_are_named(test: TestDb) {
    Shop::layer(&test.db).check().await.unwrap();
    let layer = Shop::layer(&test.db)
        .with_retention(Duration::ZERO)
        .with_handler_timeout(Duration::ZERO)
        .with_request_bytes_max(0)
        .with_response_bytes_max(0);
    let Err(InboxError::Start(error)) = layer.check().await else {
        panic!("they are refused");
    };
    let text = StartError::to_string(&error);
    for setting in [
        "retention",
        "handler_timeout",
        "request_bytes_max",
        "response_bytes_max",
    ] {
        assert!(text.contains(&format!("{setting} is 0")), "{setting}: {text}");
    }
}

on_every_backend!(
    failures_are_rolled_back_and_their_retries_run,
    a_refused_commit_is_a_failure,
    a_refusal_is_rolled_back_and_its_retry_runs,
    a_refusal_before_the_handler_is_not_stored,
    kept_transaction_is_not_committed,
    disconnected_client_changes_nothing,
    missing_tables_are_reported,
    impossible_settings_are_named,
);
