//! A relay and writers stricter than READ COMMITTED do not make each other fail.
//!
//! One writer changes a row that the others have read; then the relay fetches, and the others
//! record. Without the relay, they cannot conflict. All aggregates exist, because on MariaDB their
//! first writers can deadlock.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use outbox_core::retry::Backoff;
use outbox_core::shutdown::CancellationToken;
use outbox_core::{EventPolicy, FailureClass, Health, PoisonPolicy, Relay, RelayConfig, Retention};
use outbox_sea_orm::{OutboxConnection, SaveError, SqlStore};
use outbox_testing::conformance::probe::Probe;
use outbox_testing::store_types::*;
use outbox_testing::{MemoryBroker, store_methods};
use sea_orm::sqlx::{AssertSqlSafe, Executor as _};
use sea_orm::{ConnectionTrait, DatabaseConnection, DbBackend};
use tokio::sync::watch;

use crate::support::{Backend, TestDb, until};

const SOON: Duration = Duration::from_secs(60);

const WRITERS: u64 = 8;

/// Per writer. A save has events of two.
const AGGREGATES: u64 = 4;

const SAVES_MIN: u64 = 20;
const RENEWALS: u64 = 3;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn serializable_relay_fails_no_writer_on_postgresql() {
    check(Backend::Postgres, "SERIALIZABLE").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repeatable_read_relay_fails_no_writer_on_postgresql() {
    check(Backend::Postgres, "REPEATABLE READ").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn serializable_relay_fails_no_writer_on_mariadb() {
    check(Backend::MariaDb, "SERIALIZABLE").await;
}

#[derive(Clone)]
struct Noted {
    store: SqlStore,
    fetches: watch::Sender<u64>,
    renewals: watch::Sender<u64>,
    errors: Arc<Mutex<Vec<String>>>,
}

impl Noted {
    fn over(store: SqlStore) -> Self {
        Self {
            store,
            fetches: watch::Sender::new(0),
            renewals: watch::Sender::new(0),
            errors: Arc::default(),
        }
    }

    fn note<T>(&self, call: &str, outcome: Result<T, StoreError>) -> Result<T, StoreError> {
        if let Err(error) = &outcome {
            let error = format!("{call}: {}", outbox_core::describe(error));
            self.errors.lock().unwrap().push(error);
        }
        outcome
    }
}

macro_rules! noted {
    ($self:ident, $method:ident($($argument:expr),*)) => {
        $self.note(stringify!($method), $self.store.$method($($argument),*).await)
    };
}

impl OutboxStore for Noted {
    store_methods!(self, noted; preflight announce relays acquire release leave fetch_waiting settle purge pauses
        finish_pauses backlog);

    async fn renew(&self, owner: OwnerId, leases: &[Lease], ttl: Duration) -> Result<Vec<Lease>, StoreError> {
        let renewed = self.note("renew", self.store.renew(owner, leases, ttl).await)?;
        count(&self.renewals);
        Ok(renewed)
    }

    async fn fetch(&self, request: FetchRequest<'_>) -> Result<Fetched, StoreError> {
        let fetched = self.note("fetch", self.store.fetch(request).await)?;
        count(&self.fetches);
        Ok(fetched)
    }
}

async fn pool_at(test: &TestDb, level: &str, connections: u32) -> DatabaseConnection {
    let begin = match test.sql_backend() {
        DbBackend::Postgres => format!("SET default_transaction_isolation = '{}'", level.to_lowercase()),
        _ => format!("SET SESSION TRANSACTION ISOLATION LEVEL {level}"),
    };
    test.connect_again(|options| {
        options.max_connections(connections);
        let begin_mysql = begin.clone();
        options.map_sqlx_postgres_pool_opts(move |pool| {
            let begin = begin.clone();
            pool.after_connect(move |connection, _| {
                let begin = AssertSqlSafe(begin.clone());
                Box::pin(async move { connection.execute(begin).await.map(drop) })
            })
        });
        options.map_sqlx_mysql_pool_opts(move |pool| {
            let begin = begin_mysql.clone();
            pool.after_connect(move |connection, _| {
                let begin = AssertSqlSafe(begin.clone());
                Box::pin(async move { connection.execute(begin).await.map(drop) })
            })
        });
    })
    .await
}

fn is_dead(n: u64) -> bool {
    n % 10 == 9
}

fn aggregate(writer: u64, n: u64) -> String {
    format!("{writer}-{}", n % AGGREGATES)
}

fn events(writer: u64, n: u64) -> [Probe; 2] {
    let second = match is_dead(n) {
        true => Probe::observed,
        false => Probe::noted,
    };
    [
        Probe::noted(aggregate(writer, n), n),
        second(aggregate(writer, n + 1), n),
    ]
}

fn count(counter: &watch::Sender<u64>) {
    counter.send_modify(|count| *count += 1);
}

async fn another(counter: &watch::Sender<u64>) {
    let mut counted = counter.subscribe();
    let now = *counted.borrow_and_update();
    let happened = tokio::time::timeout(SOON, counted.wait_for(|count| *count >= now + 2)).await;
    happened.expect("nothing happens").unwrap();
}

#[derive(Clone)]
struct Writers {
    outbox: OutboxConnection,
    stock: String,
    changes: watch::Sender<u64>,
    fetches: watch::Sender<u64>,
}

impl Writers {
    async fn save(&self, writer: u64, n: u64) -> Result<(), SaveError> {
        let stock = &self.stock;
        let tx = self.outbox.begin().await?;
        if writer == 0 {
            tx.execute_unprepared(&format!("UPDATE {stock} SET units = units + 1"))
                .await?;
        } else {
            tx.execute_unprepared(&format!("SELECT units FROM {stock}"))
                .await?;
            // On MariaDB the change waits for this transaction.
            if tx.get_database_backend() == DbBackend::Postgres {
                another(&self.changes).await;
            }
            another(&self.fetches).await;
        }
        outbox_sea_orm::record(&tx, events(writer, n)).await?;
        tx.commit().await?;
        Ok(())
    }

    async fn write(self, writer: u64, stop: Arc<AtomicBool>) -> u64 {
        let mut saved = 0;
        while saved < SAVES_MIN || !stop.load(Ordering::Relaxed) {
            if let Err(error) = self.save(writer, saved).await {
                panic!("writer {writer}, save {saved}: {}", outbox_core::describe(&error));
            }
            saved += 1;
            if writer == 0 {
                count(&self.changes);
                // PostgreSQL limits the number of conflicts to some thousands.
                another(&self.fetches).await;
            }
        }
        saved
    }
}

fn refusing_broker() -> MemoryBroker {
    let broker = MemoryBroker::new();
    broker.fail_matching(
        |message| message.event_type == "probe.observed",
        FailureClass::Permanent,
    );
    let refused = Mutex::new(HashSet::new());
    broker.fail_matching(
        move |message| {
            message.sequence.is_some_and(|sequence| sequence % 7 == 3)
                && refused.lock().unwrap().insert(message.id)
        },
        FailureClass::Unclassified,
    );
    broker
}

fn config() -> RelayConfig {
    let backoff = Backoff {
        min: Duration::from_millis(5),
        max: Duration::from_millis(50),
    };
    let policy = EventPolicy::default()
        .backoff(backoff)
        .on_poison(PoisonPolicy::Continue);
    RelayConfig::default()
        .backoff(backoff)
        .policy(policy)
        .retention(Retention::Keep)
        .lease_ttl(Duration::from_millis(1500))
        .poll_min(Duration::from_millis(5))
        .poll_max(Duration::from_millis(20))
}

async fn prepare(test: &TestDb) -> String {
    let stock = test.names.table(test.sql_backend(), "stock");
    test.execute(&format!("CREATE TABLE {stock} (units int)")).await;
    test.execute(&format!("INSERT INTO {stock} VALUES (1)")).await;
    for writer in 0..WRITERS {
        let first = (0..AGGREGATES).map(|n| Probe::noted(aggregate(writer, n), n));
        test.record(first.collect::<Vec<_>>()).await.unwrap();
    }
    stock
}

async fn write_until_renewed(writers: &Writers, store: &Noted) -> Vec<u64> {
    let (stop, stop_changing) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let changing = tokio::spawn(writers.clone().write(0, stop_changing.clone()));
    let reading: Vec<_> = (1..WRITERS)
        .map(|writer| tokio::spawn(writers.clone().write(writer, stop.clone())))
        .collect();
    let mut renewals = store.renewals.subscribe();
    let renewed = renewals.wait_for(|renewals| *renewals >= RENEWALS);
    let renewed = tokio::time::timeout(SOON, renewed).await;
    renewed.expect("renewing takes too long").unwrap();
    stop.store(true, Ordering::Relaxed);
    let mut saved = Vec::new();
    for writer in reading {
        saved.push(writer.await.unwrap());
    }
    // Readers wait for changes.
    stop_changing.store(true, Ordering::Relaxed);
    saved.push(changing.await.unwrap());
    saved
}

async fn check(backend: Backend, level: &str) {
    let Some(test) = TestDb::open(backend, "isolation").await else {
        return;
    };
    let stock = prepare(&test).await;
    let store = SqlStore::new(pool_at(&test, level, 4).await);
    let store = Noted::over(store.with_names(&test.names).unwrap());
    let writers = Writers {
        outbox: OutboxConnection::new(pool_at(&test, level, WRITERS as u32).await, test.config()),
        stock,
        changes: watch::Sender::new(0),
        fetches: store.fetches.clone(),
    };
    let broker = refusing_broker();
    let relay = Relay::new(store.clone(), broker.publisher()).with_config(config());
    let (health, shutdown) = (relay.health(), CancellationToken::new());
    let rows = async |condition: &str| {
        let sql = format!("SELECT count(*) FROM {} WHERE {condition}", test.messages());
        u64::try_from(test.int(&sql).await).unwrap()
    };
    let scenario = async {
        let saved = write_until_renewed(&writers, &store).await;
        until("settling", async || rows("status NOT IN (1, 2)").await == 0).await;
        let now = health.now();
        assert!(!matches!(now, Health::Stuck { .. }), "{now}");
        shutdown.cancel();
        saved
    };
    let (report, saved) = tokio::join!(relay.run(shutdown.clone()), scenario);
    report.unwrap();
    assert_eq!(*store.errors.lock().unwrap(), [] as [String; 0]);

    let dead = saved
        .iter()
        .map(|saves| (0..*saves).filter(|n| is_dead(*n)).count() as u64);
    let dead: u64 = dead.sum();
    let all = WRITERS * AGGREGATES + 2 * saved.iter().sum::<u64>();
    assert_eq!(
        (rows("status = 1").await, rows("status = 2").await),
        (all - dead, dead)
    );
    assert_eq!(broker.messages().len() as u64, all - dead);
    let refused = rows("status = 1 AND failures > 0").await;
    assert!(refused > 0, "no message was refused, so no aggregate was blocked");
}
