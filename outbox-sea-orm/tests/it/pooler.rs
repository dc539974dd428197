//! PostgreSQL behind a real PgBouncer: shared sessions are refused by name, and kept sessions work.

use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use outbox_core::shutdown::CancellationToken;
use outbox_core::{Relay, RelayError, StoreError};
use outbox_sea_orm::{ConnectError, SqlStore, connect, reach};
use outbox_testing::conformance::probe::Probe;
use outbox_testing::{MemoryBroker, backend_url, eventually, free_port};
use sea_orm::{ConnectOptions, Database};
use tempfile::TempDir;

use crate::support::{Backend, TestDb};

const SOON: Duration = Duration::from_secs(60);

/// A PgBouncer of this test, before the server of a test. It is killed when the test ends.
struct Bouncer {
    child: Child,
    url: String,
    _folder: TempDir,
}

impl Drop for Bouncer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Bouncer {
    /// `None` without the program, and the test is skipped. `server`: its port.
    async fn start(url: &str, server: u16, settings: &str) -> Option<Self> {
        let program = backend_url("OUTBOX_TEST_PGBOUNCER_BIN")?;
        let folder = tempfile::tempdir().unwrap();
        let port = free_port();
        let file = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let users = file("users", "\"postgres\" \"\"\n");
        let config = file(
            "pgbouncer.ini",
            &format!(
                "[databases]\n* = host=127.0.0.1 port={server}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\n\
                 unix_socket_dir =\nauth_type = trust\nauth_file = {}\nserver_login_retry = 1\n{settings}\n",
                users.display()
            ),
        );
        let mut command = Command::new(program);
        // It refuses to run as root.
        if is_root() {
            open_to_all(folder.path());
            command.args(["-u", "nobody"]);
        }
        let child = command
            .arg("-q")
            .arg(config)
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let bouncer = Self {
            child,
            url: with_port(url, port),
            _folder: folder,
        };
        eventually("the pooler", async || {
            TcpStream::connect(("127.0.0.1", port)).is_ok()
        })
        .await;
        Some(bouncer)
    }

    /// A pool as services open one without this library.
    async fn store(&self, test: &TestDb) -> SqlStore {
        let mut options = ConnectOptions::new(&self.url);
        options.connect_lazy(true);
        let store = SqlStore::new(Database::connect(options).await.unwrap());
        store.with_names(&test.names).unwrap()
    }
}

fn is_root() -> bool {
    let output = Command::new("id").arg("-u").output().unwrap();
    output.stdout == b"0\n"
}

#[cfg(unix)]
fn open_to_all(folder: &Path) {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o755)).unwrap();
}

#[cfg(not(unix))]
fn open_to_all(_: &Path) {}

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
        text.contains("through a pooler") && text.contains("sessions are shared"),
        "{text}"
    );
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
        text.contains("through a pooler") && text.contains("refuses the parameters"),
        "{text}"
    );
    let separator = if bouncer.url.contains('?') { '&' } else { '?' };
    let url = format!("{}{separator}options[statement_timeout]=1000", bouncer.url);
    let connected = tokio::time::timeout(SOON, connect(url)).await;
    let error = connected.expect("no waiting").unwrap_err();
    assert!(matches!(error, ConnectError::Pooler { .. }), "{error:?}");
}

#[tokio::test]
async fn sessions_that_a_pooler_keeps_work() {
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

/// The pooler reports the outage with the code of a refused parameter.
#[tokio::test]
async fn an_outage_behind_a_pooler_passes() {
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
