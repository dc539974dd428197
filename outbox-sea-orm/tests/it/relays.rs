//! Sessions of a relay, and their loss.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use outbox_core::retry::Backoff;
use outbox_core::shutdown::CancellationToken;
use outbox_core::{
    Destination, Message, OutboxStore, OwnerId, PublishError, Publisher, Receipt, Relay, RelayConfig,
    StoreError,
};
use outbox_sea_orm::{OutboxConnection, SqlStore, migration};
use outbox_testing::conformance::probe::Probe;
use outbox_testing::{MemoryBroker, MemoryPublisher, not_applicable};
use sea_orm::{ConnectionTrait, DbBackend, Statement};
use tokio::sync::watch;

use crate::support::{Backend, TTL, TestDb, until};

crate::on_every_backend!(
    a_silent_broker_leaves_the_only_connection_free,
    relay_continues_after_its_sessions_are_killed,
    refused_verdict_does_not_block_other_messages,
    temporarily_unreadable_table_is_not_missing,
    older_tables_are_detected_at_start,
    missing_lease_rows_are_refused_and_migrate_inserts_them,
);

const SOON: Duration = Duration::from_secs(60);

struct Silent {
    broker: MemoryPublisher,
    speaks: watch::Receiver<bool>,
    waiting: Arc<AtomicUsize>,
}

impl Publisher for Silent {
    fn destination(&self) -> Option<Destination> {
        None
    }

    async fn publish(&self, message: &Message) -> Result<Receipt, PublishError> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let _ = self.speaks.clone().wait_for(|speaks| *speaks).await;
        self.broker.publish(message).await
    }

    async fn preflight(&self) -> Result<Vec<String>, PublishError> {
        Ok(Vec::new())
    }

    async fn abandon(&self) {}
}

fn config() -> RelayConfig {
    let backoff = Backoff {
        min: Duration::from_millis(5),
        max: Duration::from_millis(50),
    };
    RelayConfig::default()
        .backoff(backoff)
        .poll_max(Duration::from_millis(100))
}

async fn unpublished(test: &TestDb) -> i64 {
    let left = format!("SELECT count(*) FROM {} WHERE status <> 1", test.messages());
    test.int(&left).await
}

/// If the relay's transaction were open during publishing, it would block all recording.
async fn a_silent_broker_leaves_the_only_connection_free(test: TestDb) {
    if test.backend == Backend::SqliteMemory {
        return not_applicable("each connection has its own database");
    }
    test.record(
        (0..20)
            .map(|n| Probe::noted(n.to_string(), n))
            .collect::<Vec<_>>(),
    )
    .await
    .unwrap();
    let pool = test.one_connection().await;
    let (speak, speaks) = watch::channel(false);
    let waiting = Arc::new(AtomicUsize::new(0));
    let silent = Silent {
        broker: MemoryBroker::new().publisher(),
        speaks,
        waiting: waiting.clone(),
    };
    let store = SqlStore::new(pool.clone()).with_names(&test.names).unwrap();
    let relay = Relay::new(store, silent).with_config(config());
    let shutdown = CancellationToken::new();
    let scenario = async {
        until("sending", async || waiting.load(Ordering::Relaxed) == 20).await;
        let service = OutboxConnection::new(pool, test.config());
        let record = async {
            let tx = service.begin().await.unwrap();
            outbox_sea_orm::record(&tx, [Probe::noted("late", 1)])
                .await
                .unwrap();
            tx.commit().await.unwrap();
        };
        tokio::time::timeout(SOON, record)
            .await
            .expect("the connection is taken");
        assert_eq!(
            unpublished(&test).await,
            21,
            "what was committed is seen from elsewhere"
        );
        speak.send(true).unwrap();
        until("settling", async || unpublished(&test).await == 0).await;
        shutdown.cancel();
    };
    let (report, ()) = tokio::join!(relay.run(shutdown.clone()), scenario);
    assert_eq!(report.unwrap().published, 21);
}

