//! Programs that start before their database, and refused logins.

use std::time::Duration;

use outbox_core::shutdown::CancellationToken;
use outbox_core::{OutboxStore as _, Relay, RelayError, SetupKind, StoreError};
use outbox_sea_orm::{ConnectError, SaveError, SqlStore, connect, migration};
use outbox_testing::conformance::probe::Probe;
use outbox_testing::{MemoryBroker, eventually, free_port};
use sea_orm::{ConnectOptions, ConnectionTrait as _, Database, DatabaseConnection};

use crate::support::{Backend, TestDb};

const SOON: Duration = Duration::from_secs(60);

pub(crate) const SERVERS: [Backend; 2] = [Backend::Postgres, Backend::MariaDb];

fn as_stranger(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap();
    let (_, server) = rest.rsplit_once('@').unwrap();
    format!("{scheme}://stranger:hunter2@{server}")
}

pub(crate) fn server_of(url: &str) -> &str {
    let (_, server) = url.rsplit_once('@').unwrap();
    server.split('/').next().unwrap()
}

pub(crate) async fn soon<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(SOON, work).await.expect("no waiting")
}

async fn is_refused_at_once(url: &str, user: &str) {
    let error = soon(connect(url)).await.unwrap_err();
    assert!(matches!(error, ConnectError::Refused { .. }), "{error:?}");
    let text = error.to_string();
    assert!(
        text.contains(server_of(url))
            && text.contains(&format!("user `{user}`"))
            && text.contains("correct user"),
        "{text}"
    );
    assert!(!format!("{error:?} {text}").contains("hunter2"), "{error:?}");
}

async fn is_refused_at_the_start(url: &str, user: &str) {
    let mut options = ConnectOptions::new(url);
    options.connect_lazy(true);
    let store = SqlStore::new(Database::connect(options).await.unwrap());
    let relay = Relay::new(store, MemoryBroker::new().publisher());
    let error = soon(relay.run(CancellationToken::new())).await.unwrap_err();
    let RelayError::Store(StoreError::Setup(problem)) = &error else {
        panic!("{error:?}")
    };
    assert_eq!(problem.kind, SetupKind::Login);
    let context = &problem.seen;
    assert!(
        context.contains(&format!("user `{user}`")) && context.contains("refuses the login"),
        "{context}"
    );
    assert!(!context.contains("hunter2"), "{context}");
}

#[tokio::test]
async fn refused_login_is_reported_without_the_password() {
    for backend in SERVERS {
        if let Some(test) = TestDb::open(backend, "refused_login").await {
            is_refused_at_once(&as_stranger(test.url()), "stranger").await;
        }
    }
}

#[tokio::test]
async fn refused_login_stops_the_relay_at_start() {
    for backend in SERVERS {
        if let Some(test) = TestDb::open(backend, "refused_relay").await {
            is_refused_at_the_start(&as_stranger(test.url()), "stranger").await;
        }
    }
}

#[cfg(unix)]
#[tokio::test(start_paused = true)]
async fn unreachable_database_is_named_after_a_second() {
    let folder = tempfile::tempdir().unwrap();
    drop(std::os::unix::net::UnixListener::bind(folder.path().join(".s.PGSQL.5432")).unwrap());
    let mut options = ConnectOptions::new(format!("postgres:///shop?host={}", folder.path().display()));
    options.connect_lazy(true);
    let store = SqlStore::new(Database::connect(options).await.unwrap());

    let began = tokio::time::Instant::now();
    let error = outbox_core::OutboxStore::backlog(&store).await.unwrap_err();
    let waited = began.elapsed();
    let text = outbox_core::describe(&error);
    assert!(text.contains("refused"), "{text}");
    let expected = Duration::from_secs(1)..Duration::from_millis(1_100);
    assert!(expected.contains(&waited), "named after {waited:?}");
}

