//! PostgreSQL behind PgBouncer. Shared sessions are rejected, and a session per client works.

use std::time::Duration;

use futures_util::future::join_all;
use outbox_core::shutdown::CancellationToken;
use outbox_core::{Relay, RelayError, StoreError};
use outbox_sea_orm::{
    ConnectError, OutboxConfig, OutboxConnection, SqlStore, connect, migration, reach, record,
};
use outbox_test_servers::Server;
use outbox_testing::conformance::probe::Probe;
use outbox_testing::{MemoryBroker, backend_url, eventually, free_port};
use sea_orm::{ConnectOptions, Database, DatabaseConnection};

use crate::support::{Backend, TestDb};

const SOON: Duration = Duration::from_secs(60);

struct Bouncer {
    url: String,
    _server: Server,
}

impl Bouncer {
    async fn start(url: &str, server: u16, settings: &str) -> Option<Self> {
        let program = backend_url("OUTBOX_TEST_PGBOUNCER_BIN")?;
        let mut pooler = Server::pgbouncer(program.as_ref(), server, settings).unwrap();
        pooler.start().await.unwrap();
        Some(Self {
            url: with_port(url, pooler.port()),
            _server: pooler,
        })
    }

    async fn pool(&self, parameter: &str) -> DatabaseConnection {
        let separator = if self.url.contains('?') { '&' } else { '?' };
        let mut options = ConnectOptions::new(format!("{}{separator}{parameter}", self.url));
        options.connect_lazy(true).max_connections(1);
        Database::connect(options).await.unwrap()
    }

    async fn store(&self, test: &TestDb) -> SqlStore {
        let store = SqlStore::new(self.pool("application_name=test").await);
        store.with_names(&test.names).unwrap()
    }
}

fn port_of(url: &str) -> u16 {
    let (_, server) = url.rsplit_once('@').unwrap();
    let (_, port) = server.split('/').next().unwrap().rsplit_once(':').unwrap();
    port.parse().unwrap()
}

fn with_port(url: &str, port: u16) -> String {
    url.replace(&format!(":{}/", port_of(url)), &format!(":{port}/"))
}

async fn refusal_of_relay(store: SqlStore) -> String {
    let relay = Relay::new(store, MemoryBroker::new().publisher());
    let run = tokio::time::timeout(SOON, relay.run(CancellationToken::new()));
    let error = run.await.expect("no waiting").unwrap_err();
    let RelayError::Store(StoreError::Setup(problem)) = error else {
        panic!("{error:?}");
    };
    problem.to_string()
}

#[tokio::test]
async fn shared_sessions_are_refused_at_the_start() {
    let Some(test) = TestDb::open(Backend::Postgres, "shared_sessions").await else {
        return;
    };
    let settings = "pool_mode = transaction\nignore_startup_parameters = extra_float_digits";
    let Some(bouncer) = Bouncer::start(test.url(), port_of(test.url()), settings).await else {
        return;
    };
    let connected = tokio::time::timeout(SOON, connect(&bouncer.url)).await;
    let error = connected.expect("no waiting").unwrap_err();
    assert!(matches!(error, ConnectError::Pooler { .. }), "{error:?}");
    let text = refusal_of_relay(bouncer.store(&test).await).await;
    assert!(
        text.contains("behind a pooler") && text.contains("sessions are shared"),
        "{text}"
    );
}

/// Migrations of several pools use the same names of prepared statements.
#[tokio::test]
async fn migrations_over_shared_sessions_name_the_pooler_if_they_fail() {
    let Some(test) = TestDb::open(Backend::Postgres, "shared_migrations").await else {
        return;
    };
    let settings =
        "pool_mode = transaction\ndefault_pool_size = 1\nignore_startup_parameters = extra_float_digits";
    let Some(bouncer) = Bouncer::start(test.url(), port_of(test.url()), settings).await else {
        return;
    };
    let mut failures = Vec::new();
    for _ in 0..3 {
        let pool = bouncer.pool("application_name=test").await;
        failures.extend(migration::migrate_with(&pool, &test.names).await.err());
    }
    assert!(!failures.is_empty());
    for failure in failures {
        let text = failure.to_string();
        assert!(text.contains("behind a pooler"), "{text}");
    }
}

