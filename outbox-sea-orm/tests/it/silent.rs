//! Silent connections: the proxy passes requests on, but no answers.

use std::time::Duration;

use outbox_core::retry::Backoff;
use outbox_core::shutdown::CancellationToken;
use outbox_core::{Health, OutboxStore, Relay, RelayConfig};
use outbox_sea_orm::SqlStore;
use outbox_testing::conformance::probe::Probe;
use outbox_testing::{MemoryBroker, eventually};
use sea_orm::DatabaseConnection;

use crate::proxy::Proxy;
use crate::support::{Backend, TestDb};

const SOON: Duration = Duration::from_secs(60);

const CONNECTIONS: u32 = 3;

macro_rules! on_servers {
    ($($name:ident),* $(,)?) => {
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::with_proxy(super::Backend::Postgres, stringify!($name), super::$name).await;
            })*
        }
        mod mariadb {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::with_proxy(super::Backend::MariaDb, stringify!($name), super::$name).await;
            })*
        }
    };
}

on_servers!(
    silent_connections_are_closed_and_the_pool_opens_others,
    abandoned_call_completes,
    relay_continues_after_connections_fall_silent,
    relay_with_a_silent_database_is_replaced_and_returns,
);

async fn with_proxy<F: Future<Output = ()>>(
    backend: Backend,
    name: &str,
    check: impl FnOnce(TestDb, Proxy, DatabaseConnection) -> F,
) {
    if let Some(test) = TestDb::open(backend, name).await {
        let proxy = Proxy::in_front_of(test.url()).await;
        let pool = test
            .connect_through(proxy.url(), |options| {
                options.max_connections(CONNECTIONS);
            })
            .await;
        check(test, proxy, pool).await;
    }
}

fn store(test: &TestDb, pool: &DatabaseConnection) -> SqlStore {
    SqlStore::new(pool.clone()).with_names(&test.names).unwrap()
}

fn config() -> RelayConfig {
    let backoff = Backoff {
        min: Duration::from_millis(5),
        max: Duration::from_millis(50),
    };
    RelayConfig::default()
        .backoff(backoff)
        .lease_ttl(Duration::from_secs(6))
        .store_timeout(Duration::from_secs(1))
        .poll_max(Duration::from_millis(100))
}

async fn record(test: &TestDb, from: u64) {
    let events: Vec<_> = (0..20).map(|n| Probe::noted(n.to_string(), from + n)).collect();
    test.record(events).await.unwrap();
}

async fn until_published(test: &TestDb, what: &str) {
    let left = format!("SELECT count(*) FROM {} WHERE status <> 1", test.messages());
    let wait = async {
        while test.int(&left).await > 0 {
            tokio::task::yield_now().await;
        }
    };
    let outcome = tokio::time::timeout(SOON, wait).await;
    assert!(outcome.is_ok(), "{what}: {} are left", test.int(&left).await);
}

async fn silent_connections_are_closed_and_the_pool_opens_others(
    test: TestDb,
    proxy: Proxy,
    pool: DatabaseConnection,
) {
    let store = store(&test, &pool);
    tokio::try_join!(store.backlog(), store.backlog(), store.backlog()).unwrap();
    proxy.silence(CONNECTIONS as usize);
    let calls = async { tokio::join!(store.backlog(), store.backlog(), store.backlog()) };
    tokio::select! {
        _ = calls => panic!("the proxy has passed on an answer"),
        () = proxy.silenced(CONNECTIONS as usize) => {}
    }
    proxy.closed(CONNECTIONS as usize).await;
    let calls = async { tokio::try_join!(store.backlog(), store.backlog(), store.backlog()) };
    let answers = tokio::time::timeout(SOON, calls).await;
    answers.expect("the pool has no connections").unwrap();
}

async fn abandoned_call_completes(test: TestDb, _proxy: Proxy, pool: DatabaseConnection) {
    let (store, owner) = (store(&test, &pool), outbox_core::OwnerId::fresh());
    store.acquire(owner, SOON, 64).await.unwrap();
    let mut leave = Box::pin(store.leave(owner));
    assert!(futures_util::FutureExt::now_or_never(leave.as_mut()).is_none());
    drop(leave);
    let owned = format!("SELECT count(*) FROM {} WHERE owner IS NOT NULL", test.leases());
    let given_back = async {
        while test.int(&owned).await > 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(SOON, given_back)
        .await
        .expect("the call was torn");
}

async fn relay_continues_after_connections_fall_silent(test: TestDb, proxy: Proxy, pool: DatabaseConnection) {
    let broker = MemoryBroker::new();
    let relay = Relay::new(store(&test, &pool), broker.publisher()).with_config(config());
    let shutdown = CancellationToken::new();
    let scenario = async {
        let mut silenced = 0;
        for round in 0..6 {
            record(&test, round * 100).await;
            let connections = [1, 1, 1, 1, 2, 3][round as usize];
            proxy.silence(connections);
            record(&test, round * 100 + 20).await;
            silenced += connections;
            proxy.silenced(silenced).await;
            until_published(&test, &format!("round {round}")).await;
        }
        proxy.closed(silenced).await;
        shutdown.cancel();
    };
    let (report, ()) = tokio::join!(relay.run(shutdown.clone()), scenario);
    report.unwrap();
    assert_eq!(broker.messages().len(), 6 * 40, "copies are dropped by their ids");
}

async fn relay_with_a_silent_database_is_replaced_and_returns(
    test: TestDb,
    proxy: Proxy,
    pool: DatabaseConnection,
) {
    let broker = MemoryBroker::new();
    let silent = Relay::new(store(&test, &pool), broker.publisher()).with_config(config());
    let healthy = Relay::new(test.store(), broker.publisher()).with_config(config());
    let health = silent.health();
    let (shutdown, other_shutdown) = (CancellationToken::new(), CancellationToken::new());
    let owners = format!(
        "SELECT count(DISTINCT owner) FROM {} WHERE owner IS NOT NULL",
        test.leases()
    );
    let shared = async |relays: i64| {
        let wait = async {
            while test.int(&owners).await != relays {
                tokio::task::yield_now().await;
            }
        };
        let outcome = tokio::time::timeout(SOON, wait).await;
        assert!(outcome.is_ok(), "{relays} relays should own partitions");
    };
    let scenario = async {
        shared(2).await;
        eventually("a relay without trouble", async || health.now() == Health::Alive).await;
        proxy.silence_all();
        record(&test, 0).await;
        record(&test, 100).await;
        until_published(&test, "beside a silent one").await;
        eventually("trouble that is seen", async || {
            health.now().to_string().contains("database has been failing for")
        })
        .await;
        shared(1).await;

        proxy.speak();
        shared(2).await;
        other_shutdown.cancel();
        record(&test, 200).await;
        until_published(&test, "by the one that has come back").await;
        shutdown.cancel();
    };
    let (report, other, ()) = tokio::join!(
        silent.run(shutdown.clone()),
        healthy.run(other_shutdown.clone()),
        scenario
    );
    assert!(report.unwrap().published > 0);
    other.unwrap();
    assert_eq!(broker.messages().len(), 60);
}
