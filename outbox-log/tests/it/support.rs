//! A separate outbox per test, a writer that lists its messages, and a checker.

use std::collections::{BTreeMap, HashSet};
use std::future::Future;
use std::sync::Mutex;
use std::time::Duration;

use outbox_core::shutdown::CancellationToken;
use outbox_core::{Events, IntoEvents, RelayConfig, RelayReport, SetupKind};
use outbox_log::{LogConfig, LogError, LogHealthCheck, LogRelay, PostgresLog};
use outbox_sea_orm::migration;
use outbox_sea_orm::{OutboxConfig, OutboxConnection, SqlStore};
use outbox_testing::conformance::probe::Probe;
use outbox_testing::{MemoryBroker, MemoryPublisher, backend_url};
use sea_orm::{ConnectOptions, ConnectionTrait as _, Database, DatabaseConnection, DbBackend, Statement};
use uuid::Uuid;

const PAGE: &str = include_str!("../../../docs/reference/rights.md");

pub(crate) const SOON: Duration = Duration::from_secs(60);

pub(crate) struct Place {
    pub(crate) name: String,
    pub(crate) url: String,
    pub(crate) db: DatabaseConnection,
    pub(crate) broker: MemoryBroker,
    committed: Mutex<BTreeMap<String, u64>>,
}

impl Place {
    pub(crate) async fn open() -> Option<Self> {
        let place = Self::without_log().await?;
        init(&place.log()).await;
        Some(place)
    }

    pub(crate) async fn without_log() -> Option<Self> {
        Self::at_isolation("read committed").await
    }

    pub(crate) async fn at_isolation(level: &'static str) -> Option<Self> {
        let place = Self::empty(level).await?;
        migration::migrate(&place.db).await.unwrap();
        Some(place)
    }

    async fn empty(isolation: &'static str) -> Option<Self> {
        let url = backend_url("OUTBOX_TEST_POSTGRES_LOGICAL_URL")?;
        let name = format!("t{}", &Uuid::now_v7().simple().to_string()[14..]);
        let admin = Database::connect(&url).await.unwrap();
        admin
            .execute_unprepared(&format!("CREATE SCHEMA {name}"))
            .await
            .unwrap();
        let mut options = ConnectOptions::new(&url);
        options
            .max_connections(12)
            .sqlx_logging(false)
            .set_schema_search_path(search_path(&name));
        options.map_sqlx_postgres_opts(move |options| {
            options.options([("default_transaction_isolation", isolation)])
        });
        Some(Self {
            db: Database::connect(options).await.unwrap(),
            name,
            url,
            broker: MemoryBroker::new(),
            committed: Mutex::default(),
        })
    }

    pub(crate) fn log(&self) -> PostgresLog {
        self.log_over(&self.db, &self.url)
    }

    pub(crate) fn log_over(&self, db: &DatabaseConnection, url: &str) -> PostgresLog {
        PostgresLog::new(db.clone(), url)
            .unwrap()
            .named(&self.name)
            .unwrap()
    }

    /// Creates a login with the permissions of `roles`. All tests share the logins.
    pub(crate) async fn log_in(&self, login: &str, roles: &[&str]) -> (DatabaseConnection, String) {
        let attributes = match roles.contains(&"log-relay") {
            true => "LOGIN REPLICATION",
            false => "LOGIN",
        };
        self.execute(&format!(
            "DO $$ BEGIN CREATE ROLE {login} {attributes} PASSWORD 'secret'; EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $$"
        ))
        .await;
        self.execute(&format!("GRANT USAGE ON SCHEMA {} TO {login}", self.name))
            .await;
        for (rights, table) in documented(roles) {
            self.execute(&format!("GRANT {rights} ON {table} TO {login}"))
                .await;
        }
        let (scheme, rest) = self.url.split_once("://").unwrap();
        let (_, server) = rest.rsplit_once('@').unwrap();
        let url = format!("{scheme}://{login}:secret@{server}");
        let mut options = ConnectOptions::new(&url);
        options
            .max_connections(8)
            .sqlx_logging(false)
            .set_schema_search_path(search_path(&self.name));
        (Database::connect(options).await.unwrap(), url)
    }

