//! Keys: equality, and refusals.

use outbox_inbox::http::MissingKey;

use super::shop::{Shop, Step, books, by_ann};
use crate::on_every_backend;
use crate::support::TestDb;

async fn requests_without_a_usable_key_or_scope_are_refused(test: TestDb) {
    let shop = Shop::new([]);
    let client = shop.serve(Shop::layer(&test.db)).await;
    for (headers, status) in [
        (&["x-tenant: acme", "x-user: ann"][..], 400),
        (&[&by_ann("k")[..], &["idempotency-key: l"]].concat(), 400),
        (&by_ann(""), 400),
        (&by_ann("\"k\";p=1"), 400),
        (&by_ann("k\u{e9}"), 400),
        (&["idempotency-key: k"], 401),
        (&["idempotency-key: k", "x-tenant: acme"], 401),
        (&["idempotency-key: k", "x-tenant: acme", "x-user:"], 401),
        (&["idempotency-key: k", "x-tenant:", "x-user: ann"], 401),
    ] {
        let answer = client.send("POST /orders/1", headers, b"tea").await;
        assert_eq!(answer.status, status, "{headers:?}");
        answer.assert_problem(status);
    }
    assert_eq!((shop.runs(), books(&test, 1).await), (0, (0, 0, 0)));
}

async fn a_request_without_a_key_may_pass_through(test: TestDb) {
    let shop = Shop::new([Step::Created, Step::Status(500), Step::Created, Step::Undo]);
    let client = shop
        .serve(Shop::layer(&test.db).with_missing_key(MissingKey::PassThrough))
        .await;
    for (status, effects) in [(201, 1), (500, 1), (201, 2), (500, 2)] {
        let answer = client.send("POST /orders/1", &[], b"tea").await;
        assert_eq!((answer.status, answer.is_replayed()), (status, false));
        if shop.runs() < 4 {
            assert_eq!(books(&test, 1).await, (effects, effects, 0));
        }
    }
    assert_eq!(client.order(2, "k").await.status, 201);
    assert!(client.order(2, "k").await.is_replayed());
    assert_eq!(books(&test, 2).await, (1, 1, 1));
}

async fn quoted_key_equals_bare_key(test: TestDb) {
    let shop = Shop::new([]);
    let client = shop.serve(Shop::layer(&test.db)).await;
    assert_eq!(client.order(1, "\"k-1\"").await.status, 201);
    assert!(client.order(1, "k-1").await.is_replayed());
    assert!(!client.order(1, "K-1").await.is_replayed(), "keys differ by case");
    assert_eq!(books(&test, 1).await, (2, 2, 2));
}

async fn a_key_for_another_request_is_refused(test: TestDb) {
    let shop = Shop::new([]);
    let client = shop.serve(Shop::layer(&test.db)).await;
    let send = async |what: &str, content_type: &str, body: &str| {
        let content_type = format!("content-type: {content_type}");
        let headers = [&by_ann("k")[..], &[&content_type]].concat();
        client.send(what, &headers, body.as_bytes()).await
    };
    let first = send("POST /orders/1?x=1", "text/plain", "tea").await;
    assert_eq!(first.status, 201);
    for (what, content_type, body) in [
        ("POST /orders/1?x=1", "text/plain", "coffee"),
        ("POST /orders/1?x=1", "text/plain", ""),
        ("POST /orders/1?x=1", "application/json", "tea"),
        ("POST /orders/1?x=1", "", "tea"),
        ("POST /orders/2?x=1", "text/plain", "tea"),
        ("POST /orders/1?x=2", "text/plain", "tea"),
        ("POST /orders/1", "text/plain", "tea"),
        ("PUT /orders/1?x=1", "text/plain", "tea"),
        ("POST /plain", "text/plain", "tea"),
        ("POST /a/orders/1?x=1", "text/plain", "tea"),
    ] {
        let answer = send(what, content_type, body).await;
        assert_eq!(answer.status, 422, "{what}, {content_type}, {body}");
        answer.assert_problem(422);
    }
    assert_eq!((shop.runs(), books(&test, 1).await), (1, (1, 1, 1)));
    let again = send("POST /orders/1?x=1", "text/plain", "tea").await;
    assert!(again.is_replayed());
}

