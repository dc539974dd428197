//! A private database and stream per test, and the program as a child process.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};

use outbox::nats::async_nats::jetstream;
use outbox::prelude::*;
use outbox::testing::{backend_url, eventually};
use sea_orm::TransactionTrait as _;
use sea_orm::{ConnectOptions, ConnectionTrait as _, Database, DatabaseConnection, DbBackend, Statement};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use uuid::Uuid;

#[derive(Debug, Clone, Copy)]
pub(crate) enum Kind {
    Postgres,
    Logical,
    MariaDb,
    Sqlite,
}

macro_rules! on_each_database {
    ($($test:ident),* $(,)?) => {
        $(crate::place::on_databases!($test: postgres Postgres, mariadb MariaDb, sqlite Sqlite);)*
    };
}

macro_rules! on_both_servers {
    ($($test:ident),* $(,)?) => {
        $(crate::place::on_databases!($test: postgres Postgres, mariadb MariaDb);)*
    };
}

macro_rules! on_databases {
    ($test:ident: $($name:ident $kind:ident),*) => {
        mod $test {
            $(#[tokio::test]
            async fn $name() {
                super::$test(crate::place::Kind::$kind).await;
            })*
        }
    };
}

pub(crate) use {on_both_servers, on_databases, on_each_database};

pub(crate) struct Place {
    pub(crate) name: String,
    pub(crate) nats: String,
    pub(crate) url: String,
    pub(crate) schema: Option<String>,
    pub(crate) db: DatabaseConnection,
    pub(crate) folder: TempDir,
    drop: Option<String>,
}

impl Place {
    pub(crate) async fn open(kind: Kind) -> Option<Self> {
        let nats = backend_url("OUTBOX_TEST_NATS_URL")?;
        let name = format!("t{}", &Uuid::now_v7().simple().to_string()[14..]);
        let folder = tempfile::tempdir().unwrap();
        let (server, create, drop) = match kind {
            Kind::Postgres | Kind::Logical => (
                backend_url(match kind {
                    Kind::Logical => "OUTBOX_TEST_POSTGRES_LOGICAL_URL",
                    _ => "OUTBOX_TEST_POSTGRES_URL",
                })?,
                Some(format!("CREATE SCHEMA {name}")),
                Some(format!("DROP SCHEMA {name} CASCADE")),
            ),
            Kind::MariaDb => (
                backend_url("OUTBOX_TEST_MARIADB_URL")?,
                Some(format!("CREATE DATABASE {name}")),
                Some(format!("DROP DATABASE {name}")),
            ),
            Kind::Sqlite => {
                let file = folder.path().join("outbox.db");
                (format!("sqlite://{}?mode=rwc", file.display()), None, None)
            }
        };
        let mut options = ConnectOptions::new(&server);
        options.max_connections(3).sqlx_logging(false);
        let mut db = Database::connect(options).await.unwrap();
        if let Some(create) = create {
            db.execute_unprepared(&create).await.unwrap();
        }
        let url = match kind {
            Kind::MariaDb => format!("{}/{name}", server.rsplit_once('/').unwrap().0),
            _ => server,
        };
        if let Kind::MariaDb = kind {
            db = Database::connect(&url).await.unwrap();
        }
        Some(Self {
            schema: matches!(kind, Kind::Postgres | Kind::Logical).then(|| name.clone()),
            name,
            nats,
            url,
            db,
            folder,
            drop,
        })
    }

    pub(crate) fn outbox(&self, name: &str) -> String {
        let schema = self
            .schema
            .as_ref()
            .map(|schema| format!("schema = \"{schema}\"\n"));
        format!(
            "[[outbox]]\nname = \"{name}\"\nmigrate = true\nwriters = true\n{}[outbox.stream]\nname = \"{}\"\nprefix = \"{}\"\n",
            schema.unwrap_or_default(),
            self.name,
            self.name
        )
    }

    pub(crate) async fn record(&self, count: u32) {
        let tx = self.db.begin().await.unwrap();
        for number in 1..=count {
            let sql = match self.db.get_database_backend() {
                DbBackend::Postgres => {
                    format!(
                        "SELECT {}.outbox_record('order', '42', 'placed', '{{\"n\": {number}}}')",
                        self.name
                    )
                }
                DbBackend::MySql => format!(
                    "CALL outbox_record('order', '42', 'placed', '{{\"n\": {number}}}', NULL, NULL, NULL, NULL, NULL, NULL, NULL)"
                ),
                _ => format!(
                    "INSERT INTO outbox_record (aggregate_type, aggregate_id, event_name, payload) VALUES ('order', '42', 'placed', '{{\"n\": {number}}}')"
                ),
            };
            tx.execute_unprepared(&sql).await.unwrap();
        }
        tx.commit().await.unwrap();
    }

