//! The outbox in PostgreSQL, MySQL/MariaDB or SQLite, for the relay and for operators.
//!
//! Invariants: each operation runs in a separate task and connection (`session`). Transactions are
//! short and READ COMMITTED (SQLite: IMMEDIATE). All times come from the database's clock. The
//! store retries only deadlocks.

mod admin;
pub(crate) mod audit;
mod backlog;
mod block;
mod connection;
mod failure;
mod fetch;
mod forget;
mod id_range;
pub(crate) mod lease;
mod message;
mod pause;
mod preflight;
mod purge;
mod reader;
mod refusal;
mod relay;
mod row;
mod session;
mod settle;

#[cfg(test)]
mod tests;

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use outbox_core::{
    Announcement, Backlog, BlockedAggregate, FetchRequest, Fetched, Lease, LiveRelay, Message, MessageId,
    OutboxAdmin, OutboxStore, OwnerId, PageFrom, Pause, PurgeRequest, Purged, Relays, Selection, Settlement,
    SetupKind, SetupProblem, StoreError, StoredMessage, WaitingRequest,
};
use sea_orm::{DatabaseConnection, DbErr};
use time::OffsetDateTime;
use tokio::sync::OnceCell;

pub use self::pause::hold::Held;
#[cfg(feature = "testing")]
pub(crate) use self::row::recorded;

use self::failure::{DEADLOCKS_MAX, failed, is_deadlock, no_driver, repeat_deadlocks};
use self::fetch::durability::{Durability, durable};
use self::fetch::sql::Scope;
use self::fetch::waiting;
use self::fetch::{Bounds, Fitting};
use self::refusal::refuses_to_write;
use self::session::{Isolation, Session};
use crate::connect::memory::{CAN_BE_LOST, InMemory, keep_in_memory};
use crate::connect::{ConnectError, connect_error};
use crate::error::answer::DatabaseAnswer;
use crate::error::code::has_code;
use crate::names::usage;
use crate::names::{NameError, TableNames};
use crate::sql::{Dialect, Key};

macro_rules! run {
    ($store:ident, $context:literal => |$db:ident| $call:expr) => {
        $store.run($context, move |$db| async move { $call.await }).await
    };
}
use run;

/// The outbox of a database, for the relay and for operators.
///
/// Use a separate pool with two or three connections, so that service and relay do not starve each
/// other. Keep `min_connections` at 0: sqlx 0.9 waits up to five minutes for these connections.
/// After a call's future is dropped, the call may run for one more second. Then its connection is
/// closed.
///
/// * **MySQL, MariaDB**: MySQL 8.0.1 or MariaDB 10.6 (`SKIP LOCKED`), without `binlog_format =
///   STATEMENT`, which forbids READ COMMITTED. With Galera, write to one node: across nodes,
///   `row_id` is not in commit order.
/// * **SQLite**: WAL, a `busy_timeout` (SeaORM's default is 5 s), and one process per file.
///   `SQLITE_BUSY` is [`StoreError::Database`], which the relay retries.
#[derive(Debug, Clone)]
pub struct SqlStore {
    db: DatabaseConnection,
    names: TableNames,
    dialect: Arc<Dialect>,
    isolation: Isolation,
    fitting: Fitting,
    durability: Durability,
    relay_name: Arc<str>,
    in_memory: Arc<OnceCell<InMemory>>,
    allows_untested: bool,
}

impl SqlStore {
    /// Uses the default table names.
    #[must_use]
    pub fn new(db: DatabaseConnection) -> Self {
        Self::over(db, TableNames::new(), relay::name::of_process())
    }

