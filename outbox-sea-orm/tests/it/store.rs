//! The guarantees of `SqlStore`: the common suite, and database-specific faults.

#![expect(clippy::unwrap_used, reason = "test helpers may panic")]

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use outbox_core::{
    Events, Limits, MessageId, NewMessage, OutboxAdmin, OutboxStore, OwnerId, Selection, Verdict,
};
use outbox_sea_orm::{OutboxConnection, OutboxTransaction, RecordError, SqlStore};
use outbox_testing::conformance::probe::Probe;
use outbox_testing::conformance::store::{OpenTransaction, Refused, StoreFixture};
use outbox_testing::not_applicable;
use sea_orm::{ConnectionTrait, DbBackend, Statement, Value};
use time::OffsetDateTime;

use crate::support::{Backend, TTL, TestDb, int, settlements};

mod conformance {
    use super::{Backend, Fixture};

    mod sqlite {
        use super::*;
        outbox_testing::store_conformance!(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            Fixture::open(Backend::Sqlite).await
        );
    }
    mod sqlite_memory {
        use super::*;
        outbox_testing::store_conformance!(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            Fixture::open(Backend::SqliteMemory).await
        );
    }
    mod postgres {
        use super::*;
        outbox_testing::store_conformance!(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            Fixture::open(Backend::Postgres).await
        );
    }
    mod mariadb {
        use super::*;
        outbox_testing::store_conformance!(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            Fixture::open(Backend::MariaDb).await
        );
    }
}

pub(crate) struct Fixture {
    pub(crate) db: TestDb,
    pub(crate) store: SqlStore,
    pub(crate) outbox: OutboxConnection,
}

impl Fixture {
    async fn open(backend: Backend) -> Option<Self> {
        let db = TestDb::open(backend, "conformance").await?;
        Some(Self {
            store: db.store(),
            outbox: db.outbox(),
            db,
        })
    }

