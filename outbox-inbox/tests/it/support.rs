//! Databases, events and handlers for tests. Each test has its own tables.
//!
//! SQLite is always tested, as a file and in memory. PostgreSQL and MariaDB are tested if
//! `OUTBOX_TEST_POSTGRES_URL` and `OUTBOX_TEST_MARIADB_URL` are set, as `cargo xtask test` does.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::BoxFuture;
use outbox_core::retry::Backoff;
use outbox_core::{DomainEvent, Message, NewMessage, Publisher as _};
use outbox_inbox::testing::{Harness, Outcome, dead_letters};
use outbox_inbox::{
    DeadLetter, Event, Handler, HandlerError, HandlerState, Inbox, InboxConfig, Metadata, Outbox, Router,
    StableKey, Tx, idempotent_handler,
};
use outbox_sea_orm::{OutboxTransaction, RecordError, record};
use outbox_testing::{MemoryBroker, backend_url};
use sea_orm::sqlx::ConnectOptions as _;
use sea_orm::{
    ConnAcquireErr, ConnectOptions, ConnectionTrait, Database, DatabaseConnection, DbBackend, DbErr,
    Statement, TransactionError, TransactionSession, TransactionTrait,
};
use serde::{Deserialize, Serialize};
use tempfile::TempDir;
use time::OffsetDateTime;
use tokio::sync::Semaphore;
use uuid::Uuid;

use crate::rights::Login;
use crate::session::{Session, connect};

pub(crate) const SOON: Duration = Duration::from_secs(30);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Backend {
    Sqlite,
    SqliteMemory,
    Postgres,
    MariaDb,
}

/// Defines one test per database from functions over a [`TestDb`].
#[macro_export]
macro_rules! on_every_backend {
    ($($name:ident),* $(,)?) => {
        $crate::on_every_backend!(@module sqlite_memory, SqliteMemory, [$($name),*]);
        $crate::on_every_backend!(@files [$($name),*]);
    };
    (servers only: $($name:ident),* $(,)?) => {
        mod servers {
            use super::*;
            $crate::on_every_backend!(@module postgres, Postgres, [$($name),*]);
            $crate::on_every_backend!(@module mariadb, MariaDb, [$($name),*]);
        }
    };
    (without memory: $($name:ident),* $(,)?) => {
        mod several_pools {
            use super::*;
            $crate::on_every_backend!(@files [$($name),*]);
        }
    };
    (@files $names:tt) => {
        $crate::on_every_backend!(@module sqlite, Sqlite, $names);
        $crate::on_every_backend!(@module postgres, Postgres, $names);
        $crate::on_every_backend!(@module mariadb, MariaDb, $names);
    };
    (@module $module:ident, $backend:ident, [$($name:ident),*]) => {
        mod $module {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $name() {
                    let test = stringify!($name);
                    if let Some(db) = $crate::support::TestDb::open($crate::support::Backend::$backend, test).await {
                        tokio::time::timeout($crate::support::SOON * 2, super::$name(db)).await.expect("the test ends in time");
                    }
                }
            )*
        }
    };
}

#[derive(Debug)]
pub(crate) struct TestDb {
    pub(crate) backend: Backend,
    pub(crate) db: DatabaseConnection,
    url: String,
    name: String,
    session: Session,
    _dir: Option<TempDir>,
    _keeper: Option<sea_orm::sqlx::SqliteConnection>,
}

impl TestDb {
    pub(crate) async fn open_at(backend: Backend, test: &str, isolation: &'static str) -> Option<Self> {
        let mut test = Self::open(backend, test).await?;
        test.session.isolation = Some(isolation);
        test.db = test.connect_again().await;
        Some(test)
    }

