//! The outbox in PostgreSQL, MySQL/MariaDB or SQLite, for the relay and for operators.
//!
//! Invariants: each operation runs in a task and on a connection of its own (`session`), so dropping its future never leaves a transaction
//! open. Transactions are short and READ COMMITTED (SQLite: IMMEDIATE). All times are the database's. Nothing is retried here but
//! transactions after a deadlock; the relay retries the rest.

mod admin;
mod answers;
mod audit;
mod blocks;
mod complete;
#[cfg(feature = "postgres")]
mod days;
mod durable;
mod fetch;
mod fitting;
mod forget;
mod held;
mod ids;
mod leases;
mod note;
mod own;
mod pauses;
mod preflight;
mod purge;
mod purge_operation;
mod reader;
#[cfg(feature = "testing")]
mod recorded;
mod refusal;
mod relay_name;
mod relays;
mod search;
#[cfg_attr(
    not(any(feature = "postgres", feature = "mysql", feature = "sqlite")),
    path = "driverless.rs"
)]
mod session;
mod settings;
mod settle;
mod tables;
mod waiting;

#[cfg(test)]
mod plans;

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use outbox_core::{
    Aggregate, Announcement, Backlog, BlockedAggregate, FetchRequest, Fetched, Forgotten, Lease, LiveRelay,
    Message, MessageId, OutboxAdmin, OutboxStore, OwnerId, PageFrom, Pause, PauseRequest, PurgeRequest,
    Purged, Relays, Selection, Settlement, StoreError, StoredMessage, WaitingRequest,
};
use sea_orm::{DatabaseConnection, DbErr};
use time::OffsetDateTime;
use tokio::sync::OnceCell;

pub use self::held::Held;

use self::admin::Decision;
use self::answers::{DEADLOCKS_MAX, failed, is_deadlock, no_driver, repeat_deadlocks};
use self::durable::Durability;
use self::fitting::Bounds;
use self::refusal::refuses_to_write;
use self::session::{Isolation, Session};
use self::tables::setup;
use crate::cause::has_code;
use crate::connect::{ConnectError, connect_error};
use crate::dialect::Dialect;
use crate::dialect::fetch::Scope;
use crate::dialect::key::Key;
use crate::in_use;
use crate::memory::{CAN_BE_LOST, InMemory, keep_in_memory};
use crate::names::{NameError, TableNames};

/// The outbox of a database, for the relay and for operators.
///
/// Give it a pool of its own with two or three connections, so that a busy service and a busy relay do not starve each other. If a caller
/// drops a call, the call has one more second to end; then its connection is closed, because a connection that no longer answers would
/// never return to the pool. Leave the pool's `min_connections` at 0: sqlx 0.9 opens such connections in the background and waits for
/// them for five minutes.
///
/// * **MySQL, MariaDB**: MySQL 8.0.1 or MariaDB 10.6 (`SKIP LOCKED`), without `binlog_format = STATEMENT`, which forbids READ COMMITTED.
///   With Galera, write to one node only: across nodes, `row_id` is not in the order of commits.
/// * **PostgreSQL**: both layouts, the ordinary one and [the one with daily tables](crate::migration::partitioned).
/// * **SQLite**: use WAL, a `busy_timeout` (SeaORM's default is 5 s), and one process per file. `SQLITE_BUSY` is reported as
///   [`StoreError::Database`], which the relay retries.
#[derive(Debug, Clone)]
pub struct SqlStore {
    db: DatabaseConnection,
    names: TableNames,
    dialect: Arc<Dialect>,
    isolation: Isolation,
    memory: fetch::Memory,
    durability: Durability,
    /// What a relay of this store calls itself.
    relay_name: Arc<str>,
    /// Keeps an in-memory database, from the first check on.
    in_memory: Arc<OnceCell<InMemory>>,
    allows_untested: bool,
    /// Whether the messages are in daily tables, once it is known.
    #[cfg(feature = "postgres")]
    by_day: Arc<OnceCell<bool>>,
}

impl SqlStore {
    /// The outbox with the default table names.
    #[must_use]
    pub fn new(db: DatabaseConnection) -> Self {
        Self::over(db, TableNames::new(), relay_name::of_process())
    }