    /// Retries after a deadlock, which InnoDB reports to the first writers of an aggregate.
    async fn record(&self, events: Events) -> Result<OutboxTransaction, Refused> {
        let messages = events.checked(&Limits::default())?;
        loop {
            let tx = self.outbox.begin().await?;
            match outbox_sea_orm::record(&tx, messages.clone()).await {
                Ok(_) => return Ok(tx),
                Err(RecordError::Database(error)) if error.to_string().contains("Deadlock") => continue,
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl StoreFixture for Fixture {
    type Store = SqlStore;
    type Open = Open;

    fn overlapping_transactions(&self) -> bool {
        self.db.sql_backend() != DbBackend::Sqlite
    }

    fn store(&self) -> &SqlStore {
        &self.store
    }

    async fn now(&self) -> OffsetDateTime {
        let micros = self
            .db
            .int(match self.db.sql_backend() {
                DbBackend::Postgres => {
                    "SELECT (extract(epoch FROM clock_timestamp()) OPERATOR(pg_catalog.*) 1000000)::int8"
                }
                DbBackend::MySql => "SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))",
                _ => "SELECT CAST(strftime('%s', 'now') AS INTEGER) * 1000000",
            })
            .await;
        OffsetDateTime::from_unix_timestamp_nanos(i128::from(micros) * 1000).unwrap()
    }

    async fn commit(&self, events: Events) -> Result<(), Refused> {
        Ok(self.record(events).await?.commit().await?)
    }

    async fn roll_back(&self, events: Events) -> Result<(), Refused> {
        Ok(self.record(events).await?.rollback().await?)
    }

    async fn begin(&self, events: Events) -> Result<Open, Refused> {
        Ok(Open(self.record(events).await?))
    }

    async fn expire_leases(&self) {
        self.db.expire_leases().await;
    }

    async fn set_back_row_ids(&self) {
        self.db.set_back_row_ids().await;
    }

    async fn set_clock_back(&self, by: Duration) {
        self.db.set_clock_back(by).await;
    }

    async fn corrupt(&self, id: MessageId) {
        let placeholder = if self.db.sql_backend() == DbBackend::Postgres {
            "$1"
        } else {
            "?"
        };
        let sql = format!(
            "UPDATE {} SET headers = '[1]' WHERE id = {placeholder}",
            self.db.messages()
        );
        let statement =
            Statement::from_sql_and_values(self.db.sql_backend(), sql, [Value::from(id.as_uuid())]);
        assert_eq!(
            self.db.db.execute_raw(statement).await.unwrap().rows_affected(),
            1
        );
    }
}

pub(crate) struct Open(OutboxTransaction);

impl OpenTransaction for Open {
    async fn commit(self) {
        self.0.commit().await.unwrap();
    }

    async fn roll_back(self) {
        self.0.rollback().await.unwrap();
    }
}

crate::on_every_backend!(
    dropped_futures_leave_no_transaction_open,
    unreadable_aggregate_id_is_returned_lossily,
    extreme_times_can_be_stored,
);

/// If a dropped future left a transaction open on the pool's only connection, other connections
/// would not see later writes.
async fn dropped_futures_leave_no_transaction_open(test: TestDb) {
    if test.backend == Backend::SqliteMemory {
        return not_applicable("no other connection can read this database");
    }
    let markers = test.names.table(test.sql_backend(), "outbox_test_marker");
    test.execute(&format!("CREATE TABLE {markers} (n BIGINT)")).await;
    test.record([Probe::noted("a", 1)]).await.unwrap();
    let (owner, leases) = test.lease_all().await;
    let settlements = settlements(
        &test.fetch_all().await,
        &Verdict::Blocked {
            delay: Duration::ZERO,
            error: Some("no".to_owned()),
            attempt: true,
        },
    );

    let pool = test.one_connection().await;
    let store = SqlStore::new(pool.clone()).with_names(&test.names).unwrap();
    let mut written = 0;
    for polls in 0..5 {
        drop_after(polls, store.settle(&leases, &settlements)).await;
        drop_after(polls, store.renew(owner, &leases, TTL)).await;
        drop_after(polls, store.acquire(OwnerId::fresh(), TTL, 1)).await;
        drop_after(polls, store.release(OwnerId::fresh(), &leases)).await;
        pool.execute_unprepared(&format!("INSERT INTO {markers} VALUES (1)"))
            .await
            .unwrap();
        written += 1;
        let count = format!("SELECT count(*) FROM {markers}");
        assert_eq!(
            int(&test.db, &count).await,
            written,
            "after {polls} polls a connection was left in a transaction"
        );
    }
    assert_eq!(store.settle(&leases, &settlements).await.unwrap(), 1);
}

async fn drop_after<T>(polls: usize, future: impl Future<Output = T>) {
    let mut future = pin!(future);
    for _ in 0..polls {
        if poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx).is_ready())).await {
            return;
        }
        tokio::task::yield_now().await;
    }
}

/// The store replaces the invalid bytes of the aggregate id, so that the relay can dead-letter the
/// message.
async fn unreadable_aggregate_id_is_returned_lossily(test: TestDb) {
    let damaged = match test.sql_backend() {
        DbBackend::Postgres => return not_applicable("text is always UTF-8 in this database"),
        DbBackend::MySql => "x'6aff'",
        _ => "CAST(x'6aff' AS TEXT)",
    };
    test.record([Probe::noted("a", 1), Probe::noted("b", 1)])
        .await
        .unwrap();
    test.execute(&format!(
        "UPDATE {} SET aggregate_id = {damaged} WHERE row_id = 1",
        test.messages()
    ))
    .await;
    let rows = test.fetch_all().await;
    assert_eq!(rows[0].aggregate.id, "j\u{fffd}");
    assert_eq!(
        rows[0].message,
        Err("aggregate_id is not UTF-8".to_owned().into())
    );
    assert!(rows[1].message.is_ok());
    let (_, leases) = test.lease_all().await;
    let dead = Verdict::Dead {
        error: "unreadable".to_owned(),
        halt: true,
    };
    assert_eq!(
        test.store()
            .settle(&leases, &settlements(&rows[..1], &dead))
            .await
            .unwrap(),
        1
    );
    assert_eq!(test.fetch_all().await.len(), 1);
    let dead = test
        .store()
        .list(&Selection::dead_letters(), 10.try_into().unwrap())
        .await
        .unwrap();
    assert!(dead[0].halts && dead[0].aggregate.id == "j\u{fffd}");
}

async fn extreme_times_can_be_stored(test: TestDb) {
    let at = |id: &str, time| {
        NewMessage::from_event(&Probe::noted(id, 1))
            .unwrap()
            .available_at(time)
    };
    let past = time::macros::datetime!(-9999-01-01 00:00 UTC);
    let future = time::macros::datetime!(9999-12-31 23:59:59.999_999_999 UTC);
    test.record([at("past", past), at("future", future)])
        .await
        .unwrap();
    test.record([at("past", past)]).await.unwrap();
    let rows = test.fetch_all().await;
    assert_eq!(
        rows.iter()
            .map(|row| row.aggregate.id.as_str())
            .collect::<Vec<_>>(),
        ["past", "past"]
    );
    test.store()
        .acquire(OwnerId::fresh(), Duration::MAX, 64)
        .await
        .unwrap();
    assert_eq!(test.store().acquire(OwnerId::fresh(), TTL, 64).await.unwrap(), []);
}