async fn second_layer_changes_nothing(test: TestDb) {
    let shop = Shop::new([]);
    let client = shop.serve(Shop::layer(&test.db)).await;
    for replayed in [false, true] {
        let answer = client.send("POST /twice/orders/1", &by_ann("k"), b"tea").await;
        assert_eq!((answer.status, answer.is_replayed()), (201, replayed));
    }
    assert_eq!((shop.runs(), books(&test, 1).await), (1, (1, 1, 1)));
}

async fn tenants_and_principals_do_not_share_keys(test: TestDb) {
    let shop = Shop::new([]);
    let client = shop.serve(Shop::layer(&test.db)).await;
    let mut bodies = Vec::new();
    for (tenant, user) in [("acme", "ann"), ("bolt", "ann"), ("acme", "bob")] {
        let (tenant, user) = (format!("x-tenant: {tenant}"), format!("x-user: {user}"));
        let headers = ["idempotency-key: k", &tenant, &user];
        let answer = client.send("POST /orders/1", &headers, b"tea").await;
        assert_eq!((answer.status, answer.is_replayed()), (201, false));
        let again = client.send("POST /orders/1", &headers, b"tea").await;
        assert!(again.is_replayed());
        assert_eq!(again.body, answer.body);
        bodies.push(answer.body);
    }
    bodies.dedup();
    assert_eq!(
        (bodies.len(), shop.runs(), books(&test, 1).await),
        (3, 3, (3, 3, 3))
    );
}

async fn other_methods_pass_through(test: TestDb) {
    let shop = Shop::new([]);
    let client = shop.serve(Shop::layer(&test.db)).await;
    let answer = client.send("GET /plain", &[], b"").await;
    assert_eq!((answer.status, answer.text()), (200, "plain".to_owned()));
    client.send("GET /orders/1", &[], b"").await.assert_problem(500);
    assert_eq!((shop.runs(), books(&test, 1).await), (0, (0, 0, 0)));
    for (order, method) in (2..).zip(["POST", "PUT", "PATCH", "DELETE"]) {
        let request = format!("{method} /orders/{order}");
        for replayed in [false, true] {
            let answer = client.send(&request, &by_ann(method), b"").await;
            assert_eq!((answer.status, answer.is_replayed()), (201, replayed), "{method}");
        }
        assert_eq!(books(&test, order).await.0, 1, "{method}");
    }
}

async fn large_requests_are_refused(test: TestDb) {
    let shop = Shop::new([]);
    let client = shop
        .serve(Shop::layer(&test.db).with_request_bytes_max(1000))
        .await;
    client
        .send("POST /orders/1", &by_ann("k"), &[b'x'; 1001])
        .await
        .assert_problem(413);
    let chunked = [
        "idempotency-key: k",
        "x-tenant: acme",
        "x-user: ann",
        "transfer-encoding: chunked",
    ];
    let body = [b"3e9\r\n".as_slice(), &[b'x'; 1001], b"\r\n0\r\n\r\n"].concat();
    client
        .send("POST /orders/1", &chunked, &body)
        .await
        .assert_problem(413);
    assert_eq!((shop.runs(), books(&test, 1).await), (0, (0, 0, 0)));
    let answer = client.send("POST /orders/1", &by_ann("k"), &[b'x'; 1000]).await;
    assert_eq!(answer.status, 201);
}

on_every_backend!(
    requests_without_a_usable_key_or_scope_are_refused,
    a_request_without_a_key_may_pass_through,
    quoted_key_equals_bare_key,
    a_key_for_another_request_is_refused,
    second_layer_changes_nothing,
    tenants_and_principals_do_not_share_keys,
    other_methods_pass_through,
    large_requests_are_refused,
);
