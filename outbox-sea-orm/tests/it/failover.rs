//! Relays during a failover.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use outbox_core::retry::Backoff;
use outbox_core::shutdown::CancellationToken;
use outbox_core::{OutboxStore, OwnerId, Relay, RelayConfig};
use outbox_sea_orm::SqlStore;
use outbox_testing::MemoryBroker;
use outbox_testing::conformance::probe::Probe;
use sea_orm::DatabaseConnection;
use sea_orm::sqlx::{self, Executor};

use crate::commit::mysql_error;
use crate::proxy::{Commit, Proxy};
use crate::support::{Backend, TTL, TestDb, int};

const SOON: Duration = Duration::from_secs(60);

const SESSIONS: usize = 8;

#[derive(Default)]
struct Replica {
    is_promoted: AtomicBool,
    sessions: AtomicUsize,
}

async fn connect_to(replica: &Arc<Replica>, test: &TestDb) -> DatabaseConnection {
    let replica = replica.clone();
    let begin = move |only_reads: &'static str| {
        replica.sessions.fetch_add(1, Ordering::SeqCst);
        let is_promoted = replica.is_promoted.load(Ordering::SeqCst);
        if is_promoted { "SELECT 1" } else { only_reads }
    };
    test.connect_again(|options| match test.backend {
        Backend::MariaDb => {
            options.map_sqlx_mysql_pool_opts(move |pool| {
                let begin = begin.clone();
                pool.after_connect(move |connection, _| {
                    let begin = begin("SET SESSION TRANSACTION READ ONLY");
                    Box::pin(async move { connection.execute(sqlx::AssertSqlSafe(begin)).await.map(drop) })
                })
            });
        }
        _ => {
            options.map_sqlx_postgres_pool_opts(move |pool| {
                let begin = begin.clone();
                pool.after_connect(move |connection, _| {
                    let begin = begin("SET default_transaction_read_only = on");
                    Box::pin(async move { connection.execute(sqlx::AssertSqlSafe(begin)).await.map(drop) })
                })
            });
        }
    })
    .await
}

#[tokio::test]
async fn relay_started_during_a_failover_waits_for_its_end() {
    for backend in [Backend::Postgres, Backend::MariaDb] {
        let Some(test) = TestDb::open(backend, "failover").await else {
            continue;
        };
        test.record([Probe::noted("a", 1), Probe::noted("a", 2)])
            .await
            .unwrap();
        let replica = Arc::<Replica>::default();
        let store = SqlStore::new(connect_to(&replica, &test).await)
            .with_names(&test.names)
            .unwrap();
        let backoff = Backoff {
            min: Duration::from_millis(5),
            max: Duration::from_millis(50),
        };
        let broker = MemoryBroker::new();
        let relay = Relay::new(store, broker.publisher()).with_config(
            RelayConfig::default()
                .backoff(backoff)
                .poll_max(Duration::from_millis(100)),
        );
        let shutdown = CancellationToken::new();
        let scenario = async {
            let seen = async {
                while replica.sessions.load(Ordering::SeqCst) < SESSIONS {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                assert_eq!(broker.publishes(), 0);
                replica.is_promoted.store(true, Ordering::SeqCst);
                let left = format!("SELECT count(*) FROM {} WHERE status <> 1", test.messages());
                while test.int(&left).await > 0 {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            };
            let outcome = tokio::time::timeout(SOON, seen).await;
            shutdown.cancel();
            outcome.unwrap_or_else(|_| panic!("{backend:?}: nothing is published"));
        };
        let (report, ()) = tokio::join!(relay.run(shutdown.clone()), scenario);
        let report = report.unwrap_or_else(|error| panic!("{backend:?}: {error:?}"));
        assert_eq!((report.published, report.dead_letters), (2, 0), "{report:?}");
    }
}

/// MySQL's codes for a read-only server: 1290 (`read_only`), 1836 or 1036 (`innodb_read_only`). The
/// last error of the test does not mean read-only.
#[tokio::test]
async fn connection_to_a_read_only_server_is_replaced() {
    let Some(test) = TestDb::open(Backend::MariaDb, "only_reads").await else {
        return;
    };
    let proxy = Proxy::in_front_of(test.url()).await;
    let url = format!("{}?ssl-mode=DISABLED", proxy.url());
    let pool = test
        .connect_through(&url, |options| {
            options.max_connections(1);
        })
        .await;
    let store = SqlStore::new(pool.clone()).with_names(&test.names).unwrap();
    for (number, is_replaced) in [(1290, true), (1836, true), (1036, true), (1205, false)] {
        let before = int(&pool, "SELECT CAST(CONNECTION_ID() AS SIGNED)").await;
        proxy.on_commit(Commit::Answer(mysql_error(number, "HY000", "refused")));
        store
            .acquire(OwnerId::fresh(), TTL, 64)
            .await
            .expect_err("a refused commit");
        let after = int(&pool, "SELECT CAST(CONNECTION_ID() AS SIGNED)").await;
        assert_eq!(before != after, is_replaced, "{number}");
    }
}
