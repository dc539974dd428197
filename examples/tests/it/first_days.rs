//! The start and the end of a service: servers that start later, a wrong password, and Ctrl-C.
//!
//! Example 16 runs as a process, on its own database. Before a server starts, its port has no
//! listener.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStderr, ChildStdout, Stdio};

use outbox::testing::{backend_url, free_port};
use outbox_test_servers::Server;
use rustix::process::{Pid, Signal, kill_process};
use sea_orm::{
    ConnectionTrait as _, Database, DatabaseConnection, DatabaseTransaction, TransactionTrait as _,
};

use crate::examples::example;
use crate::own_database::OwnDatabase;

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

struct Service {
    process: Child,
    stdout: BufReader<ChildStdout>,
    stderr: BufReader<ChildStderr>,
    log: String,
}

impl Service {
    fn start(database: &str, nats: &str) -> Self {
        let mut process = example("16_postgres_jetstream")
            .envs([("DATABASE_URL", database), ("NATS_URL", nats), ("NO_COLOR", "1")])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        Self {
            stdout: BufReader::new(process.stdout.take().unwrap()),
            stderr: BufReader::new(process.stderr.take().unwrap()),
            process,
            log: String::new(),
        }
    }

    fn says(&mut self, texts: &[&str]) -> String {
        loop {
            let mut line = String::new();
            let read = self.stderr.read_line(&mut line).unwrap();
            assert!(read > 0, "the program ended without {texts:?}:\n{}", self.log);
            self.log.push_str(&line);
            if texts.iter().all(|text| line.contains(text)) {
                return line;
            }
        }
    }

    fn prints(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        line
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).unwrap();
    }

    fn end(mut self) -> (bool, String) {
        self.stderr.read_to_string(&mut self.log).unwrap();
        (
            self.process.wait().unwrap().success(),
            std::mem::take(&mut self.log),
        )
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.process.kill();
    }
}

async fn lock_stock(db: &DatabaseConnection) -> DatabaseTransaction {
    let tx = db.begin().await.unwrap();
    tx.execute_unprepared("SELECT * FROM example_16.stock FOR UPDATE")
        .await
        .unwrap();
    tx
}

async fn count(db: &impl sea_orm::ConnectionTrait, sql: &str) -> i64 {
    let statement = sea_orm::Statement::from_string(sea_orm::DbBackend::Postgres, sql);
    let row = db.query_one_raw(statement).await.unwrap().unwrap();
    row.try_get_by_index(0).unwrap()
}

/// The program starts before the database, and the database before NATS. Then the handler hangs,
/// and the user presses Ctrl-C twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn program_waits_for_servers_and_ends_at_second_ctrl_c() {
    let Some(binary) = backend_url("OUTBOX_TEST_NATS_OLD_BIN") else {
        return;
    };
    let Some(own) = OwnDatabase::create("first_days").await else {
        return;
    };
    let database_port = free_port();
    let mut nats = Server::nats(Path::new(&binary)).unwrap();
    let mut service = Service::start(&own.behind(database_port), nats.url());

    service.says(&["waiting for the database", &database_port.to_string(), "refused"]);
    forward(database_port, own.server()).await;
    service.says(&["the database answers"]);
    service.says(&["waiting for nats", &nats.port().to_string(), "refused"]);
    let db = Database::connect(&own.url).await.unwrap();
    let lock = lock_stock(&db).await;
    nats.start().await.unwrap();
    assert_eq!(service.prints(), "saved order 1\n");
    // Each query uses a separate transaction, because PostgreSQL returns the same sessions
    // throughout one transaction.
    let waiting = "SELECT count(*) FROM pg_stat_activity \
                   WHERE datname = current_database() AND cardinality(pg_blocking_pids(pid)) > 0";
    while count(&db, waiting).await == 0 {
        tokio::task::yield_now().await;
    }

    service.signal(Signal::INT);
    service.says(&["waiting for running handlers", "reserve_stock", "10s"]);
    service.signal(Signal::INT);
    service.says(&["stopping at once"]);
    service.says(&["cancelled and rolled back", "second signal"]);
    let (succeeded, log) = service.end();
    assert!(succeeded, "{log}");
    assert!(!log.contains("shutdown timeout"), "{log}");
    lock.rollback().await.unwrap();
    let units = "SELECT units::bigint FROM example_16.stock";
    assert_eq!(count(&db, units).await, 39, "rolled back");
    assert_eq!(
        count(
            &db,
            "SELECT count(*) FROM example_16.inbox_messages WHERE status = 1"
        )
        .await,
        0
    );
    for what in ["waiting for the database", "waiting for nats"] {
        assert_eq!(log.matches(what).count(), 1, "said once: {log}");
    }

    // The next process handles the remaining event.
    let mut service = Service::start(&own.url, nats.url());
    assert_eq!(service.prints(), "saved order 1\n");
    assert!(service.prints().starts_with("reserved 2 chai"), "{}", service.log);
    service.signal(Signal::TERM);
    assert!(service.end().0);
    db.close().await.unwrap();
    own.remove().await;
}

/// A rejected login is permanent. The error contains server and user, but no password.
#[test]
fn rejected_login_ends_the_program_with_a_readable_error() {
    let Some(url) = backend_url("OUTBOX_TEST_POSTGRES_URL") else {
        return;
    };
    let (_, server) = url.rsplit_once('@').unwrap();
    let stranger = format!("postgres://nobody_knows_me:hunter2@{server}");
    let (succeeded, log) = Service::start(&stranger, "nats://127.0.0.1:1").end();
    assert!(!succeeded);
    let host = server.split('/').next().unwrap();
    assert!(
        log.contains(&format!(
            "Error: PostgreSQL server {host} (user `nobody_knows_me`"
        )) && log.contains("refuses the login; correct user, password"),
        "{log}"
    );
    assert!(
        !log.contains("hunter2") && !log.contains("PgDatabaseError"),
        "{log}"
    );
    let reason = "role \"nobody_knows_me\" does not exist";
    assert_eq!(log.matches(reason).count(), 1, "each cause once: {log}");
}