async fn relay_continues_after_its_sessions_are_killed(test: TestDb) {
    const AGGREGATES: u64 = 20;
    const EACH: u64 = 25;
    let (whose, kill): (&str, fn(i64) -> String) = match test.sql_backend() {
        DbBackend::Postgres => ("SELECT pg_backend_pid()::int8", |id| {
            format!("SELECT pg_terminate_backend({id})")
        }),
        DbBackend::MySql => ("SELECT CAST(CONNECTION_ID() AS SIGNED)", |id| {
            format!("KILL {id}")
        }),
        _ => return not_applicable("this database has no sessions"),
    };
    let pool = test.one_connection().await;
    let store = SqlStore::new(pool.clone()).with_names(&test.names).unwrap();
    let broker = MemoryBroker::new().with_latency(Duration::from_millis(1));
    let relay = Relay::new(store, broker.publisher()).with_config(config().window(8));
    let shutdown = CancellationToken::new();
    let scenario = async {
        for n in 0..EACH {
            let events = (0..AGGREGATES).map(|a| Probe::noted(a.to_string(), n));
            test.record(events.collect::<Vec<_>>()).await.unwrap();
            until("a killed session", async || {
                let asked = Statement::from_string(test.sql_backend(), whose);
                let Ok(Some(row)) = pool.query_one_raw(asked).await else {
                    return false;
                };
                let id: i64 = row.try_get_by_index(0).unwrap();
                test.db.execute_unprepared(&kill(id)).await.is_ok()
            })
            .await;
        }
        until("publishing the rest", async || unpublished(&test).await == 0).await;
        shutdown.cancel();
    };
    let (report, ()) = tokio::join!(relay.run(shutdown.clone()), scenario);
    assert_eq!(report.unwrap().dead_letters, 0);
    let messages = broker.messages();
    assert_eq!(messages.len() as u64, AGGREGATES * EACH);
    for aggregate in 0..AGGREGATES {
        let of = |message: &&Message| message.aggregate.id == aggregate.to_string();
        let sequences: Vec<_> = messages
            .iter()
            .filter(of)
            .map(|message| message.sequence)
            .collect();
        assert_eq!(
            sequences,
            (1..=EACH).map(Some).collect::<Vec<_>>(),
            "aggregate {aggregate}"
        );
    }
}

async fn older_tables_are_detected_at_start(test: TestDb) {
    let table = |name| test.names.table(test.sql_backend(), name);
    let mut changes: Vec<(String, Option<String>)> = [
        ("outbox_relays", "fitness"),
        ("outbox_relays", "name"),
        ("outbox_relays", "failing_since"),
        ("outbox_messages", "last_error"),
        ("outbox_messages", "available_at"),
        ("outbox_aggregates", "last_sequence"),
        ("outbox_blocks", "partition_no"),
        ("outbox_leases", "owner"),
        ("outbox_pauses", "ends_at"),
    ]
    .into_iter()
    .map(|(name, column)| {
        let rename = |from, to| format!("ALTER TABLE {} RENAME COLUMN {from} TO {to}", table(name));
        (rename(column, "other"), Some(rename("other", column)))
    })
    .collect();
    match test.sql_backend() {
        DbBackend::Postgres => {}
        DbBackend::MySql => {
            let own = format!(
                "ALTER TABLE {} DROP INDEX outbox_messages_status_own",
                test.messages()
            );
            changes.push((own, None));
        }
        _ => changes.push(("DROP INDEX outbox_messages_pending_own".to_owned(), None)),
    }
    let pool = match test.backend {
        Backend::SqliteMemory => test.db.clone(),
        _ => test.one_connection().await,
    };
    let store = SqlStore::new(pool.clone()).with_names(&test.names).unwrap();
    for (change, undo) in changes {
        pool.execute_unprepared(&change).await.expect(&change);
        let error = store.preflight(true).await.expect_err(&change);
        assert!(matches!(error, StoreError::Setup { .. }), "{error:?}");
        let text = error.to_string();
        assert!(text.contains("run the migration of outbox-sea-orm"), "{text}");
        if let Some(undo) = undo {
            pool.execute_unprepared(&undo).await.expect(&undo);
        }
    }
}

