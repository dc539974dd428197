//! A service cancels its own `begin()`: sqlx 0.9.0 returns the connection to the pool with an open
//! transaction (transact-rs/sqlx#4393).

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use outbox_core::{Aggregate, Fitness, OutboxAdmin, OutboxStore, OwnerId, Verdict};
use outbox_sea_orm::SqlStore;
use outbox_testing::conformance::probe::Probe;
use outbox_testing::not_applicable;
use sea_orm::{ConnectionTrait, DbBackend, TransactionTrait};

use crate::support::{Backend, TTL, TestDb, int, settlements};

crate::on_every_backend!(cancelled_begin_of_a_service_hides_no_write);

async fn cancelled_begin_of_a_service_hides_no_write(test: TestDb) {
    if test.backend == Backend::SqliteMemory {
        return not_applicable("nobody else can look into this database");
    }
    let markers = test.names.table(test.sql_backend(), "outbox_test_marker");
    test.execute(&format!("CREATE TABLE {markers} (n BIGINT)")).await;
    let mark = format!("INSERT INTO {markers} VALUES (1)");
    let count = format!("SELECT count(*) FROM {markers}");
    test.record([Probe::noted("a", 1)]).await.unwrap();
    let (owner, leases) = test.lease_all().await;
    let settlements = settlements(&test.fetch_all().await, &Verdict::Published { keep: true });
    let pool = test
        .connect_again(|options| {
            options.max_connections(1);
        })
        .await;
    let store = SqlStore::new(pool.clone()).with_names(&test.names).unwrap();
    let (mut written, mut left_open) = (0, 0);
    for polls in 1..10 {
        // 0: without the store, to see that this number of polls leaves a transaction open.
        for call in 0..6 {
            cancel(polls, pool.begin()).await;
            let run = async || match call {
                0 => Ok(()),
                1 => store.renew(owner, &leases, TTL).await.map(drop),
                2 => store.acquire(OwnerId::fresh(), TTL, 1).await.map(drop),
                3 => store.announce(owner, TTL, &Fitness::Fit.into()).await.map(drop),
                4 => store.settle(&leases, &settlements).await.map(drop),
                _ => store.resume(&Aggregate::new("probe", "a")).await.map(drop),
            };
            // MariaDB refuses `SET TRANSACTION` in a transaction; then the connection is closed.
            if run().await.is_err() {
                assert_eq!(test.backend, Backend::MariaDb);
                run().await.unwrap();
            }
            pool.execute_unprepared(&mark).await.unwrap();
            written += 1;
            let seen = int(&test.db, &count).await;
            if call == 0 {
                left_open += written - seen;
                if seen < written {
                    pool.execute_unprepared("COMMIT").await.unwrap();
                }
            } else {
                assert_eq!(seen, written, "call {call} after {polls} polls");
            }
        }
    }
    let is_affected = test.sql_backend() != DbBackend::Sqlite;
    assert_eq!(left_open > 0, is_affected, "the driver is repaired");
}

/// Drops a future at a wakeup.
async fn cancel<T>(polls: usize, future: impl Future<Output = T>) {
    let mut future = pin!(future);
    let mut left = polls;
    poll_fn(|cx| {
        left -= 1;
        match future.as_mut().poll(cx).is_ready() || left == 0 {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    })
    .await;
}