    pub(crate) async fn one_connection(&self) -> DatabaseConnection {
        let mut options = ConnectOptions::new(&self.url);
        options
            .max_connections(1)
            .sqlx_logging(false)
            .set_schema_search_path(search_path(&self.name));
        Database::connect(options).await.unwrap()
    }

    pub(crate) fn relay(&self) -> LogRelay<SqlStore, PostgresLog, MemoryPublisher> {
        let log_config = LogConfig::default().checkpoint_every(Duration::from_millis(100));
        LogRelay::new(
            SqlStore::new(self.db.clone()),
            self.log(),
            self.broker.publisher(),
        )
        .with_config(quick())
        .with_log_config(log_config)
    }

    pub(crate) async fn run(&self, scenario: impl Future<Output = ()>) -> RelayReport {
        let (relay, shutdown) = (self.relay(), CancellationToken::new());
        let scenario = async {
            scenario.await;
            shutdown.cancel();
        };
        let (report, ()) = tokio::join!(relay.run(shutdown.clone()), scenario);
        report.unwrap()
    }

    pub(crate) async fn publish_and_pass(&self) {
        let passed =
            "SELECT count(*) FROM outbox_messages m, outbox_log l WHERE age(m.xmin) > age(l.passed_xid::xid)";
        let scenario = async {
            while self.number(passed).await < 6 {
                self.write(0..3, 2).await;
                self.published().await;
                sleep(100).await;
            }
        };
        self.run(async { tokio::time::timeout(SOON, scenario).await.unwrap() })
            .await;
    }

    pub(crate) async fn record(&self, events: impl IntoEvents) {
        let outbox = OutboxConnection::new(self.db.clone(), OutboxConfig::default());
        let tx = outbox.begin().await.unwrap();
        outbox_sea_orm::record(&tx, events).await.unwrap();
        tx.commit().await.unwrap();
    }

    pub(crate) async fn write(&self, aggregates: std::ops::Range<u32>, each: u64) {
        for _ in 0..each {
            for aggregate in aggregates.clone() {
                self.write_of(&aggregate.to_string(), 1).await;
            }
        }
    }

    pub(crate) async fn write_of(&self, aggregate: &str, count: u64) {
        let before = self
            .committed
            .lock()
            .unwrap()
            .get(aggregate)
            .copied()
            .unwrap_or_default();
        let mut events = Events::new();
        for n in 1..=count {
            events.push(Probe::noted(aggregate, before + n));
        }
        self.record(events).await;
        *self
            .committed
            .lock()
            .unwrap()
            .entry(aggregate.to_owned())
            .or_default() += count;
    }

    pub(crate) fn count_committed(&self, aggregates: &[String], each: u64) {
        let counts = aggregates.iter().map(|aggregate| (aggregate.clone(), each));
        self.committed.lock().unwrap().extend(counts);
    }

    pub(crate) fn written(&self) -> u64 {
        self.committed.lock().unwrap().values().sum()
    }