    pub(crate) async fn open_with(
        backend: Backend,
        test: &str,
        statements: &'static [&'static str],
    ) -> Option<Self> {
        let mut test = Self::open(backend, test).await?;
        test.session.statements = statements;
        test.db = test.connect_again().await;
        Some(test)
    }

    pub(crate) async fn open_for(backend: Backend, test: &str, login: &'static Login) -> Option<Self> {
        let mut test = Self::open(backend, test).await?;
        login.make(&test).await;
        test.session.login = Some(login);
        Some(test)
    }

    pub(crate) async fn open(backend: Backend, test: &str) -> Option<Self> {
        let test = Self::empty(backend, test).await?;
        outbox_sea_orm::migrate(&test.db)
            .await
            .expect("tables can be created");
        outbox_inbox::migrate(&test.db)
            .await
            .expect("tables can be created");
        test.execute("CREATE TABLE effects (consumer TEXT, order_id BIGINT, stable_key TEXT)")
            .await;
        test.execute("CREATE TABLE markers (id BIGINT PRIMARY KEY)").await;
        Some(test)
    }

    pub(crate) async fn empty(backend: Backend, test: &str) -> Option<Self> {
        let id = Uuid::now_v7().simple().to_string();
        let name = format!("i{}", &id[14..]);
        let (url, dir) = match backend {
            Backend::Sqlite => {
                let dir = tempfile::tempdir().expect("a temporary folder");
                (
                    format!("sqlite://{}?mode=rwc", dir.path().join("inbox.db").display()),
                    Some(dir),
                )
            }
            Backend::SqliteMemory => ("sqlite::memory:".to_owned(), None),
            Backend::Postgres => (backend_url("OUTBOX_TEST_POSTGRES_URL")?, None),
            Backend::MariaDb => (backend_url("OUTBOX_TEST_MARIADB_URL")?, None),
        };
        let create = match backend {
            Backend::Postgres => Some(format!("CREATE SCHEMA {name}")),
            Backend::MariaDb => Some(format!("CREATE DATABASE {name}")),
            _ => None,
        };
        if let Some(create) = create {
            let mut options = ConnectOptions::new(&url);
            options.max_connections(1).sqlx_logging(false);
            let db = Database::connect(options)
                .await
                .expect("the database can be reached");
            db.execute_unprepared(&create)
                .await
                .expect("the rights to create");
            db.close().await.expect("close");
        }
        let db = connect(&url, &name, backend, Session::default(), |_| {}).await;
        if backend == Backend::Sqlite {
            db.execute_unprepared("PRAGMA journal_mode = WAL")
                .await
                .expect("WAL");
        }
        // An in-memory database ends with its last connection.
        let keeper = match backend {
            Backend::SqliteMemory => {
                let options = db.get_sqlite_connection_pool().connect_options();
                Some(options.connect().await.expect("another connection"))
            }
            _ => None,
        };
        println!("{test} uses {backend:?} {name}");
        Some(Self {
            backend,
            db,
            url,
            name,
            session: Session::default(),
            _dir: dir,
            _keeper: keeper,
        })
    }

    /// Connects as another process would. Not for SQLite in memory, where each connection is a
    /// separate database.
    pub(crate) async fn connect_again(&self) -> DatabaseConnection {
        self.connect_with(|_| {}).await
    }

    pub(crate) async fn connect_with(&self, change: impl FnOnce(&mut ConnectOptions)) -> DatabaseConnection {
        connect(&self.url, &self.name, self.backend, self.session, change).await
    }

    pub(crate) async fn pool(&self) -> DatabaseConnection {
        match self.session.login {
            Some(_) => self.connect_again().await,
            None => self.db.clone(),
        }
    }

    pub(crate) fn login(&self) -> Option<&'static Login> {
        self.session.login
    }

    pub(crate) fn connector(&self) -> impl AsyncFn() -> DatabaseConnection + Send + 'static {
        let (url, name, backend) = (self.url.clone(), self.name.clone(), self.backend);
        let session = self.session;
        async move || connect(&url, &name, backend, session, |_| {}).await
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn sql_backend(&self) -> DbBackend {
        self.db.get_database_backend()
    }

    pub(crate) fn inbox(
        &self,
        broker: &MemoryBroker,
        router: Router,
    ) -> Inbox<outbox_testing::MemorySubscriber> {
        Inbox::new(self.db.clone(), broker.subscriber())
            .with_router(router)
            .with_config(quick())
    }

    pub(crate) fn harness(&self, script: &Script) -> Harness {
        Harness::new(self.db.clone())
            .with_state(script.clone())
            .with_config(quick())
    }

    pub(crate) async fn execute(&self, sql: &str) {
        self.db
            .execute_unprepared(sql)
            .await
            .unwrap_or_else(|error| panic!("{sql}: {error}"));
    }

    pub(crate) async fn int(&self, sql: &str) -> i64 {
        int(&self.db, sql).await
    }

    pub(crate) async fn effects(&self, consumer: &str, order_id: u64) -> i64 {
        let sql =
            format!("SELECT count(*) FROM effects WHERE consumer = '{consumer}' AND order_id = {order_id}");
        self.int(&sql).await
    }

    pub(crate) async fn follow_ups(&self) -> i64 {
        self.int("SELECT count(*) FROM outbox_messages").await
    }

    pub(crate) async fn row(&self) -> Option<(i64, i64)> {
        let number = |column| match self.sql_backend() {
            DbBackend::MySql => format!("CAST({column} AS SIGNED)"),
            _ => format!("CAST({column} AS BIGINT)"),
        };
        let sql = format!(
            "SELECT {}, {} FROM inbox_messages",
            number("status"),
            number("attempts")
        );
        let rows = self
            .db
            .query_all_raw(Statement::from_string(self.sql_backend(), sql))
            .await
            .expect("rows");
        assert!(rows.len() <= 1, "{} rows", rows.len());
        let row = rows.first()?;
        Some((
            row.try_get_by_index(0).expect("status"),
            row.try_get_by_index(1).expect("attempts"),
        ))
    }
}

