//! The outbox in PostgreSQL, MySQL/MariaDB or SQLite, as the relay sees it.
//!
//! Invariants: every operation runs in a task and on a connection of its own (`session`), so dropping a future never leaves a transaction open; transactions are
//! short and READ
//! COMMITTED (SQLite: IMMEDIATE); the database's clock decides. Absent: retries (the relay's), and settings of the pool
//! (its owner's).

mod admin;
mod blocks;
#[cfg(feature = "postgres")]
mod days;
mod fetch;
mod leases;
mod own;
mod preflight;
mod purge;
#[cfg_attr(
    not(any(feature = "postgres", feature = "mysql", feature = "sqlite")),
    path = "driverless.rs"
)]
mod session;
mod settle;
mod waiting;

#[cfg(test)]
mod plans;

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use outbox_core::{
    Aggregate, Backlog, BlockedAggregate, FetchRequest, Fetched, Fitness, Lease, Message, MessageId,
    OutboxAdmin, OutboxStore, OwnerId, PurgeRequest, Purged, Relays, Selection, Settlement, StoreError,
    StoredMessage, WaitingRequest,
};
use sea_orm::{DatabaseConnection, DbErr};
use time::OffsetDateTime;
use tokio::sync::OnceCell;

use self::admin::Decision;
use self::fetch::Bounds;
use self::session::call;
use crate::dialect::Dialect;
use crate::dialect::fetch::Scope;
use crate::dialect::key::Key;
use crate::names::{NameError, TableNames};

/// The outbox of a database, for the relay and for operators.
///
/// Give it a pool of its own with two or three connections, so that neither a busy service nor a busy relay starves the other.
/// A call that is not waited for any more has a second to end; then its connection is closed, because a connection that has fallen silent would never
/// come back to the pool. Leave the pool's `min_connections` at 0: sqlx 0.9 opens such connections in the background, and waits for them for five minutes.
///
/// * **MySQL, MariaDB**: MySQL 8.0.1 or MariaDB 10.6 (`SKIP LOCKED`), and not `binlog_format = STATEMENT` (READ COMMITTED). With Galera, write to one node: on several, `row_id` is not in
///   the order of commits.
/// * **PostgreSQL**: works with both layouts, the ordinary one and [the one by day](crate::migration::partitioned).
/// * **SQLite**: use WAL and a `busy_timeout` (SeaORM's default is 5 s), and one process per file. `SQLITE_BUSY` is reported as
///   [`StoreError::Database`], which the relay retries.
#[derive(Debug, Clone)]
pub struct SqlStore {
    db: DatabaseConnection,
    dialect: Arc<Dialect>,
    /// Whether messages are partitioned by day, once it is known.
    by_day: Arc<OnceCell<bool>>,
}

impl SqlStore {
    /// The outbox with the default table names.
    #[must_use]
    pub fn new(db: DatabaseConnection) -> Self {
        let dialect = Dialect::new(db.get_database_backend(), &TableNames::new());
        Self {
            db,
            dialect: Arc::new(dialect),
            by_day: Arc::default(),
        }
    }

    /// Sets other table names; the same as in the writers' [`OutboxConfig`](crate::OutboxConfig).
    ///
    /// # Errors
    ///
    /// [`NameError`] if the database cannot hold such names.
    pub fn with_names(mut self, names: &TableNames) -> Result<Self, NameError> {
        names.check(self.dialect.backend)?;
        self.dialect = Arc::new(Dialect::new(self.dialect.backend, names));
        self.by_day = Arc::default();
        Ok(self)
    }

    /// The pool.
    #[must_use]
    pub fn connection(&self) -> &DatabaseConnection {
        &self.db
    }

    /// For [`crate::testing`].
    #[cfg(feature = "testing")]
    pub(crate) async fn recorded(
        db: &DatabaseConnection,
        names: &TableNames,
    ) -> Result<Vec<outbox_core::Message>, StoreError> {
        let dialect = Dialect::new(db.get_database_backend(), names);
        let read = move |db: Arc<session::Session>| async move {
            fetch::read_all(&db, dialect.recorded(), false, usize::MAX).await
        };
        let rows = call(db, read).await?;
        rows.into_iter()
            .map(|(scanned, _)| {
                scanned
                    .row
                    .message
                    .map_err(|context| StoreError::Corrupt { context })
            })
            .collect()
    }

    fn parts(&self) -> (DatabaseConnection, Arc<Dialect>) {
        (self.db.clone(), self.dialect.clone())
    }
}