    pub(crate) async fn published(&self) {
        let wait = async {
            while self.missing() > 0 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let waited = tokio::time::timeout(SOON, wait).await;
        assert!(
            waited.is_ok(),
            "{} of {} are missing",
            self.missing(),
            self.written()
        );
    }

    fn missing(&self) -> u64 {
        let arrived = self.arrived();
        let committed = self.committed.lock().unwrap();
        let of = |aggregate: &String| {
            arrived
                .get(aggregate)
                .map_or(0, |sequences| sequences.len() as u64)
        };
        committed
            .iter()
            .map(|(aggregate, count)| count.saturating_sub(of(aggregate)))
            .sum()
    }

    fn arrived(&self) -> BTreeMap<String, Vec<u64>> {
        let (mut arrived, mut known) = (BTreeMap::<String, Vec<u64>>::new(), HashSet::new());
        for message in self.broker.messages() {
            if known.insert(message.id) {
                let of_aggregate = arrived.entry(message.aggregate.id).or_default();
                of_aggregate.push(message.sequence.unwrap_or_default());
            }
        }
        arrived
    }

    pub(crate) fn assert_balanced(&self) {
        let committed = self.committed.lock().unwrap().clone();
        let expected: BTreeMap<String, Vec<u64>> = committed
            .iter()
            .map(|(aggregate, count)| (aggregate.clone(), (1..=*count).collect()))
            .collect();
        for (aggregate, sequences) in self.arrived() {
            assert_eq!(Some(&sequences), expected.get(&aggregate), "{aggregate}");
        }
        assert_eq!(self.missing(), 0);
    }

    pub(crate) fn copies(&self) -> usize {
        let first: usize = self.arrived().values().map(Vec::len).sum();
        self.broker.messages().len() - first
    }

    pub(crate) async fn execute(&self, sql: &str) {
        let done = self.db.execute_unprepared(sql).await;
        done.unwrap_or_else(|error| panic!("{sql}: {error}"));
    }

    pub(crate) async fn number(&self, sql: &str) -> i64 {
        let statement = Statement::from_string(DbBackend::Postgres, format!("SELECT ({sql})::bigint AS n"));
        self.db
            .query_one_raw(statement)
            .await
            .unwrap()
            .unwrap()
            .try_get("", "n")
            .unwrap()
    }

    pub(crate) async fn rows(&self, status: i16) -> i64 {
        let sql = format!("SELECT count(*) FROM outbox_messages WHERE status = {status}");
        self.number(&sql).await
    }

    pub(crate) async fn end_session(&self) {
        let sql = format!(
            "SELECT pg_catalog.count(pg_terminate_backend(active_pid)) FROM pg_replication_slots WHERE slot_name = '{}_log' AND active",
            self.name
        );
        self.number(&sql).await;
    }

    pub(crate) async fn drop_slot(&self) {
        let sql = format!("SELECT pg_catalog.pg_drop_replication_slot('{}_log')", self.name);
        self.execute(&sql).await;
    }

    pub(crate) async fn close_balanced(self) {
        self.assert_balanced();
        self.close().await;
    }

    pub(crate) async fn close(self) {
        self.log().drop().await.unwrap();
        self.execute(&format!("DROP SCHEMA {} CASCADE", self.name)).await;
    }
}

fn search_path(schema: &str) -> String {
    let more = std::env::var("OUTBOX_TEST_SEARCH_PATH").unwrap_or_default();
    format!("{schema}{more}")
}

/// Returns the (object, permissions) pairs of `roles`, from the table that `outbox print grants`
/// prints.
fn documented(roles: &[&str]) -> Vec<(&'static str, &'static str)> {
    let (_, table) = PAGE.split_once("| role | on | rights | for |").unwrap();
    let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    let found: Vec<_> = rows
        .map(|row| Vec::from_iter(row.split('|').map(|cell| cell.trim().trim_matches('`'))))
        .filter(|cells| roles.contains(&cells[1]) && cells[2].starts_with("outbox_"))
        .map(|cells| (cells[3], cells[2]))
        .collect();
    assert!(!found.is_empty(), "{roles:?}");
    found
}

pub(crate) fn quick() -> RelayConfig {
    RelayConfig::default()
        .lease_ttl(Duration::from_millis(1_500))
        .poll_max(Duration::from_millis(200))
}

/// Sets up a log with retries. The slot waits for all transactions of the server, including
/// transactions of other tests, possibly longer than `init` waits.
pub(crate) async fn init(log: &PostgresLog) {
    for _ in 0..3 {
        match log.init().await {
            Err(LogError::Setup(problem)) if problem.kind == SetupKind::OpenTransactions => {}
            done => return done.unwrap(),
        }
    }
    log.init().await.unwrap();
}

pub(crate) async fn until_reads(health: &LogHealthCheck) {
    let wait = async {
        while !health.status().reads {
            sleep(10).await;
        }
    };
    let waited = tokio::time::timeout(SOON, wait).await;
    assert!(waited.is_ok(), "{:?}", health.status());
}

pub(crate) async fn sleep(millis: u64) {
    tokio::time::sleep(Duration::from_millis(millis)).await;
}