    /// Sets other table names: the same as in the writers' [`OutboxConfig`](crate::OutboxConfig).
    ///
    /// From then on these names count as in use in this process: see [`RecordError::DefaultNames`](crate::RecordError::DefaultNames).
    ///
    /// # Errors
    ///
    /// [`NameError`] if the database cannot hold such names.
    pub fn with_names(self, names: &TableNames) -> Result<Self, NameError> {
        names.check(self.dialect.backend)?;
        in_use::note(names);
        let allows_untested = self.allows_untested;
        Ok(Self {
            allows_untested,
            ..Self::over(self.db, names.clone(), self.relay_name)
        })
    }

    fn over(db: DatabaseConnection, names: TableNames, relay_name: Arc<str>) -> Self {
        let dialect = Dialect::new(db.get_database_backend(), &names);
        Self {
            db,
            names,
            dialect: Arc::new(dialect),
            isolation: Isolation::default(),
            memory: fetch::Memory::default(),
            durability: Durability::default(),
            relay_name,
            in_memory: Arc::default(),
            allows_untested: false,
            #[cfg(feature = "postgres")]
            by_day: Arc::default(),
        }
    }

    /// Allows an engine that was not tested, such as CockroachDB, YugabyteDB or TiDB. Without this setting the preflight refuses such an engine by
    /// its name. Some of them lack locks or isolation on which the order and the completeness of the messages depend.
    #[must_use]
    pub fn allow_untested_engine(mut self, is_allowed: bool) -> Self {
        self.allows_untested = is_allowed;
        self
    }

    /// The pool.
    #[must_use]
    pub fn connection(&self) -> &DatabaseConnection {
        &self.db
    }

    /// Runs a call in a task and on a connection of its own. `context` is the text of its database errors.
    async fn run<T, F>(
        &self,
        context: &'static str,
        work: impl FnOnce(Arc<Session>, Arc<Dialect>) -> F + Send + 'static,
    ) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, DbErr>> + Send + 'static,
    {
        self.call(work).await.map_err(|error| self.failed(context, error))
    }

    /// Names the server if it is out of reach, refuses the login or has no TLS that is trusted.
    fn failed(&self, context: &'static str, error: DbErr) -> StoreError {
        match connect_error(&self.db, error) {
            ConnectError::Failed { source, .. } => failed(context)(source),
            error => StoreError::Database {
                context,
                source: Box::new(error),
            },
        }
    }

    /// As [`Self::run`], for work that says itself what failed. Boxed, because otherwise the nested types of callers' futures reach the
    /// compiler's recursion limit.
    fn call<T, E, F>(
        &self,
        work: impl FnOnce(Arc<Session>, Arc<Dialect>) -> F + Send + 'static,
    ) -> BoxFuture<'static, Result<T, E>>
    where
        T: Send + 'static,
        E: Send + 'static,
        F: Future<Output = Result<T, E>> + Send + 'static,
    {
        in_use::note(&self.names);
        let (db, isolation, dialect) = (self.db.clone(), self.isolation.clone(), self.dialect.clone());
        Box::pin(async move { session::call(&db, &isolation, |db| work(db, dialect)).await })
    }
}

impl OutboxStore for SqlStore {
    async fn preflight(&self, deletes: bool) -> Result<Vec<String>, StoreError> {
        let (pool, untested) = (self.db.clone(), self.allows_untested);
        // The checks below report a connection error.
        let in_memory = self.in_memory.get_or_try_init(|| keep_in_memory(&pool)).await;
        if let Ok(InMemory::CanBeLost) = in_memory {
            return Err(setup(CAN_BE_LOST.to_owned()));
        }
        self.call(move |db, dialect| async move {
            preflight::preflight(&pool, &db, &dialect, deletes, untested).await
        })
        .await
    }

    async fn announce(
        &self,
        owner: OwnerId,
        ttl: Duration,
        announcement: &Announcement,
    ) -> Result<Relays, StoreError> {
        let (name, announcement) = (self.relay_name.clone(), announcement.clone());
        let context = "the relay could not be announced";
        self.run(context, move |db, dialect| async move {
            relays::announce(&db, &dialect, owner, ttl, &announcement, &name).await
        })
        .await
    }

    async fn relays(&self) -> Result<Vec<LiveRelay>, StoreError> {
        let context = "relays could not be listed";
        self.run(context, |db, dialect| async move {
            relays::alive(&db, &dialect).await
        })
        .await
    }