impl OutboxStore for SqlStore {
    async fn preflight(&self) -> Result<Vec<String>, StoreError> {
        let (db, dialect) = self.parts();
        call(
            &db,
            move |db| async move { preflight::preflight(&db, &dialect).await },
        )
        .await
    }

    async fn announce(&self, owner: OwnerId, ttl: Duration, fitness: Fitness) -> Result<Relays, StoreError> {
        let (db, dialect) = self.parts();
        call(&db, move |db| async move {
            leases::announce(&db, &dialect, owner, ttl, fitness).await
        })
        .await
        .map_err(failed("the relay could not be announced"))
    }

    async fn acquire(&self, owner: OwnerId, ttl: Duration, max: u16) -> Result<Vec<Lease>, StoreError> {
        let (db, dialect) = self.parts();
        call(&db, move |db| async move {
            leases::acquire(&db, &dialect, owner, ttl, max).await
        })
        .await
        .map_err(failed(
            "leases could not be acquired; if the tables are missing, run the migration of outbox-sea-orm",
        ))
    }

    async fn renew(&self, owner: OwnerId, leases: &[Lease], ttl: Duration) -> Result<Vec<Lease>, StoreError> {
        let (db, dialect) = self.parts();
        let leases = leases.to_vec();
        call(&db, move |db| async move {
            leases::renew(&db, &dialect, owner, &leases, ttl).await
        })
        .await
        .map_err(failed("leases could not be renewed"))
    }

    async fn release(&self, owner: OwnerId, leases: &[Lease]) -> Result<(), StoreError> {
        let (db, dialect) = self.parts();
        let leases = leases.to_vec();
        call(&db, move |db| async move {
            leases::release(&db, &dialect, owner, &leases).await
        })
        .await
        .map_err(failed("leases could not be released"))
    }

    async fn leave(&self, owner: OwnerId) -> Result<(), StoreError> {
        let (db, dialect) = self.parts();
        call(
            &db,
            move |db| async move { leases::leave(&db, &dialect, owner).await },
        )
        .await
        .map_err(failed("leases could not be given back"))
    }

    async fn fetch(&self, request: FetchRequest<'_>) -> Result<Fetched, StoreError> {
        if request.leases.is_empty() {
            return Ok(Fetched::default());
        }
        let bounds = Bounds {
            rows: request.limit.get() as usize,
            bytes: request.bytes,
        };
        let (db, dialect) = self.parts();
        let (partitions, in_flight) = (leases::partitions(request.leases), request.in_flight.to_vec());
        let limit = i64::from(request.limit.get());
        call(&db, move |db| async move {
            let scope = Scope {
                partitions: &partitions,
                in_flight: &in_flight,
                limit,
            };
            fetch::fetch(&db, &dialect, scope, bounds).await
        })
        .await
    }

    async fn fetch_waiting(&self, request: WaitingRequest<'_>) -> Result<Fetched, StoreError> {
        if request.leases.is_empty() {
            return Ok(Fetched::default());
        }
        let (db, dialect) = self.parts();
        let request = waiting::Request {
            partitions: leases::partitions(request.leases),
            in_flight: request.in_flight.to_vec(),
            excluding: request.excluding.iter().map(Key::from).collect(),
            per_aggregate: i64::from(request.per_aggregate.get()),
            bounds: Bounds {
                rows: request.limit.get() as usize,
                bytes: request.bytes,
            },
        };
        call(&db, move |db| async move {
            waiting::fetch(&db, &dialect, request).await
        })
        .await
    }

    async fn settle(&self, leases: &[Lease], settlements: &[Settlement]) -> Result<usize, StoreError> {
        if settlements.is_empty() {
            return Ok(0);
        }
        let (db, dialect) = self.parts();
        let (leases, settlements) = (leases.to_vec(), settlements.to_vec());
        call(&db, move |db| async move {
            settle::settle(&db, &dialect, &leases, &settlements).await
        })
        .await
        .map_err(failed("messages could not be settled"))
    }

    async fn purge(&self, request: PurgeRequest) -> Result<Purged, StoreError> {
        let (db, dialect) = self.parts();
        let by_day = self.by_day.clone();
        call(&db, move |db| async move {
            purge::purge(&db, &dialect, &by_day, request).await
        })
        .await
        .map_err(failed("published messages could not be purged"))
    }