async fn missing_lease_rows_are_refused_and_migrate_inserts_them(test: TestDb) {
    let (store, leases) = (test.store(), test.leases());
    let (owner, held) = test.lease_all().await;
    for (delete, left) in [("partition_no = 7", 63), ("1 = 1", 0)] {
        test.execute(&format!("DELETE FROM {leases} WHERE {delete}"))
            .await;
        let refused = store.preflight(true).await;
        let Err(StoreError::Setup(problem)) = refused else {
            panic!("{left} of 64 rows pass: {refused:?}");
        };
        let seen = format!("rows for {left} of 64");
        assert!(problem.seen.contains(&seen), "{problem}");
        let asked = store.acquire(OwnerId::fresh(), TTL, 64).await;
        assert!(matches!(asked, Err(StoreError::Setup { .. })), "{asked:?}");
    }
    migration::migrate_with(&test.db, &test.names).await.unwrap();
    store.preflight(true).await.unwrap();
    let taken = store.acquire(OwnerId::fresh(), TTL, 64).await.unwrap();
    assert_eq!(taken.len(), 64);
    let before = held.iter().map(|lease| lease.epoch).max();
    assert!(taken.iter().all(|lease| Some(lease.epoch) > before), "{taken:?}");
    assert_eq!(store.renew(owner, &held, TTL).await.unwrap(), []);
}

async fn temporarily_unreadable_table_is_not_missing(test: TestDb) {
    let pool = test.one_connection().await;
    let messages = test.messages();
    let (impatient, lock) = match test.sql_backend() {
        DbBackend::Postgres => (
            "SET lock_timeout = '50ms'",
            format!("LOCK TABLE {messages} IN ACCESS EXCLUSIVE MODE"),
        ),
        DbBackend::MySql => (
            "SET SESSION lock_wait_timeout = 1",
            format!("LOCK TABLES {messages} WRITE"),
        ),
        _ => return not_applicable("readers of this database do not wait"),
    };
    pool.execute_unprepared(impatient).await.unwrap();
    let other = test.one_connection().await;
    let tx = sea_orm::TransactionTrait::begin(&other).await.unwrap();
    tx.execute_unprepared(&lock).await.unwrap();
    let store = SqlStore::new(pool).with_names(&test.names).unwrap();
    let checked = store.preflight(true).await;
    assert!(matches!(checked, Err(StoreError::Database { .. })), "{checked:?}");
    if test.sql_backend() == DbBackend::MySql {
        tx.execute_unprepared("UNLOCK TABLES").await.unwrap();
    }
    tx.rollback().await.unwrap();
    assert_eq!(test.warnings(&store).await, []);
}

async fn refused_verdict_does_not_block_other_messages(test: TestDb) {
    let messages = test.messages();
    let refused = "aggregate_id = 'refused' AND status = 1";
    let (forbid, allow) = match test.sql_backend() {
        DbBackend::Sqlite => (
            format!(
                "CREATE TRIGGER forbidden BEFORE UPDATE ON {messages} WHEN NEW.aggregate_id = 'refused' AND NEW.status = 1 \
                 BEGIN SELECT RAISE(ABORT, 'forbidden'); END"
            ),
            "DROP TRIGGER forbidden".to_owned(),
        ),
        _ => (
            format!("ALTER TABLE {messages} ADD CONSTRAINT forbidden CHECK (NOT ({refused}))"),
            format!("ALTER TABLE {messages} DROP CONSTRAINT forbidden"),
        ),
    };
    test.execute(&forbid).await;
    let ids = (0..50).map(|n| n.to_string()).chain(["refused".to_owned()]);
    let events: Vec<_> = ids.zip(0..).map(|(id, n)| Probe::noted(id, n)).collect();
    test.record(events).await.unwrap();
    let relay = Relay::new(test.store(), MemoryBroker::new().publisher()).with_config(config());
    let (health, shutdown) = (relay.health(), CancellationToken::new());
    let scenario = async {
        until("the others", async || unpublished(&test).await == 1).await;
        let told = |text: &str| text.contains("rejects the verdicts on 1 messages");
        until("health", async || told(&health.now().to_string())).await;
        test.execute(&allow).await;
        until("the last one", async || unpublished(&test).await == 0).await;
        shutdown.cancel();
    };
    let (report, ()) = tokio::join!(relay.run(shutdown.clone()), scenario);
    let report = report.unwrap();
    assert_eq!((report.published, report.duplicates), (51, 0));
}
