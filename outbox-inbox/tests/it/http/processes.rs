//! Concurrent requests with one key.

use outbox_inbox::http::purge_requests;
use outbox_sea_orm::TableNames;

use super::shop::{Answer, Client, Shop, Step, books, by_ann};
use crate::on_every_backend;
use crate::orders::crash_after;
use crate::support::TestDb;

async fn insist(client: &Client, id: u64, key: &str) -> Answer {
    loop {
        let answer = client.order(id, key).await;
        if answer.status != 409 {
            return answer;
        }
        answer.assert_problem(409);
    }
}

async fn a_key_in_use_is_refused_at_once(test: TestDb) {
    let shop = Shop::new([Step::Gate]);
    let client = shop.serve(Shop::layer(&test.db)).await;
    let first = tokio::spawn({
        let client = client.clone();
        async move { client.order(1, "k").await }
    });
    shop.started().await;
    client.order(1, "k").await.assert_problem(409);
    assert!(!first.is_finished());
    shop.release();
    assert_eq!(first.await.unwrap().status, 201);
    assert!(client.order(1, "k").await.is_replayed());
    assert_eq!((shop.runs(), books(&test, 1).await), (1, (1, 1, 1)));
}

on_every_backend!(a_key_in_use_is_refused_at_once);

async fn hundred_requests_in_several_processes_have_one_effect(test: TestDb) {
    let shop = Shop::new([]);
    let mut clients = Vec::new();
    for _ in 0..3 {
        clients.push(shop.serve(Shop::layer(&test.connect_again().await)).await);
    }
    let asking = (0..100).map(|n| {
        let client = clients[n % clients.len()].clone();
        tokio::spawn(async move { client.order(1, "k").await })
    });
    let mut first = 0;
    for answer in asking.collect::<Vec<_>>() {
        let answer = answer.await.unwrap();
        match answer.status {
            201 => first += i32::from(!answer.is_replayed()),
            _ => answer.assert_problem(409),
        }
    }
    assert_eq!((first, shop.runs()), (1, 1));
    assert_eq!(books(&test, 1).await, (1, 1, 1));
}

async fn a_crash_before_the_commit_leaves_nothing(test: TestDb) {
    let connect = test.connector();
    crash_after(move || async move {
        let shop = Shop::new([Step::Hang]);
        let client = shop.serve(Shop::layer(&connect().await)).await;
        let connection = client.begin("POST /orders/1", &by_ann("k"), b"tea").await;
        shop.started().await;
        std::mem::forget(connection);
    })
    .await;
    assert_eq!(books(&test, 1).await, (0, 0, 0));

    let shop = Shop::new([]);
    let client = shop.serve(Shop::layer(&test.db)).await;
    let answer = insist(&client, 1, "k").await;
    assert_eq!((answer.status, answer.is_replayed()), (201, false));
    assert_eq!((shop.runs(), books(&test, 1).await), (1, (1, 1, 1)));
}

on_every_backend!(without memory:
    hundred_requests_in_several_processes_have_one_effect,
    a_crash_before_the_commit_leaves_nothing,
);

async fn another_process_is_refused_at_once(test: TestDb) {
    let (shop, other) = (Shop::new([Step::Gate]), Shop::new([]));
    let client = shop.serve(Shop::layer(&test.db)).await;
    let first = tokio::spawn(async move { client.order(1, "k").await });
    shop.started().await;
    let client = other.serve(Shop::layer(&test.connect_again().await)).await;
    client.order(1, "k").await.assert_problem(409);
    assert_eq!(client.order(2, "another").await.status, 201);
    shop.release();
    let first = first.await.unwrap();
    let again = insist(&client, 1, "k").await;
    assert!(again.is_replayed());
    assert_eq!((again.status, again.body), (201, first.body));
    assert_eq!(
        (shop.runs(), other.runs(), books(&test, 1).await),
        (1, 1, (1, 1, 2))
    );
}

async fn another_process_is_refused_while_an_expired_key_is_replaced(test: TestDb) {
    let (shop, other) = (Shop::new([Step::Created, Step::Gate]), Shop::new([]));
    let client = shop.serve(Shop::layer(&test.db)).await;
    assert_eq!(client.order(1, "k").await.status, 201);
    shop.started().await;
    test.execute("UPDATE inbox_requests SET expires_at = created_at")
        .await;
    let first = tokio::spawn(async move { client.order(1, "k").await });
    shop.started().await;
    let client = other.serve(Shop::layer(&test.connect_again().await)).await;
    client.order(1, "k").await.assert_problem(409);
    shop.release();
    let first = first.await.unwrap();
    assert_eq!((first.status, first.is_replayed()), (201, false));
    assert!(insist(&client, 1, "k").await.is_replayed());
    assert_eq!(
        (shop.runs(), other.runs(), books(&test, 1).await),
        (2, 0, (2, 2, 1))
    );
}

async fn a_purge_waits_for_no_request(test: TestDb) {
    let shop = Shop::new([Step::Created, Step::Created, Step::Gate]);
    let client = shop.serve(Shop::layer(&test.db)).await;
    for key in ["k", "l"] {
        assert_eq!(client.order(1, key).await.status, 201);
        shop.started().await;
    }
    test.execute("UPDATE inbox_requests SET expires_at = created_at")
        .await;
    let replacing = tokio::spawn(async move { client.order(1, "k").await });
    shop.started().await;
    assert_eq!(purge_requests(&test.db, &TableNames::new(), 10).await.unwrap(), 1);
    shop.release();
    let answer = replacing.await.unwrap();
    assert_eq!((answer.status, answer.is_replayed()), (201, false));
    assert_eq!(books(&test, 1).await, (3, 3, 1));
}

on_every_backend!(servers only:
    another_process_is_refused_at_once,
    another_process_is_refused_while_an_expired_key_is_replaced,
    a_purge_waits_for_no_request,
);
