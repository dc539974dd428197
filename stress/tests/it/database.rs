//! A database server that is killed and started again under a relay and a consumer.
//!
//! Method: the test starts a server of its own, with a data folder of its own. A writer keeps its own list: what it knows to be committed, and what may
//! be, because the server died during the commit. Three times the server and all its processes get SIGKILL. In the end each order that is known to be
//! committed has had one effect, each other effect belongs to an order that may be, and none is there twice.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use outbox_core::retry::Backoff;
use outbox_core::shutdown::CancellationToken;
use outbox_core::testing::{backend_url, free_port};
use outbox_core::{DomainEvent, Relay, RelayConfig};
use outbox_inbox::{Event, HandlerError, Inbox, InboxConfig, Router, Tx, idempotent_handler};
use outbox_nats::{EventStream, connect, connect_options};
use outbox_sea_orm::{OutboxConfig, OutboxConnection, SqlStore};
use rustix::process::{Pid, Signal, kill_process};
use sea_orm::{ConnectOptions, ConnectionTrait as _, Database, DatabaseConnection, Statement};
use serde::{Deserialize, Serialize};
use tempfile::TempDir;
use tokio::net::TcpStream;

/// A bound for every step.
pub(crate) const SOON: Duration = Duration::from_secs(60);
const ORDERS: i64 = 300;
/// The server is killed after each of these orders.
const KILLED_AFTER: [i64; 3] = [60, 140, 220];

#[derive(Debug, DomainEvent, Serialize, Deserialize)]
#[domain_event(aggregate = "order", name = "paid")]
struct Paid {
    #[domain_event(aggregate_id)]
    customer: i64,
    order: i64,
}

/// The table has no unique key, so a second effect shows.
#[idempotent_handler(consumer = "ledger")]
async fn book(event: Event<Paid>, tx: Tx<'_>) -> Result<(), HandlerError> {
    let order = event.order;
    tx.execute_unprepared(&format!("INSERT INTO effects VALUES ({order})"))
        .await?;
    Ok(())
}

/// A server with a data folder of its own, which survives the server.
pub(crate) struct Server {
    folder: TempDir,
    port: u16,
    /// The command line that starts it, and the user that it runs as.
    words: Vec<String>,
    user: Option<u32>,
    process: Option<Child>,
    pub(crate) url: String,
}

impl Server {
    fn postgres(program: &Path) -> Self {
        let (folder, user, port) = prepare("postgres");
        let data = folder.path().join("data");
        let initdb = [
            "--username=postgres",
            "--auth=trust",
            "--encoding=UTF8",
            "--locale=C",
            "--no-sync",
            "-D",
        ];
        let mut command = as_user(&program.with_file_name("initdb"), user, folder.path());
        run(command.args(initdb).arg(&data));
        // Nothing is synced to the disk: what the server has written is safe with the kernel, which is not killed.
        let settings = [
            "listen_addresses=127.0.0.1",
            "unix_socket_directories=",
            "fsync=off",
        ];
        let mut words = vec![
            text(program),
            "-D".to_owned(),
            text(&data),
            "-p".to_owned(),
            port.to_string(),
        ];
        words.extend(
            settings
                .iter()
                .flat_map(|setting| ["-c".to_owned(), (*setting).to_owned()]),
        );
        let url = format!("postgres://postgres@127.0.0.1:{port}/postgres");
        Self::new(folder, port, words, user, url)
    }

