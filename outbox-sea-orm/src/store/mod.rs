//! The outbox in PostgreSQL, MySQL/MariaDB or SQLite, as the relay sees it.
//!
//! Invariants: every operation runs in a task of its own, so dropping a future never leaves a transaction open; transactions are short and READ
//! COMMITTED (SQLite: IMMEDIATE); the database's clock decides. Absent: retries (the relay's), and settings of the pool
//! (its owner's).

mod admin;
mod fetch;
mod leases;
mod settle;

#[cfg(test)]
mod plans;

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use outbox_core::{
    Backlog, FetchRequest, FetchedRow, Lease, MessageId, OutboxAdmin, OutboxStore, OwnerId, ParkedMessage,
    Settlement, StoreError,
};
use sea_orm::{
    DatabaseConnection, DatabaseTransaction, DbBackend, DbErr, IsolationLevel, SqliteTransactionMode,
    TransactionOptions, TransactionTrait,
};

use crate::detached::detached;
use crate::dialect::Dialect;
use crate::names::{NameError, TableNames};

/// The outbox of a database, for the relay and for operators.
///
/// Give it a pool of its own with two or three connections, so that neither a busy service nor a busy relay starves the other.
///
/// * **MySQL, MariaDB**: MySQL 8.0.1 or MariaDB 10.6 (`SKIP LOCKED`), and not `binlog_format = STATEMENT` (READ COMMITTED). With Galera, write to one node: on several, `seq` is not in
///   the order of commits.
/// * **SQLite**: use WAL and a `busy_timeout` (SeaORM's default is 5 s), and one process per file. `SQLITE_BUSY` is reported as
///   [`StoreError::Database`], which the relay retries.
#[derive(Debug, Clone)]
pub struct SqlStore {
    db: DatabaseConnection,
    dialect: Arc<Dialect>,
}

impl SqlStore {
    /// The outbox with the default table names.
    #[must_use]
    pub fn new(db: DatabaseConnection) -> Self {
        let dialect = Dialect::new(db.get_database_backend(), &TableNames::new());
        Self {
            db,
            dialect: Arc::new(dialect),
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
        let rows = fetch::fetch(db, dialect.recorded()).await?;
        rows.into_iter()
            .map(|row| row.message.map_err(|context| StoreError::Corrupt { context }))
            .collect()
    }

    fn parts(&self) -> (DatabaseConnection, Arc<Dialect>) {
        (self.db.clone(), self.dialect.clone())
    }
}

impl OutboxStore for SqlStore {
    async fn acquire(&self, owner: OwnerId, ttl: Duration, max: u16) -> Result<Vec<Lease>, StoreError> {
        let (db, dialect) = self.parts();
        detached(async move { leases::acquire(&db, &dialect, owner, ttl, max).await })
            .await
            .map_err(failed("leases could not be acquired; if the tables are missing, run the migration of outbox-sea-orm"))
    }

    async fn renew(&self, owner: OwnerId, leases: &[Lease], ttl: Duration) -> Result<Vec<Lease>, StoreError> {
        let (db, dialect) = self.parts();
        let leases = leases.to_vec();
        detached(async move { leases::renew(&db, &dialect, owner, &leases, ttl).await })
            .await
            .map_err(failed("leases could not be renewed"))
    }

    async fn release(&self, owner: OwnerId, leases: &[Lease]) -> Result<(), StoreError> {
        let (db, dialect) = self.parts();
        let leases = leases.to_vec();
        detached(async move { leases::release(&db, &dialect, owner, &leases).await })
            .await
            .map_err(failed("leases could not be released"))
    }

    async fn fetch(&self, request: FetchRequest<'_>) -> Result<Vec<FetchedRow>, StoreError> {
        if request.leases.is_empty() {
            return Ok(Vec::new());
        }
        let partitions: Vec<i64> = request
            .leases
            .iter()
            .map(|lease| i64::from(lease.partition))
            .collect();
        let statement = fetch::statement(&self.dialect, &partitions, request.excluding, request.limit.get())
            .map_err(failed("messages could not be fetched"))?;
        let db = self.db.clone();
        detached(async move { fetch::fetch(&db, statement).await }).await
    }

    async fn settle(&self, leases: &[Lease], settlements: &[Settlement]) -> Result<usize, StoreError> {
        if settlements.is_empty() {
            return Ok(0);
        }
        let (db, dialect) = self.parts();
        let (leases, settlements) = (leases.to_vec(), settlements.to_vec());
        detached(async move { settle::settle(&db, &dialect, &leases, &settlements).await })
            .await
            .map_err(failed("messages could not be settled"))
    }

    async fn backlog(&self) -> Result<Backlog, StoreError> {
        let (db, dialect) = self.parts();
        detached(async move { admin::backlog(&db, &dialect).await })
            .await
            .map_err(failed("the backlog could not be counted"))
    }
}

impl OutboxAdmin for SqlStore {
    async fn parked(&self, limit: NonZeroU32) -> Result<Vec<ParkedMessage>, StoreError> {
        let (db, dialect) = self.parts();
        detached(async move { admin::parked(&db, &dialect, limit).await })
            .await
            .map_err(failed("parked messages could not be listed"))
    }

    async fn retry(&self, id: MessageId) -> Result<bool, StoreError> {
        let (db, dialect) = self.parts();
        detached(async move { admin::retry(&db, &dialect, id).await })
            .await
            .map_err(failed("the parked message could not be retried"))
    }

    async fn skip(&self, id: MessageId) -> Result<bool, StoreError> {
        let (db, dialect) = self.parts();
        detached(async move { admin::skip(&db, &dialect, id).await })
            .await
            .map_err(failed("the parked message could not be skipped"))
    }
}

/// A transaction of ours. Only to be called inside [`detached`]: on MySQL, SeaORM sends the isolation level as a statement of its own,
/// and a future dropped in between would leave it to the connection's next borrower.
async fn begin(db: &DatabaseConnection) -> Result<DatabaseTransaction, DbErr> {
    let mut options = TransactionOptions::default();
    match db.get_database_backend() {
        // A deferred transaction that reads before it writes fails at once when another one has written meanwhile.
        DbBackend::Sqlite => options.sqlite_transaction_mode = Some(SqliteTransactionMode::Immediate),
        // A lock that was waited for must show the row as it is now. On InnoDB, the default level would also lock gaps and so block
        // writers.
        _ => options.isolation_level = Some(IsolationLevel::ReadCommitted),
    }
    db.begin_with_options(options).await
}

fn failed(context: &'static str) -> impl FnOnce(DbErr) -> StoreError {
    move |source| StoreError::Database {
        context,
        source: Box::new(source),
    }
}