    pub(crate) async fn execute(&self, sql: &str) {
        self.db.execute_unprepared(sql).await.unwrap();
    }

    pub(crate) async fn count(&self, table: &str, condition: &str) -> i64 {
        let schema = self.schema.as_ref().map(|schema| format!("{schema}."));
        let sql = format!(
            "SELECT count(*) AS n FROM {}{table} WHERE {condition}",
            schema.unwrap_or_default()
        );
        let statement = Statement::from_string(self.db.get_database_backend(), sql);
        let row = self.db.query_one_raw(statement).await.unwrap().unwrap();
        row.try_get("", "n").unwrap()
    }

    pub(crate) async fn on_stream(&self) -> Vec<String> {
        let client = EventStream::new(&self.name).connect(&self.nats).await.unwrap();
        let Ok(mut stream) = jetstream::new(client).get_stream(&self.name).await else {
            return Vec::new();
        };
        let last = stream.info().await.unwrap().state.last_sequence;
        let mut payloads = Vec::new();
        for sequence in 1..=last {
            let message = stream.get_raw_message(sequence).await.unwrap();
            payloads.push(String::from_utf8_lossy(&message.payload).into_owned());
        }
        payloads
    }

    pub(crate) async fn close(self) {
        let client = EventStream::new(&self.name).connect(&self.nats).await.unwrap();
        let _ = jetstream::new(client).delete_stream(&self.name).await;
        if let Some(drop) = &self.drop {
            self.db.execute_unprepared(drop).await.unwrap();
        }
        self.db.close().await.unwrap();
    }
}

pub(crate) struct Program {
    child: Child,
    log: Arc<Mutex<String>>,
    _folder: TempDir,
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Program {
    pub(crate) fn start(config: &str, variables: &[(&str, &str)]) -> Self {
        Self::start_by(Command::new(env!("CARGO_BIN_EXE_outbox")), config, variables)
    }

    pub(crate) fn start_by(mut command: Command, config: &str, variables: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file: PathBuf = folder.path().join("outbox.toml");
        std::fs::write(&file, format!("[http]\naddress = \"127.0.0.1:0\"\n{config}")).unwrap();
        let mut child = command
            .args(["relay", "run", "--config"])
            .arg(&file)
            .env_clear()
            .envs(variables.iter().copied())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let log = Arc::new(Mutex::new(String::new()));
        let (stderr, lines) = (child.stderr.take().unwrap(), log.clone());
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                let mut log = lines.lock().unwrap();
                log.push_str(&line);
                log.push('\n');
            }
        });
        Self {
            child,
            log,
            _folder: folder,
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    pub(crate) fn address(&self) -> Option<String> {
        let log = self.log();
        let (_, after) = log.split_once("address=")?;
        after.split_whitespace().next().map(str::to_owned)
    }

    pub(crate) async fn get(&self, path: &str) -> (u16, String) {
        let Some(address) = self.address() else {
            return (0, String::new());
        };
        let mut stream = tokio::net::TcpStream::connect(&address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        let status = answer.split_whitespace().nth(1).unwrap().parse().unwrap();
        (status, answer)
    }

    pub(crate) async fn until_ready(&mut self) {
        let mut child_ended = None;
        eventually("readiness", async || {
            child_ended = self.child.try_wait().unwrap();
            child_ended.is_some() || self.get("/readyz").await.0 == 200
        })
        .await;
        assert_eq!(child_ended, None, "{}", self.log());
    }

    #[cfg(unix)]
    pub(crate) fn terminate(&self) {
        rustix::process::kill_process(
            rustix::process::Pid::from_child(&self.child),
            rustix::process::Signal::TERM,
        )
        .unwrap();
    }

    pub(crate) async fn end(&mut self) -> ExitStatus {
        let mut status = None;
        eventually("the end of the program", async || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        })
        .await;
        status.unwrap()
    }

    pub(crate) async fn failure(&mut self) -> (Option<i32>, String) {
        let status = self.end().await;
        eventually("the error", async || self.log().contains("error: ")).await;
        (status.code(), self.log())
    }
}