    async fn acquire(&self, owner: OwnerId, ttl: Duration, max: u16) -> Result<Vec<Lease>, StoreError> {
        let context =
            "leases could not be acquired; if the tables are missing, run the migration of outbox-sea-orm";
        let acquired = self.run(context, move |db, dialect| async move {
            leases::acquire(&db, &dialect, owner, ttl, max).await
        });
        let (leases, rows) = acquired.await?;
        rows.map_or(Ok(()), |rows| rows.check(&self.dialect))?;
        Ok(leases)
    }

    async fn renew(&self, owner: OwnerId, leases: &[Lease], ttl: Duration) -> Result<Vec<Lease>, StoreError> {
        let leases = leases.to_vec();
        self.run("leases could not be renewed", move |db, dialect| async move {
            leases::renew(&db, &dialect, owner, &leases, ttl).await
        })
        .await
    }

    async fn release(&self, owner: OwnerId, leases: &[Lease]) -> Result<(), StoreError> {
        let leases = leases.to_vec();
        self.run("leases could not be released", move |db, dialect| async move {
            leases::release(&db, &dialect, owner, &leases).await
        })
        .await
    }

    async fn leave(&self, owner: OwnerId) -> Result<(), StoreError> {
        self.run("leases could not be given back", move |db, dialect| async move {
            leases::leave(&db, &dialect, owner).await
        })
        .await
    }

    async fn fetch(&self, request: FetchRequest<'_>) -> Result<Fetched, StoreError> {
        if request.leases.is_empty() {
            return Ok(Fetched::default());
        }
        let bounds = Bounds {
            rows: request.limit.get() as usize,
            bytes: request.bytes,
        };
        let (partitions, in_flight) = (leases::partitions(request.leases), request.in_flight.to_vec());
        let limit = i64::from(request.limit.get());
        let memory = self.memory.clone();
        memory.begin(request.leases);
        let fetched = self.call(move |db, dialect| async move {
            let scope = Scope {
                partitions: &partitions,
                in_flight: &in_flight,
                limit,
            };
            fetch::fetch(&db, &dialect, scope, bounds, &memory).await
        });
        let fetched = self.durable(request.leases, fetched.await?).await?;
        self.memory.end(&fetched.due);
        Ok(fetched)
    }

    async fn fetch_waiting(&self, request: WaitingRequest<'_>) -> Result<Fetched, StoreError> {
        if request.leases.is_empty() {
            return Ok(Fetched::default());
        }
        let leases = request.leases;
        let request = waiting::Request {
            partitions: leases::partitions(request.leases),
            in_flight: request.in_flight.to_vec(),
            excluding: request.excluding.iter().map(Key::from).collect(),
            per_aggregate: i64::from(request.per_aggregate.get()),
            bounds: Bounds {
                rows: request.limit.get() as usize,
                bytes: request.bytes,
            },
            fitting: self.memory.fitting.clone(),
        };
        let fetched = self.call(|db, dialect| async move { waiting::fetch(&db, &dialect, request).await });
        self.durable(leases, fetched.await?).await
    }

    async fn settle(&self, leases: &[Lease], settlements: &[Settlement]) -> Result<usize, StoreError> {
        if settlements.is_empty() {
            return Ok(0);
        }
        let (leases, settlements) = (leases.to_vec(), settlements.to_vec());
        self.memory.settle(&settlements);
        let settled = self.call(move |db, dialect| async move {
            settle::settle(&db, &dialect, &leases, &settlements).await
        });
        settled.await.map_err(refusal::of_settlement)
    }

    async fn purge(&self, request: PurgeRequest) -> Result<Purged, StoreError> {
        #[cfg(feature = "postgres")]
        let by_day = self.by_day.clone();
        let context = "published messages could not be purged";
        self.run(context, move |db, dialect| async move {
            if purge::purge_keys(&db, &dialect, &request).await? {
                return Ok(purge::before_rows(0));
            }
            let Some(older_than) = request.older_than else {
                return Ok(Purged {
                    deleted: 0,
                    next: None,
                });
            };
            #[cfg(feature = "postgres")]
            if days::is_by_day(&db, &dialect, &by_day).await? {
                return days::purge(&db, &dialect, request, older_than).await;
            }
            purge::purge(&db, &dialect, request, older_than).await
        })
        .await
    }

    async fn pauses(&self) -> Result<Vec<Pause>, StoreError> {
        let context =
            "the pauses could not be read; if their table is missing, run the migration of outbox-sea-orm";
        self.run(
            context,
            |db, dialect| async move { pauses::read(&db, &dialect).await },
        )
        .await
    }

