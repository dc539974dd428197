//! A database server that is killed three times under a relay and a consumer.
//!
//! Goal: each committed order has one effect. An order with an unknown outcome has at most one
//! effect, and no other order has any.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use outbox_core::retry::Backoff;
use outbox_core::shutdown::CancellationToken;
use outbox_core::{DomainEvent, Relay, RelayConfig};
use outbox_inbox::{Event, HandlerError, Inbox, InboxConfig, Router, Tx, idempotent_handler};
use outbox_nats::EventStream;
use outbox_sea_orm::{OutboxConfig, OutboxConnection, SqlStore};
use outbox_stress::patient;
use outbox_test_servers::{SOON, Server};
use outbox_testing::backend_url;
use sea_orm::{ConnectionTrait as _, DatabaseConnection, Statement};
use serde::{Deserialize, Serialize};

const ORDERS: i64 = 300;
const KILLED_AFTER: [i64; 3] = [60, 140, 220];

#[derive(Debug, DomainEvent, Serialize, Deserialize)]
#[domain_event(aggregate = "order", name = "paid")]
struct Paid {
    #[domain_event(aggregate_id)]
    customer: i64,
    order: i64,
}

#[idempotent_handler(consumer = "ledger")]
async fn book(event: Event<Paid>, tx: Tx<'_>) -> Result<(), HandlerError> {
    let order = event.order;
    tx.execute_unprepared(&format!("INSERT INTO effects VALUES ({order})"))
        .await?;
    Ok(())
}

#[derive(Default)]
struct List {
    committed: BTreeSet<i64>,
    undecided: BTreeSet<i64>,
}

async fn write(db: DatabaseConnection, server: &mut Server) -> List {
    let outbox = OutboxConnection::new(db, OutboxConfig::default());
    let mut list = List::default();
    for order in 1..=ORDERS {
        let customer = order % 7;
        loop {
            let Ok(tx) = outbox.begin().await else { continue };
            if outbox_sea_orm::record(&tx, [Paid { customer, order }])
                .await
                .is_err()
            {
                continue;
            }
            let killed = KILLED_AFTER.contains(&order);
            if killed {
                server.kill().unwrap();
            }
            match tx.commit().await {
                Ok(()) => list.committed.insert(order),
                Err(_) => list.undecided.insert(order),
            };
            if killed {
                server.start().await.unwrap();
            }
            break;
        }
    }
    list
}

async fn effects(db: &DatabaseConnection) -> BTreeMap<i64, i64> {
    let sql = "SELECT paid, count(*) AS n FROM effects GROUP BY paid";
    let rows = db
        .query_all_raw(Statement::from_string(db.get_database_backend(), sql))
        .await
        .unwrap_or_default();
    rows.iter()
        .map(|row| (row.try_get_by_index(0).unwrap(), row.try_get_by_index(1).unwrap()))
        .collect()
}

async fn check(mut server: Server, nats_url: &str) {
    server.start().await.unwrap();
    let db = server.connect(4).await.unwrap();
    outbox_sea_orm::migration::migrate(&db).await.unwrap();
    outbox_inbox::migration::migrate(&db).await.unwrap();
    db.execute_unprepared("CREATE TABLE effects (paid BIGINT NOT NULL)")
        .await
        .unwrap();
    let name = format!("killed_{}", server.port());
    let stream = EventStream::new(&name).with_prefix(&name).unwrap();
    let client = patient::provision(&stream, nats_url).await.unwrap();

    let shutdown = CancellationToken::new();
    let relay = Relay::new(
        SqlStore::new(server.connect(4).await.unwrap()),
        stream.publisher(client.clone()),
    )
    .with_config(
        RelayConfig::default()
            .lease_ttl(Duration::from_millis(1_500))
            .poll_max(Duration::from_millis(100)),
    );
    let pause = Duration::from_millis(100);
    let inbox = Inbox::new(
        server.connect(8).await.unwrap(),
        stream.subscriber(client.clone()),
    )
    .with_router(Router::new().handler::<book>())
    .with_config(InboxConfig::default().backoff(Backoff {
        min: pause,
        max: pause,
    }));
    let (of_relay, of_inbox) = (shutdown.clone(), shutdown.clone());
    let (relaying, handling) = (
        tokio::spawn(async move { relay.run(of_relay).await }),
        tokio::spawn(async move { inbox.run(of_inbox).await }),
    );

    let list = write(db.clone(), &mut server).await;
    let complete = async {
        loop {
            let found = effects(&db).await;
            if list.committed.iter().all(|order| found.contains_key(order)) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    // After the last kill, the relay may back off for 30 s, and redelivery takes 30 s.
    let complete = tokio::time::timeout(3 * SOON, complete).await;
    shutdown.cancel();
    let relayed = tokio::time::timeout(SOON, relaying)
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    let handled = tokio::time::timeout(SOON, handling)
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    let found = effects(&db).await;
    assert!(
        complete.is_ok(),
        "{} of {} orders have an effect",
        found.len(),
        list.committed.len()
    );
    assert_eq!((relayed.dead_letters, handled.dead_letters), (0, 0));
    assert!(!list.undecided.is_empty() && list.committed.len() > 200);
    for (order, times) in &found {
        assert_eq!(*times, 1, "order {order}");
        assert!(
            list.committed.contains(order) || list.undecided.contains(order),
            "order {order} was never paid"
        );
    }
    patient::context(client).delete_stream(&name).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_postgres_loses_and_doubles_nothing() {
    let program = backend_url("OUTBOX_TEST_POSTGRES_BIN");
    if let (Some(program), Some(nats_url)) = (program, backend_url("OUTBOX_TEST_NATS_URL")) {
        check(Server::postgres(Path::new(&program), &[]).unwrap(), &nats_url).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_mariadb_loses_and_doubles_nothing() {
    let program = backend_url("OUTBOX_TEST_MARIADB_BIN");
    if let (Some(program), Some(nats_url)) = (program, backend_url("OUTBOX_TEST_NATS_URL")) {
        check(Server::mariadb(Path::new(&program), &[]).unwrap(), &nats_url).await;
    }
}