pub(crate) async fn int(db: &DatabaseConnection, sql: &str) -> i64 {
    let statement = Statement::from_string(db.get_database_backend(), sql);
    let row = db
        .query_one_raw(statement)
        .await
        .unwrap_or_else(|error| panic!("{sql}: {error}"));
    row.expect("a row").try_get_by_index(0).expect("an integer")
}

/// Settings with short delays. `ack_wait` exceeds the pauses of a busy machine.
pub(crate) fn quick() -> InboxConfig {
    with_ack_wait(10)
}

pub(crate) fn with_ack_wait(seconds: u64) -> InboxConfig {
    let ack_wait = Duration::from_secs(seconds);
    InboxConfig::default()
        .ack_wait(ack_wait)
        .handler_timeout(ack_wait * 9 / 10)
        .backoff(Backoff {
            min: Duration::from_millis(1),
            max: Duration::from_millis(20),
        })
        .shutdown_timeout(Duration::from_secs(5))
}

pub(crate) fn slow() -> InboxConfig {
    quick().ack_wait(SOON * 4).handler_timeout(SOON * 3)
}

#[derive(Debug, Clone, DomainEvent, Serialize, Deserialize)]
#[domain_event(aggregate = "order", name = "placed", version = 1)]
pub(crate) struct OrderPlaced {
    #[domain_event(aggregate_id)]
    pub(crate) order_id: u64,
    pub(crate) line: u32,
}

#[derive(Debug, Clone, DomainEvent, Serialize, Deserialize)]
#[domain_event(aggregate = "order", name = "booked")]
pub(crate) struct OrderBooked {
    #[domain_event(aggregate_id)]
    pub(crate) order_id: u64,
}

pub(crate) fn placed(order_id: u64) -> OrderPlaced {
    OrderPlaced { order_id, line: 0 }
}

pub(crate) fn message(event: &impl DomainEvent) -> Message {
    NewMessage::from_event(event)
        .expect("the event can be recorded")
        .into_message(Some(1), OffsetDateTime::now_utc())
}

pub(crate) async fn publish(broker: &MemoryBroker, event: &impl DomainEvent) -> Message {
    let message = message(event);
    broker
        .publisher()
        .publish(&message)
        .await
        .expect("the broker takes it");
    message
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    Ok,
    Fail,
    Fatal,
    Hang,
    Gate,
    Interrupted,
}

#[derive(Debug, Clone)]
pub(crate) struct Script(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    steps: Mutex<VecDeque<Step>>,
    otherwise: Mutex<Step>,
    runs: AtomicU32,
    attempts: Mutex<Vec<u32>>,
    lines: Mutex<Vec<(u64, u32)>>,
    running: Semaphore,
    gate: Semaphore,
}

impl Script {
    pub(crate) fn new(steps: impl IntoIterator<Item = Step>, otherwise: Step) -> Self {
        Self(Arc::new(Inner {
            steps: Mutex::new(steps.into_iter().collect()),
            otherwise: Mutex::new(otherwise),
            runs: AtomicU32::new(0),
            attempts: Mutex::default(),
            lines: Mutex::default(),
            running: Semaphore::new(0),
            gate: Semaphore::new(0),
        }))
    }

    pub(crate) fn ok() -> Self {
        Self::new([], Step::Ok)
    }

    pub(crate) fn runs(&self) -> u32 {
        self.0.runs.load(Ordering::SeqCst)
    }

    pub(crate) fn attempts(&self) -> Vec<u32> {
        self.0.attempts.lock().unwrap().clone()
    }

