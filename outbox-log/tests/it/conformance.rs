//! The conformance suite of logs, on a real PostgreSQL. Each test has its own schema, slot and
//! publication.

use std::sync::Mutex;
use std::time::Duration;

use outbox_core::log::{Logged, MessageLog as _, Position};
use outbox_core::{Events, MessageId};
use outbox_log::PostgresLog;
use outbox_sea_orm::{OutboxConfig, OutboxConnection, OutboxTransaction, SqlStore};
use outbox_testing::conformance::log::LogFixture;
use outbox_testing::conformance::store::{OpenTransaction, Refused, StoreFixture};
use sea_orm::{ConnectionTrait as _, DatabaseConnection, DbBackend, Statement};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::support::{Place, sleep};

outbox_testing::log_conformance!(
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    Fixture::open().await
);

mod under_the_printed_rights {
    outbox_testing::log_conformance!(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        super::Fixture::under_the_printed_rights().await
    );
}

struct Fixture {
    place: Place,
    writer: DatabaseConnection,
    store: SqlStore,
    log: PostgresLog,
    unseen: Mutex<Option<OutboxTransaction>>,
}

impl Fixture {
    async fn open() -> Option<Self> {
        let place = Place::open().await?;
        Some(Self {
            writer: place.db.clone(),
            store: SqlStore::new(place.db.clone()),
            log: place.log(),
            place,
            unseen: Mutex::new(None),
        })
    }

    /// Opens a log whose writer and reader have separate logins. The reader also has the role
    /// `viewer`, because the conformance suites skip messages as an operator.
    async fn under_the_printed_rights() -> Option<Self> {
        let place = Place::open().await?;
        let (writer, _) = place.log_in("outbox_test_log_writer", &["writer"]).await;
        let roles = ["relay", "log-relay", "viewer", "operator"];
        let (relay, url) = place.log_in("outbox_test_log_relay", &roles).await;
        Some(Self {
            writer,
            store: SqlStore::new(relay.clone()),
            log: place.log_over(&relay, &url),
            place,
            unseen: Mutex::new(None),
        })
    }

    async fn record(&self, events: Events) -> Result<OutboxTransaction, Refused> {
        Self::record_over(&self.writer, events).await
    }

    async fn record_over(db: &DatabaseConnection, events: Events) -> Result<OutboxTransaction, Refused> {
        let outbox = OutboxConnection::new(db.clone(), OutboxConfig::default());
        let tx = outbox.begin().await?;
        outbox_sea_orm::record(&tx, events).await?;
        Ok(tx)
    }

    async fn drop_slot(&self) {
        let drop_slot = format!(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = '{}_log'",
            self.place.name
        );
        while self.place.db.execute_unprepared(&drop_slot).await.is_err() {
            sleep(10).await;
        }
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        self.unseen.lock().unwrap().take();
        let (db, name) = (self.place.db.clone(), self.place.name.clone());
        let clean_up = async move {
            let sessions = format!(
                "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = '{name}_log' AND active"
            );
            let slot = format!(
                "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = '{name}_log'"
            );
            let _ended = db.execute_unprepared(&sessions).await;
            for _ in 0..500 {
                if db.execute_unprepared(&slot).await.is_ok() {
                    break;
                }
                sleep(10).await;
            }
            let _gone = db
                .execute_unprepared(&format!("DROP SCHEMA {name} CASCADE"))
                .await;
        };
        tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(clean_up));
    }
}

impl StoreFixture for Fixture {
    type Store = SqlStore;
    type Open = Open;

    fn store(&self) -> &SqlStore {
        &self.store
    }

    async fn now(&self) -> OffsetDateTime {
        let sql = "SELECT (extract(epoch FROM clock_timestamp()) OPERATOR(pg_catalog.*) 1000000)::bigint";
        let micros = self.place.number(sql).await;
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
        self.place
            .execute("UPDATE outbox_leases SET expires_at = clock_timestamp() - interval '1 second'")
            .await;
    }

    async fn set_back_row_ids(&self) {
        let sql = "SELECT pg_catalog.setval(pg_get_serial_sequence('outbox_messages', 'row_id'), 1, false)";
        self.place.execute(sql).await;
    }

    async fn set_clock_back(&self, by: Duration) {
        for table in ["outbox_leases", "outbox_relays"] {
            let by = by.as_micros();
            let sql = format!(
                "UPDATE {table} SET expires_at = expires_at OPERATOR(pg_catalog.+) ({by} OPERATOR(pg_catalog.*) interval '1 microsecond')"
            );
            self.place.execute(&sql).await;
        }
    }

    async fn corrupt(&self, id: MessageId) {
        let sql = format!("UPDATE outbox_messages SET headers = '[1]' WHERE id = '{id}'");
        self.place.execute(&sql).await;
    }
}

impl LogFixture for Fixture {
    type Log = PostgresLog;
    type Outbox = Self;

    fn outbox(&self) -> &Self {
        self
    }

    fn log(&self) -> &PostgresLog {
        &self.log
    }

    async fn write_elsewhere(&self) {
        let _end: Position = self.log.written().await.unwrap();
    }

    async fn interrupt(&self) {
        self.place.end_session().await;
        let active = format!(
            "SELECT count(*) FROM pg_replication_slots WHERE slot_name = '{}_log' AND active",
            self.place.name
        );
        while self.place.number(&active).await > 0 {
            sleep(10).await;
        }
    }

    async fn lose(&self) {
        self.place.end_session().await;
        self.drop_slot().await;
    }

    /// Method: keep a transaction open instead of a commit that waits for a standby server. Both
    /// are invisible to other sessions.
    async fn commit_unseen(&self, events: Events) -> Vec<Logged> {
        let tx = Self::record_over(&self.place.db, events).await.unwrap();
        let sql = "SELECT id, (pg_current_xact_id()::text::numeric % 4294967296::numeric)::int8 AS transaction \
                   FROM outbox_messages WHERE xmin = pg_current_xact_id()::xid ORDER BY row_id";
        let statement = Statement::from_string(DbBackend::Postgres, sql);
        let rows = tx.query_all_raw(statement).await.unwrap();
        *self.unseen.lock().unwrap() = Some(tx);
        rows.iter()
            .map(|row| Logged {
                id: row.try_get::<Uuid>("", "id").unwrap().into(),
                transaction: row.try_get::<i64>("", "transaction").unwrap().try_into().unwrap(),
                passed_from: Position(u64::MAX),
            })
            .collect()
    }

    async fn show(&self) {
        let tx = self.unseen.lock().unwrap().take();
        tx.unwrap().commit().await.unwrap();
    }
}

struct Open(OutboxTransaction);

impl OpenTransaction for Open {
    async fn commit(self) {
        self.0.commit().await.unwrap();
    }

    async fn roll_back(self) {
        self.0.rollback().await.unwrap();
    }
}