async fn forward(port: u16, server: String) {
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", port)).await.unwrap();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let server = server.clone();
            tokio::spawn(async move {
                let mut server = tokio::net::TcpStream::connect(server).await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
            });
        }
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn relay_started_before_its_database_publishes_later() {
    for backend in SERVERS {
        let Some(test) = TestDb::open(backend, "starts_first").await else {
            continue;
        };
        test.record([Probe::noted("a", 1)]).await.unwrap();
        let port = free_port();
        let mut options = ConnectOptions::new(
            test.url()
                .replace(server_of(test.url()), &format!("127.0.0.1:{port}")),
        );
        options.connect_lazy(true);
        let store = SqlStore::new(Database::connect(options).await.unwrap());
        let broker = MemoryBroker::new();
        let relay = Relay::new(store.with_names(&test.names).unwrap(), broker.publisher());
        let health = relay.health();
        let shutdown = CancellationToken::new();
        let run = tokio::spawn({
            let shutdown = shutdown.clone();
            async move { relay.run(shutdown).await }
        });
        soon(async {
            while !health.now().to_string().contains("unreachable") {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        })
        .await;
        forward(port, server_of(test.url()).to_owned()).await;
        soon(async {
            while broker.messages().is_empty() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        })
        .await;
        shutdown.cancel();
        assert_eq!(run.await.unwrap().unwrap().published, 1);
    }
}

#[tokio::test]
async fn write_error_in_an_outage_names_the_outage() {
    for backend in SERVERS {
        let Some(test) = TestDb::open(backend, "writer_away").await else {
            continue;
        };
        let url = test
            .url()
            .replace(server_of(test.url()), &format!("127.0.0.1:{}", free_port()));
        let mut options = ConnectOptions::new(url);
        options
            .connect_lazy(true)
            .acquire_timeout(Duration::from_millis(50));
        let away = Database::connect(options).await.unwrap();
        let error = away.execute_unprepared("SELECT 1").await.unwrap_err();
        let text = SaveError::Database(error).to_string();
        assert!(
            text.contains("unreachable") && !text.contains("migration"),
            "{text}"
        );
    }
}

/// Loses a pooled connection: if the caller's future is dropped, sqlx drops the connection that it
/// is just testing.
async fn lose_connection(db: &DatabaseConnection) {
    let mut acquire = Box::pin(db.get_sqlite_connection_pool().acquire());
    std::future::poll_fn(|context| {
        let _ = acquire.as_mut().poll(context);
        std::task::Poll::Ready(())
    })
    .await;
}

async fn survives(db: &DatabaseConnection) -> bool {
    for _ in 0..50 {
        lose_connection(db).await;
        if !has_tables(db).await {
            return false;
        }
    }
    true
}

fn in_memory(address: &str) -> ConnectOptions {
    let mut options = ConnectOptions::new(address);
    options.max_connections(1).sqlx_logging(false);
    options
}

async fn has_tables(db: &DatabaseConnection) -> bool {
    db.execute_unprepared("SELECT 1 FROM outbox_messages")
        .await
        .is_ok()
}

#[tokio::test]
async fn store_keeps_a_shared_database_in_memory() {
    let db = Database::connect(in_memory("sqlite::memory:")).await.unwrap();
    migration::migrate(&db).await.unwrap();
    let store = SqlStore::new(db.clone());
    store.preflight(false).await.unwrap();
    assert!(survives(&db).await);
    drop(store);
    eventually("the loss of the database", async || !survives(&db).await).await;
}

#[tokio::test]
async fn connect_keeps_an_in_memory_database() {
    for address in ["sqlite::memory:", "sqlite://kept?mode=memory"] {
        let db = connect(in_memory(address)).await.unwrap();
        migration::migrate(&db).await.unwrap();
        assert!(survives(&db).await, "{address}");
        SqlStore::new(db).preflight(false).await.unwrap();
    }
}

#[tokio::test]
async fn pool_that_can_lose_its_database_is_refused() {
    let db = Database::connect(in_memory("sqlite://lost?mode=memory"))
        .await
        .unwrap();
    migration::migrate(&db).await.unwrap();
    let refused = SqlStore::new(db).preflight(false).await;
    assert!(matches!(refused, Err(StoreError::Setup { .. })), "{refused:?}");
}
