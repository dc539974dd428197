//! Programs that start before their database, and refused logins.

use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use outbox_core::shutdown::CancellationToken;
use outbox_core::{OutboxStore as _, Relay, RelayError, SetupKind, StoreError};
use outbox_sea_orm::{ConnectError, SaveError, SqlStore, connect, migration};
use outbox_testing::conformance::probe::Probe;
use outbox_testing::{MemoryBroker, eventually, free_port, not_applicable};
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

/// On MariaDB equal to an unknown user. On PostgreSQL, the server of `cargo xtask test` requires a
/// password only from members of `outbox_password`.
#[tokio::test]
async fn a_wrong_password_is_refused_like_an_unknown_user() {
    let Some(test) = TestDb::open(Backend::Postgres, "wrong_password").await else {
        return;
    };
    let user = format!("u{}", &uuid::Uuid::now_v7().simple().to_string()[14..]);
    test.execute(&format!(
        "DO $$ BEGIN CREATE ROLE outbox_password; EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $$; \
         SET LOCAL password_encryption = 'scram-sha-256'; CREATE ROLE {user} LOGIN PASSWORD 'right' IN ROLE outbox_password"
    ))
    .await;
    let wrong = as_stranger(test.url()).replace("stranger", &user);
    connect(wrong.replace("hunter2", "right")).await.unwrap();
    if connect(&wrong).await.is_ok() {
        not_applicable("this PostgreSQL asks for no password");
    } else {
        is_refused_at_once(&wrong, &user).await;
        is_refused_at_the_start(&wrong, &user).await;
    }
    test.execute(&format!("DROP ROLE {user}")).await;
}

#[tokio::test]
async fn unreachable_database_is_named_with_the_reason() {
    for backend in SERVERS {
        let Some(test) = TestDb::open(backend, "away").await else {
            continue;
        };
        let port = free_port();
        let url = test
            .url()
            .replace(server_of(test.url()), &format!("127.0.0.1:{port}"));
        let mut options = ConnectOptions::new(url);
        options.connect_lazy(true);
        let store = SqlStore::new(Database::connect(options).await.unwrap());
        let error = outbox_core::OutboxStore::backlog(&store).await.unwrap_err();
        let text = outbox_core::describe(&error);
        assert!(
            text.contains(&format!("127.0.0.1:{port}")) && text.contains("refused"),
            "{text}"
        );
        assert_eq!(text.matches("refused").count(), 1, "each cause once: {text}");
    }
}

#[cfg(unix)]
#[tokio::test(start_paused = true)]
async fn unreachable_database_is_named_after_a_second() {
    let folder = tempfile::tempdir().unwrap();
    // A socket without a listener refuses connections.
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

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn statements_are_not_logged_at_level_info() {
    for backend in SERVERS {
        let Some(test) = TestDb::open(backend, "statements").await else {
            continue;
        };
        let log = Log::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing_subscriber::filter::LevelFilter::INFO)
            .with_writer(move || writer.clone());
        // With only one subscriber, tracing caches the interest of the first thread.
        let _second = tracing::Dispatch::new(tracing_subscriber::registry());
        let _here = tracing::subscriber::set_default(subscriber.finish());
        let (quiet, loud) = (
            connect(test.url()).await.unwrap(),
            Database::connect(test.url()).await.unwrap(),
        );
        quiet.execute_unprepared("SELECT 4711").await.unwrap();
        loud.execute_unprepared("SELECT 4712").await.unwrap();
        let log = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
        let is_told = |line: &str| line.contains("INFO") && line.contains("SELECT 4711");
        assert!(log.contains("SELECT 4712") && !log.lines().any(is_told), "{log}");
    }
}

/// In an outage, "run the migration" would mislead.
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

/// sqlx drops the connection under test if the caller's future is dropped.
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