    async fn finish_pauses(&self) -> Result<bool, StoreError> {
        self.run("pauses could not be finished", |db, dialect| async move {
            pauses::finish(&db, &dialect).await
        })
        .await
    }

    async fn backlog(&self) -> Result<Backlog, StoreError> {
        self.run("the backlog could not be counted", |db, dialect| async move {
            admin::backlog(&db, &dialect).await
        })
        .await
    }
}

impl OutboxAdmin for SqlStore {
    async fn list(&self, selection: &Selection, limit: NonZeroU32) -> Result<Vec<StoredMessage>, StoreError> {
        let selection = selection.clone();
        self.run("messages could not be listed", move |db, dialect| async move {
            admin::list(&db, &dialect, &selection, limit).await
        })
        .await
    }

    async fn page(
        &self,
        selection: &Selection,
        from: PageFrom,
        limit: NonZeroU32,
    ) -> Result<Vec<StoredMessage>, StoreError> {
        let selection = selection.clone();
        self.run("messages could not be listed", move |db, dialect| async move {
            admin::page(&db, &dialect, &selection, from, limit).await
        })
        .await
    }

    async fn retry(&self, selection: &Selection) -> Result<u64, StoreError> {
        let selection = selection.clone();
        self.run("dead letters could not be retried", |db, dialect| async move {
            admin::decide(&db, &dialect, selection, Decision::Retry).await
        })
        .await
    }

    async fn skip(&self, selection: &Selection) -> Result<u64, StoreError> {
        let selection = selection.clone();
        self.run("dead letters could not be skipped", |db, dialect| async move {
            admin::decide(&db, &dialect, selection, Decision::Skip).await
        })
        .await
    }

    async fn replay(&self, selection: &Selection) -> Result<u64, StoreError> {
        let selection = selection.clone();
        self.run("messages could not be replayed", |db, dialect| async move {
            admin::replay(&db, &dialect, selection, admin::REPLAYED_MAX).await
        })
        .await
    }

    async fn blocked(&self, limit: NonZeroU32) -> Result<Vec<BlockedAggregate>, StoreError> {
        let context = "blocked aggregates could not be listed";
        self.run(context, move |db, dialect| async move {
            admin::blocked(&db, &dialect, limit).await
        })
        .await
    }

    async fn resume(&self, aggregate: &Aggregate) -> Result<bool, StoreError> {
        let aggregate = aggregate.clone();
        self.run("the aggregate could not be resumed", |db, dialect| async move {
            admin::resume(&db, &dialect, &aggregate).await
        })
        .await
    }

    async fn forget(&self, aggregates: &[Aggregate]) -> Result<Forgotten, StoreError> {
        let aggregates = aggregates.to_vec();
        self.run(
            "aggregates could not be forgotten",
            move |db, dialect| async move { forget::forget(&db, &dialect, &aggregates, None).await },
        )
        .await
    }

    async fn forget_idle(&self, aggregate_type: &str, idle_for: Duration) -> Result<u64, StoreError> {
        let aggregate_type = aggregate_type.to_owned();
        self.run("idle aggregates could not be forgotten", move |db, dialect| async move {
            forget::forget_idle(&db, &dialect, &aggregate_type, idle_for).await
        })
        .await
    }

    async fn pause(&self, request: &PauseRequest) -> Result<(), StoreError> {
        let request = request.clone();
        self.run("publishing could not be paused", |db, dialect| async move {
            pauses::begin(&db, &dialect, &request).await
        })
        .await
    }

    async fn unpause(&self, aggregate_type: Option<&str>) -> Result<bool, StoreError> {
        let aggregate_type = aggregate_type.map(str::to_owned);
        self.run("the pause could not be ended", |db, dialect| async move {
            pauses::end(&db, &dialect, aggregate_type.as_deref()).await
        })
        .await
    }

    async fn published(
        &self,
        recorded_from: OffsetDateTime,
        recorded_until: OffsetDateTime,
        after: Option<MessageId>,
        limit: NonZeroU32,
    ) -> Result<Vec<Message>, StoreError> {
        let recorded = (recorded_from, recorded_until);
        self.call(
            move |db, dialect| async move { admin::published(&db, &dialect, recorded, after, limit).await },
        )
        .await
    }
}