    pub(crate) fn mariadb(program: &Path) -> Self {
        let (folder, user, port) = prepare("mysql");
        let data = folder.path().join("data");
        let mut command = as_user(
            &beside_or_on_path(program, "mariadb-install-db"),
            user,
            folder.path(),
        );
        let options = [
            "--no-defaults",
            "--force",
            "--skip-test-db",
            "--skip-name-resolve",
        ];
        // Its temporary tables are named by a process id, so two that share a folder disturb each other.
        run(command
            .env("TMPDIR", folder.path())
            .args(options)
            .arg("--auth-root-authentication-method=normal")
            .arg(format!("--datadir={}", text(&data))));
        let account = folder.path().join("account.sql");
        let sql = "CREATE DATABASE IF NOT EXISTS shop; CREATE USER IF NOT EXISTS 'shop'@'127.0.0.1' IDENTIFIED BY 'shop';\n\
                   GRANT ALL PRIVILEGES ON *.* TO 'shop'@'127.0.0.1' WITH GRANT OPTION;\n";
        fs::write(&account, sql.replace("; ", ";\n")).unwrap();
        let words = vec![
            text(program),
            "--no-defaults".to_owned(),
            format!("--datadir={}", text(&data)),
            format!("--tmpdir={}", text(folder.path())),
            format!("--init-file={}", text(&account)),
            format!("--port={port}"),
            "--bind-address=127.0.0.1".to_owned(),
            "--socket=mariadb.sock".to_owned(),
            "--pid-file=mariadb.pid".to_owned(),
            "--skip-name-resolve".to_owned(),
            // Each commit is written to the kernel, which is not killed, and not synced to the disk.
            "--innodb-flush-log-at-trx-commit=2".to_owned(),
        ];
        let url = format!("mysql://shop:shop@127.0.0.1:{port}/shop");
        Self::new(folder, port, words, user, url)
    }

    fn new(folder: TempDir, port: u16, words: Vec<String>, user: Option<u32>, url: String) -> Self {
        Self {
            folder,
            port,
            words,
            user,
            process: None,
            url,
        }
    }

    /// Starts the server and waits until it listens. It may end at once while a process of its predecessor still has the data.
    pub(crate) async fn start(&mut self) {
        let started = async {
            loop {
                let mut process = self.spawn();
                while process.try_wait().unwrap().is_none() {
                    if TcpStream::connect(("127.0.0.1", self.port)).await.is_ok() {
                        return process;
                    }
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            }
        };
        match tokio::time::timeout(SOON, started).await {
            Ok(process) => self.process = Some(process),
            Err(_) => panic!("it does not start:\n{}", self.log()),
        }
    }

    fn spawn(&self) -> Child {
        let mut command = as_user(Path::new(&self.words[0]), self.user, self.folder.path());
        let log = fs::File::options()
            .create(true)
            .append(true)
            .open(self.folder.path().join("log"))
            .unwrap();
        command
            .args(&self.words[1..])
            .stdout(log.try_clone().unwrap())
            .stderr(log);
        command.spawn().unwrap()
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// Kills the server with the processes that it has started, as a machine that loses its power would.
    fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            let children = children(process.id());
            process.kill().unwrap();
            for child in children.into_iter().filter_map(Pid::from_raw) {
                // It may have ended together with its parent.
                let _ = kill_process(child, Signal::KILL);
            }
            process.wait().unwrap();
        }
    }