    pub(crate) fn lines(&self) -> Vec<(u64, u32)> {
        self.0.lines.lock().unwrap().clone()
    }

    pub(crate) async fn started(&self) {
        tokio::time::timeout(SOON, self.0.running.acquire())
            .await
            .expect("a handler runs soon")
            .unwrap()
            .forget();
    }

    pub(crate) fn release(&self, runs: usize) {
        self.0.gate.add_permits(runs);
    }

    async fn step(&self, event: &OrderPlaced, attempt: u32) -> Result<(), HandlerError> {
        self.0.runs.fetch_add(1, Ordering::SeqCst);
        self.0.attempts.lock().unwrap().push(attempt);
        self.0.lines.lock().unwrap().push((event.order_id, event.line));
        let step = self
            .0
            .steps
            .lock()
            .unwrap()
            .pop_front()
            .unwrap_or(*self.0.otherwise.lock().unwrap());
        self.0.running.add_permits(1);
        match step {
            Step::Ok => Ok(()),
            Step::Fail => Err(std::io::Error::other("out of stock"))?,
            Step::Fatal => Err(HandlerError::fatal("unknown product\0")),
            Step::Hang => std::future::pending().await,
            Step::Gate => {
                self.0.gate.acquire().await.unwrap().forget();
                Ok(())
            }
            Step::Interrupted => Err(DbErr::ConnectionAcquire(ConnAcquireErr::Timeout))?,
        }
    }
}

async fn take_effect(
    consumer: &str,
    event: &OrderPlaced,
    tx: &Tx<'_>,
    key: StableKey,
) -> Result<(), HandlerError> {
    tx.execute_unprepared(&format!(
        "INSERT INTO effects (consumer, order_id, stable_key) VALUES ('{consumer}', {}, '{key}')",
        event.order_id
    ))
    .await?;
    Ok(())
}

#[idempotent_handler(consumer = "books")]
pub(crate) async fn book(
    event: Event<OrderPlaced>,
    tx: Tx<'_>,
    outbox: Outbox<'_>,
    script: HandlerState<Script>,
    metadata: Metadata,
    key: StableKey,
) -> Result<(), HandlerError> {
    take_effect("books", &event, &tx, key).await?;
    outbox
        .record([OrderBooked {
            order_id: event.order_id,
        }])
        .await?;
    script.step(&event, metadata.attempt()).await
}

#[idempotent_handler(consumer = "stock")]
pub(crate) async fn reserve(
    event: Event<OrderPlaced>,
    tx: Tx<'_>,
    key: StableKey,
) -> Result<(), HandlerError> {
    take_effect("stock", &event, &tx, key).await
}

pub(crate) fn as_a_library<'d, D>(db: &'d D, order_id: u64) -> BoxFuture<'d, Result<usize, DbErr>>
where
    D: TransactionTrait<Transaction = OutboxTransaction> + ConnectionTrait,
{
    let failed = |error: RecordError| DbErr::Custom(error.to_string());
    Box::pin(async move {
        let tx = db.begin_with_config(None, None).await?;
        record(&tx, [OrderBooked { order_id }]).await.map_err(failed)?;
        TransactionSession::commit(tx).await?;
        let undone: Result<(), TransactionError<DbErr>> = db
            .transaction(|tx| {
                Box::pin(async move {
                    record(tx, [OrderBooked { order_id }]).await.map_err(failed)?;
                    Err(DbErr::RecordNotUpdated)
                })
            })
            .await;
        assert!(
            matches!(undone, Err(TransactionError::Transaction(_))),
            "{undone:?}"
        );
        let effects = format!("SELECT consumer FROM effects WHERE order_id = {order_id}");
        let effects = Statement::from_string(db.get_database_backend(), effects);
        Ok(db.query_all_raw(effects).await?.len())
    })
}

#[track_caller]
pub(crate) fn delivered<H: Handler>(
    harness: &Harness,
    message: &Message,
    delivery: u64,
    expected: Outcome,
) -> impl Future<Output = ()> {
    let place = std::panic::Location::caller();
    async move {
        let outcome = harness.redeliver_message::<H>(message, delivery).await.unwrap();
        assert_eq!(outcome, expected, "delivery {delivery}, {place}");
    }
}

pub(crate) async fn only_letter(test: &TestDb, consumer: &str) -> DeadLetter {
    let letters = dead_letters(&test.db, consumer).await.unwrap();
    let [letter] = <[DeadLetter; 1]>::try_from(letters).unwrap();
    letter
}