    /// Sets the table names, which must equal those of the writers'
    /// [`OutboxConfig`](crate::OutboxConfig), and marks the names as used: see
    /// [`RecordError::DefaultNames`](crate::RecordError::DefaultNames).
    ///
    /// # Errors
    ///
    /// [`NameError`] if the database does not support the schema.
    pub fn with_names(self, names: &TableNames) -> Result<Self, NameError> {
        names.check(self.dialect.backend)?;
        usage::note(names);
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
            fitting: Fitting::default(),
            durability: Durability::default(),
            relay_name,
            in_memory: Arc::default(),
            allows_untested: false,
        }
    }

    /// Allows an untested engine (CockroachDB, YugabyteDB, TiDB), which may lack required locks or
    /// isolation. Default: the preflight rejects such an engine.
    #[must_use]
    pub fn allow_untested_engine(mut self, is_allowed: bool) -> Self {
        self.allows_untested = is_allowed;
        self
    }

    /// The store's pool.
    #[must_use]
    pub fn connection(&self) -> &DatabaseConnection {
        &self.db
    }

    /// Sets the relay's name for operators (`outbox relay list`). Default: host (`HOSTNAME`, then
    /// the system's) and process id, such as `shop-7d9f/1`.
    ///
    /// Keeps printable ASCII, at most 128 bytes. An empty result changes nothing. Names need not be
    /// unique: relays are identified by [`OwnerId`](outbox_core::OwnerId).
    #[must_use]
    pub fn with_relay_name(mut self, name: impl Into<String>) -> Self {
        let name = relay::name::storable(&name.into());
        if !name.is_empty() {
            self.relay_name = name.into();
        }
        self
    }

    async fn run<T, F>(
        &self,
        context: &'static str,
        work: impl FnOnce(Arc<Session>) -> F + Send + 'static,
    ) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, DbErr>> + Send + 'static,
    {
        self.call(work).await.map_err(|error| self.failed(context, error))
    }

    fn failed(&self, context: &'static str, error: DbErr) -> StoreError {
        if DatabaseAnswer::is_table_missing(&error, "outbox_operations") {
            let (table, error) = (&self.dialect.operations, outbox_core::describe(&error));
            return StoreError::setup(
                SetupKind::Tables,
                format!("table {table} is missing, so no change was made ({error})"),
                "run `outbox migrate`, or `outbox_sea_orm::migrate`",
            );
        }
        match connect_error(&self.db, error) {
            ConnectError::Failed { source, .. } => failed(context)(source),
            error => StoreError::Database {
                context,
                source: Box::new(error),
            },
        }
    }

    /// The future is boxed, because nested future types would exceed the compiler's recursion
    /// limit.
    fn call<T, E, F>(
        &self,
        work: impl FnOnce(Arc<Session>) -> F + Send + 'static,
    ) -> BoxFuture<'static, Result<T, E>>
    where
        T: Send + 'static,
        E: Send + 'static,
        F: Future<Output = Result<T, E>> + Send + 'static,
    {
        usage::note(&self.names);
        let (db, isolation, dialect) = (self.db.clone(), self.isolation.clone(), self.dialect.clone());
        Box::pin(async move { session::call(&db, &isolation, dialect, work).await })
    }
}

impl OutboxStore for SqlStore {
    async fn preflight(&self, deletes: bool) -> Result<Vec<SetupProblem>, StoreError> {
        let (pool, untested) = (self.db.clone(), self.allows_untested);
        let in_memory = self.in_memory.get_or_try_init(|| keep_in_memory(&pool)).await;
        if let Ok(InMemory::CanBeLost) = in_memory {
            return Err(StoreError::setup(SetupKind::Setting, CAN_BE_LOST, ""));
        }
        self.call(move |db| async move { preflight::preflight(&pool, &db, deletes, untested).await })
            .await
    }

    async fn announce(
        &self,
        owner: OwnerId,
        ttl: Duration,
        announcement: &Announcement,
    ) -> Result<Relays, StoreError> {
        let (name, announcement) = (self.relay_name.clone(), announcement.clone());
        run!(self, "the relay could not be announced" =>
            |db| relay::announce(&db, owner, ttl, &announcement, &name))
    }

    async fn relays(&self) -> Result<Vec<LiveRelay>, StoreError> {
        run!(self, "relays could not be listed" => |db| relay::alive(&db))
    }

    async fn acquire(&self, owner: OwnerId, ttl: Duration, max: u16) -> Result<Vec<Lease>, StoreError> {
        let (leases, rows) = run!(self,
            "leases could not be acquired; if the tables are missing, run the migration of outbox-sea-orm" =>
            |db| lease::acquire(&db, owner, ttl, max))?;
        rows.map_or(Ok(()), |rows| rows.check(&self.dialect))?;
        Ok(leases)
    }

    async fn renew(&self, owner: OwnerId, leases: &[Lease], ttl: Duration) -> Result<Vec<Lease>, StoreError> {
        let leases = leases.to_vec();
        run!(self, "leases could not be renewed" => |db| lease::renew(&db, owner, &leases, ttl))
    }

    async fn release(&self, owner: OwnerId, leases: &[Lease]) -> Result<(), StoreError> {
        let leases = leases.to_vec();
        run!(self, "leases could not be released" => |db| lease::release(&db, owner, &leases))
    }

