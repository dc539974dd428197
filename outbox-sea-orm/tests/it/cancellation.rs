//! Writes after a cancelled `begin()`, for which sqlx 0.9.0 returns a connection with an open
//! transaction to the pool (transact-rs/sqlx#4393).

use outbox_core::{Aggregate, OutboxStore, OwnerId, RelayHealth, Verdict};
use outbox_sea_orm::SqlStore;
use outbox_testing::Operator as _;
use outbox_testing::conformance::probe::Probe;
use outbox_testing::not_applicable;
use sea_orm::{ConnectionTrait, DbBackend};

use crate::support::{Backend, TTL, TestDb, int, settlements};

crate::on_every_backend!(cancelled_begin_of_a_service_hides_no_write);

async fn cancelled_begin_of_a_service_hides_no_write(test: TestDb) {
    if test.sql_backend() == DbBackend::Sqlite {
        return not_applicable("sqlx ends a cancelled transaction of SQLite");
    }
    let markers = test.names.table(test.sql_backend(), "outbox_test_marker");
    test.execute(&format!("CREATE TABLE {markers} (n BIGINT)")).await;
    let mark = format!("INSERT INTO {markers} VALUES (1)");
    let count = format!("SELECT count(*) FROM {markers}");
    test.record([Probe::noted("a", 1)]).await.unwrap();
    let (owner, leases) = test.lease_all().await;
    let settlements = settlements(&test.fetch_all().await, &Verdict::Published { keep: true });
    let pool = test.one_connection().await;
    let store = SqlStore::new(pool.clone()).with_names(&test.names).unwrap();
    for call in 0..5_i64 {
        pool.execute_unprepared("BEGIN").await.unwrap();
        let run = async || match call {
            0 => store.renew(owner, &leases, TTL).await.map(drop),
            1 => store.acquire(OwnerId::fresh(), TTL, 1).await.map(drop),
            2 => store
                .announce(owner, TTL, &RelayHealth::Healthy.into())
                .await
                .map(drop),
            3 => store.settle(&leases, &settlements).await.map(drop),
            _ => store.resume(&Aggregate::new("probe", "a")).await.map(drop),
        };
        // MariaDB rejects `SET TRANSACTION` in a transaction.
        if run().await.is_err() {
            assert_eq!(test.backend, Backend::MariaDb);
            run().await.unwrap();
        }
        pool.execute_unprepared(&mark).await.unwrap();
        assert_eq!(int(&test.db, &count).await, call + 1, "call {call}");
    }
}