    pub(crate) async fn connect(&self, connections: u32) -> DatabaseConnection {
        let connected = async {
            loop {
                let mut options = ConnectOptions::new(&self.url);
                options
                    .max_connections(connections)
                    .acquire_timeout(Duration::from_secs(2))
                    .sqlx_logging(false);
                if let Ok(db) = Database::connect(options).await {
                    return db;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        let connected = tokio::time::timeout(SOON, connected).await;
        connected.unwrap_or_else(|_| panic!("no connection to port {}:\n{}", self.port, self.log()))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

fn text(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

/// A folder that the server's user may write to, that user if we are root, and a free port.
fn prepare(name: &str) -> (TempDir, Option<u32>, u16) {
    let folder = tempfile::tempdir().unwrap();
    let is_root = rustix::process::geteuid().is_root();
    let user = is_root.then(|| {
        let output = Command::new("id").args(["-u", name]).output().unwrap();
        String::from_utf8_lossy(&output.stdout).trim().parse().unwrap()
    });
    chown(folder.path(), user, None).unwrap();
    (folder, user, free_port())
}

/// Some servers refuse to run as root.
fn as_user(program: &Path, user: Option<u32>, folder: &Path) -> Command {
    let mut command = Command::new(program);
    command.current_dir(folder).stdin(Stdio::null());
    if let Some(user) = user {
        command.uid(user);
    }
    command
}

fn beside_or_on_path(program: &Path, name: &str) -> PathBuf {
    let beside = program.with_file_name(name);
    if beside.exists() { beside } else { name.into() }
}

/// The processes that a process has started. Without `/proc` there are none to be found; PostgreSQL's then end by themselves.
fn children(parent: u32) -> Vec<i32> {
    let of_parent = |entry: fs::DirEntry| {
        let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
        // The name of the program stands in brackets, and may contain spaces; state and parent follow.
        let (_, rest) = stat.rsplit_once(')')?;
        let is_child = rest.split_whitespace().nth(1)?.parse::<u32>().ok() == Some(parent);
        is_child.then(|| entry.file_name().to_str()?.parse().ok())?
    };
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    processes.filter_map(of_parent).collect()
}

fn run(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// What the writer knows of its orders, by order.
#[derive(Default)]
struct List {
    committed: BTreeSet<i64>,
    /// The commit was not answered.
    undecided: BTreeSet<i64>,
}

/// Records the orders one by one. Where the transaction failed before its commit, the order is recorded again.
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
                // The next statement of everybody meets a dead server: this commit, the relay's settling, the consumer's transactions.
                server.kill();
            }
            match tx.commit().await {
                Ok(()) => list.committed.insert(order),
                Err(_) => list.undecided.insert(order),
            };
            if killed {
                server.start().await;
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
    server.start().await;
    let db = server.connect(4).await;
    outbox_sea_orm::migration::migrate(&db).await.unwrap();
    outbox_inbox::migration::migrate(&db).await.unwrap();
    db.execute_unprepared("CREATE TABLE effects (paid BIGINT NOT NULL)")
        .await
        .unwrap();
    let client = connect(nats_url, connect_options()).await.unwrap();
    let name = format!("killed_{}", server.port);
    let stream = EventStream::new(&name).with_prefix(&name).unwrap();
    stream.provision(&client).await.unwrap();

    let shutdown = CancellationToken::new();
    let relay = Relay::new(
        SqlStore::new(server.connect(4).await),
        stream.publisher(client.clone()),
    )
    .with_config(
        RelayConfig::default()
            .lease_ttl(Duration::from_millis(1_500))
            .poll_max(Duration::from_millis(100)),
    );
    let pause = Duration::from_millis(100);
    let inbox = Inbox::new(server.connect(8).await, stream.subscriber(client.clone()))
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
    let complete = tokio::time::timeout(SOON, complete).await;
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
        "{} of {} orders took effect",
        found.len(),
        list.committed.len()
    );
    assert_eq!((relayed.dead_letters, handled.dead_letters), (0, 0));
    // The commits that the kills met, and hardly any other.
    assert!(!list.undecided.is_empty() && list.committed.len() > 200);
    for (order, times) in &found {
        assert_eq!(*times, 1, "order {order}");
        assert!(
            list.committed.contains(order) || list.undecided.contains(order),
            "nobody paid {order}"
        );
    }
    outbox_nats::async_nats::jetstream::new(client)
        .delete_stream(&name)
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_postgres_loses_and_doubles_nothing() {
    let program = backend_url("OUTBOX_TEST_POSTGRES_BIN");
    if let (Some(program), Some(nats_url)) = (program, backend_url("OUTBOX_TEST_NATS_URL")) {
        check(Server::postgres(Path::new(&program)), &nats_url).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_mariadb_loses_and_doubles_nothing() {
    let program = backend_url("OUTBOX_TEST_MARIADB_BIN");
    if let (Some(program), Some(nats_url)) = (program, backend_url("OUTBOX_TEST_NATS_URL")) {
        check(Server::mariadb(Path::new(&program)), &nats_url).await;
    }
}