    async fn leave(&self, owner: OwnerId) -> Result<(), StoreError> {
        run!(self, "all leases of the relay could not be released" => |db| lease::leave(&db, owner))
    }

    async fn fetch(&self, request: FetchRequest<'_>) -> Result<Fetched, StoreError> {
        if request.leases.is_empty() {
            return Ok(Fetched::default());
        }
        let bounds = Bounds {
            rows: request.limit.get() as usize,
            bytes: request.bytes,
        };
        let (partitions, in_flight) = (lease::partitions(request.leases), request.in_flight.to_vec());
        let limit = i64::from(request.limit.get());
        let fitting = self.fitting.clone();
        let fetched = self.call(move |db| async move {
            let scope = Scope {
                partitions: &partitions,
                in_flight: &in_flight,
                limit,
            };
            fetch::fetch(&db, scope, bounds, &fitting).await
        });
        durable(self, request.leases, fetched.await?).await
    }

    async fn fetch_waiting(&self, request: WaitingRequest<'_>) -> Result<Fetched, StoreError> {
        if request.leases.is_empty() {
            return Ok(Fetched::default());
        }
        let leases = request.leases;
        let request = waiting::Request {
            partitions: lease::partitions(request.leases),
            in_flight: request.in_flight.to_vec(),
            excluding: request.excluding.iter().map(Key::from).collect(),
            per_aggregate: i64::from(request.per_aggregate.get()),
            bounds: Bounds {
                rows: request.limit.get() as usize,
                bytes: request.bytes,
            },
            fitting: self.fitting.clone(),
        };
        let fetched = self.call(|db| async move { waiting::fetch(&db, request).await });
        durable(self, leases, fetched.await?).await
    }

    async fn settle(&self, leases: &[Lease], settlements: &[Settlement]) -> Result<usize, StoreError> {
        if settlements.is_empty() {
            return Ok(0);
        }
        let (leases, settlements) = (leases.to_vec(), settlements.to_vec());
        let settled = self.call(move |db| async move { settle::settle(&db, &leases, &settlements).await });
        settled.await.map_err(refusal::of_settlement)
    }

    async fn purge(&self, request: PurgeRequest) -> Result<Purged, StoreError> {
        run!(self, "published messages could not be purged" => |db| purge::purge(&db, request))
    }

    async fn pauses(&self) -> Result<Vec<Pause>, StoreError> {
        run!(self,
            "the pauses could not be read; if their table is missing, run the migration of outbox-sea-orm" =>
            |db| pause::read(&db))
    }

    async fn finish_pauses(&self) -> Result<bool, StoreError> {
        run!(self, "pauses could not be finished" => |db| pause::finish(&db))
    }

    async fn backlog(&self) -> Result<Backlog, StoreError> {
        run!(self, "the backlog could not be counted" => |db| backlog::count(&db))
    }
}

impl OutboxAdmin for SqlStore {
    async fn list(&self, selection: &Selection, limit: NonZeroU32) -> Result<Vec<StoredMessage>, StoreError> {
        let selection = selection.clone();
        run!(self, "messages could not be listed" => |db| message::list(&db, &selection, limit))
    }

    async fn page(
        &self,
        selection: &Selection,
        from: PageFrom,
        limit: NonZeroU32,
    ) -> Result<Vec<StoredMessage>, StoreError> {
        let selection = selection.clone();
        run!(self, "messages could not be listed" => |db| message::page(&db, &selection, from, limit))
    }

    async fn blocked(&self, limit: NonZeroU32) -> Result<Vec<BlockedAggregate>, StoreError> {
        run!(self, "blocked aggregates could not be listed" => |db| block::blocked(&db, limit))
    }

    async fn forget_idle(&self, aggregate_type: &str, idle_for: Duration) -> Result<u64, StoreError> {
        let aggregate_type = aggregate_type.to_owned();
        run!(self, "idle aggregates could not be forgotten" =>
            |db| forget::forget_idle(&db, &aggregate_type, idle_for))
    }

    async fn published(
        &self,
        recorded_from: OffsetDateTime,
        recorded_until: OffsetDateTime,
        after: Option<MessageId>,
        limit: NonZeroU32,
    ) -> Result<Vec<Message>, StoreError> {
        let recorded = (recorded_from, recorded_until);
        self.call(move |db| async move { message::published(&db, recorded, after, limit).await })
            .await
    }
}
