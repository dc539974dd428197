//! A database that is down for longer than `ack_wait`.

use outbox_inbox::{Inbox, Router};
use outbox_testing::{MemoryBroker, eventually};
use sea_orm::TransactionTrait as _;

use crate::noting;
use crate::orders::{Orders, Rule, lines, numbered, prepare, put};
use crate::runtime::{finish, spawn, within};
use crate::support::{Backend, SOON, TestDb, quick};

noting!(note_in_any_order, consumer = "away", order = none);

/// Another task holds the only connection of the inbox. The first message lost this connection in a
/// counted attempt, the second waits for a transaction, the other messages for a slot.
#[tokio::test]
async fn messages_waiting_for_the_database_are_not_redelivered() {
    let test = TestDb::open(Backend::Sqlite, "away").await.unwrap();
    prepare(&test).await;
    let pool = test
        .connect_with(|options| {
            options.max_connections(1).acquire_timeout(SOON * 20);
        })
        .await;
    let (broker, orders) = (MemoryBroker::new(), Orders::default());
    orders.rule(1, Rule::Fail);
    put(&broker, &numbered(1, 1)).await;
    let ack_wait = SOON;
    let config = quick()
        .attempts_max(1_000_000)
        .concurrency(1)
        .ack_wait(ack_wait)
        .handler_timeout(ack_wait / 2);
    let inbox = Inbox::new(pool.clone(), broker.subscriber())
        .with_router(Router::new().handler::<note_in_any_order>())
        .with_config(config)
        .with_state(orders.clone());
    let (shutdown, run) = spawn(inbox);
    orders.until("a failure", |state| !state.runs.is_empty()).await;
    orders.rule(1, Rule::Lose);
    let failed = orders.seen().runs.len();
    orders
        .until("the attempt that was counted", |state| state.runs.len() > failed)
        .await;
    let before = broker.deliveries("away");
    for order_id in 2..=4 {
        put(&broker, &numbered(order_id, 1)).await;
    }
    eventually("the others in memory", async || {
        broker.deliveries("away") == before + 3
    })
    .await;
    let next_connection = tokio::spawn(async move { pool.begin().await.unwrap() });
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    orders.rule(1, None);
    let only_connection = within(next_connection).await.unwrap();
    tokio::time::pause();
    tokio::time::sleep(3 * ack_wait).await;
    assert_eq!(broker.deliveries("away"), before + 3, "the broker hears of each");
    tokio::time::resume();
    only_connection.rollback().await.unwrap();
    let report = finish(&broker, "away", (shutdown, run)).await;
    assert_eq!((report.handled, report.dead_letters), (4, 0), "{report:?}");
    for order_id in 1..=4 {
        assert_eq!(lines(&test, "away", order_id).await, [1]);
    }
}