#[tokio::test]
async fn writers_over_shared_sessions_record_their_commits() {
    let Some(test) = TestDb::open(Backend::Postgres, "shared_writers").await else {
        return;
    };
    let settings =
        "pool_mode = transaction\ndefault_pool_size = 2\nignore_startup_parameters = extra_float_digits";
    let Some(bouncer) = Bouncer::start(test.url(), port_of(test.url()), settings).await else {
        return;
    };
    let config = OutboxConfig::default().with_names(test.names.clone());
    let writers = (0..6).map(async |writer| {
        let pool = bouncer.pool("application_name=test").await;
        let outbox = OutboxConnection::new(pool, config.clone());
        let mut committed = 0;
        for number in 0..5 {
            let Ok(tx) = outbox.begin().await else { continue };
            let recorded = record(&tx, [Probe::noted("a", writer * 5 + number)]).await;
            committed += u64::from(recorded.is_ok() && tx.commit().await.is_ok());
        }
        committed
    });
    let committed: u64 = join_all(writers).await.into_iter().sum();
    let broker = MemoryBroker::new();
    let relay = Relay::new(test.store(), broker.publisher());
    assert_eq!(relay.drain().await.unwrap().published, committed);
}

#[tokio::test]
async fn a_pooler_that_refuses_parameters_is_named() {
    let Some(test) = TestDb::open(Backend::Postgres, "refused_parameters").await else {
        return;
    };
    let Some(bouncer) = Bouncer::start(test.url(), port_of(test.url()), "pool_mode = session").await else {
        return;
    };
    let text = refusal_of_relay(bouncer.store(&test).await).await;
    assert!(
        text.contains("behind a pooler") && text.contains("rejects the parameters"),
        "{text}"
    );
    let separator = if bouncer.url.contains('?') { '&' } else { '?' };
    let url = format!("{}{separator}options[statement_timeout]=1000", bouncer.url);
    let connected = tokio::time::timeout(SOON, connect(url)).await;
    let error = connected.expect("no waiting").unwrap_err();
    assert!(matches!(error, ConnectError::Pooler { .. }), "{error:?}");
}

#[tokio::test]
async fn kept_pooler_sessions_work() {
    let Some(test) = TestDb::open(Backend::Postgres, "kept_sessions").await else {
        return;
    };
    let Some(bouncer) = Bouncer::start(test.url(), port_of(test.url()), "pool_mode = session").await else {
        return;
    };
    test.record([Probe::noted("a", 1)]).await.unwrap();
    let db = connect(&bouncer.url).await.unwrap();
    let broker = MemoryBroker::new();
    let relay = Relay::new(
        SqlStore::new(db).with_names(&test.names).unwrap(),
        broker.publisher(),
    );
    let shutdown = CancellationToken::new();
    let scenario = async {
        eventually("the event", async || !broker.messages().is_empty()).await;
        shutdown.cancel();
    };
    let (report, ()) = tokio::join!(relay.run(shutdown.clone()), scenario);
    assert_eq!(report.unwrap().published, 1);
}

/// PgBouncer reports an outage with the code of a rejected parameter.
#[tokio::test]
async fn outage_behind_a_pooler_is_temporary() {
    let Some(test) = TestDb::open(Backend::Postgres, "away_behind_pooler").await else {
        return;
    };
    let settings = "pool_mode = session\nignore_startup_parameters = extra_float_digits";
    let Some(bouncer) = Bouncer::start(test.url(), free_port(), settings).await else {
        return;
    };
    let store = bouncer.store(&test).await;
    let error = reach(store.connection()).await.unwrap_err();
    assert!(matches!(error, ConnectError::OutOfReach { .. }), "{error:?}");
}