    async fn backlog(&self) -> Result<Backlog, StoreError> {
        let (db, dialect) = self.parts();
        call(&db, move |db| async move { admin::backlog(&db, &dialect).await })
            .await
            .map_err(failed("the backlog could not be counted"))
    }
}

impl OutboxAdmin for SqlStore {
    async fn list(&self, selection: &Selection, limit: NonZeroU32) -> Result<Vec<StoredMessage>, StoreError> {
        let (db, dialect) = self.parts();
        let selection = selection.clone();
        call(&db, move |db| async move {
            admin::list(&db, &dialect, &selection, limit).await
        })
        .await
        .map_err(failed("messages could not be listed"))
    }

    async fn retry(&self, selection: &Selection) -> Result<u64, StoreError> {
        let (db, dialect) = self.parts();
        let selection = selection.clone();
        call(&db, move |db| async move {
            admin::decide(&db, &dialect, selection, Decision::Retry).await
        })
        .await
        .map_err(failed("dead letters could not be retried"))
    }

    async fn skip(&self, selection: &Selection) -> Result<u64, StoreError> {
        let (db, dialect) = self.parts();
        let selection = selection.clone();
        call(&db, move |db| async move {
            admin::decide(&db, &dialect, selection, Decision::Skip).await
        })
        .await
        .map_err(failed("dead letters could not be skipped"))
    }

    async fn replay(&self, selection: &Selection) -> Result<u64, StoreError> {
        let (db, dialect) = self.parts();
        let selection = selection.clone();
        call(
            &db,
            |db| async move { admin::replay(&db, &dialect, selection).await },
        )
        .await
        .map_err(failed("messages could not be replayed"))
    }

    async fn blocked(&self, limit: NonZeroU32) -> Result<Vec<BlockedAggregate>, StoreError> {
        let (db, dialect) = self.parts();
        call(&db, move |db| async move {
            admin::blocked(&db, &dialect, limit).await
        })
        .await
        .map_err(failed("blocked aggregates could not be listed"))
    }

    async fn resume(&self, aggregate: &Aggregate) -> Result<bool, StoreError> {
        let (db, dialect) = self.parts();
        let aggregate = aggregate.clone();
        call(
            &db,
            |db| async move { admin::resume(&db, &dialect, &aggregate).await },
        )
        .await
        .map_err(failed("the aggregate could not be resumed"))
    }

    async fn published(
        &self,
        recorded_from: OffsetDateTime,
        recorded_until: OffsetDateTime,
        after: Option<MessageId>,
        limit: NonZeroU32,
    ) -> Result<Vec<Message>, StoreError> {
        let (db, dialect) = self.parts();
        let recorded = (recorded_from, recorded_until);
        call(&db, move |db| async move {
            admin::published(&db, &dialect, recorded, after, limit).await
        })
        .await
    }
}

/// Repeats a transaction that the database has chosen as the victim of a deadlock: between operators and relays they can happen, and
/// the whole transaction is undone then.
macro_rules! repeat_deadlocks {
    ($work:expr) => {{
        let mut repeats = 0;
        loop {
            match $work.await {
                Err(error)
                    if repeats < $crate::store::DEADLOCKS_MAX && $crate::store::is_deadlock(&error) =>
                {
                    repeats += 1;
                }
                outcome => break outcome,
            }
        }
    }};
}
use repeat_deadlocks;

/// How often a transaction is repeated after deadlocks.
const DEADLOCKS_MAX: u32 = 10;

/// PostgreSQL's and InnoDB's answers to a deadlock; InnoDB's too to one with another writer of a cluster.
fn is_deadlock(error: &DbErr) -> bool {
    has_code(error, &["40P01", "40001"])
}

#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
fn has_code(error: &DbErr, codes: &[&str]) -> bool {
    use sea_orm::RuntimeErr;

    let (DbErr::Exec(RuntimeErr::SqlxError(error)) | DbErr::Query(RuntimeErr::SqlxError(error))) = error
    else {
        return false;
    };
    let code = error.as_database_error().and_then(|error| error.code());
    code.is_some_and(|code| codes.contains(&&*code))
}

/// Without a driver there are no answers at all.
#[cfg(not(any(feature = "postgres", feature = "mysql", feature = "sqlite")))]
fn has_code(_: &DbErr, _: &[&str]) -> bool {
    false
}

fn failed(context: &'static str) -> impl FnOnce(DbErr) -> StoreError {
    move |source| StoreError::Database {
        context,
        source: Box::new(source),
    }
}
