//! Transactions that record events.
//!
//! Invariant: begin, commit and rollback run in a separate task: a dropped `begin` of sqlx 0.9.0
//! leaves an open transaction in the pool.

use std::ops::Deref;
use std::sync::{Arc, LazyLock};

use outbox_core::wake;
use sea_orm::{
    AccessMode, ConnectionTrait, DatabaseConnection, DatabaseTransaction, DbBackend, DbErr,
    SqliteTransactionMode, TransactionOptions, TransactionTrait,
};

use super::integrity::Integrity;
use super::integrity::watch::Watched;
use super::turn::Turn;
use crate::config::OutboxConfig;
use crate::names::usage;
use crate::task::detached;

#[doc(hidden)]
#[macro_export]
macro_rules! __connection {
    ($ty:ty, |$this:ident| $connection:expr) => {
        #[async_trait::async_trait]
        impl sea_orm::ConnectionTrait for $ty {
            fn get_database_backend(&self) -> sea_orm::DbBackend {
                let $this = self;
                sea_orm::ConnectionTrait::get_database_backend(&$connection)
            }

            async fn execute_raw(
                &self,
                statement: sea_orm::Statement,
            ) -> Result<sea_orm::ExecResult, sea_orm::DbErr> {
                let $this = self;
                $connection.execute_raw(statement).await
            }

            async fn execute_unprepared(&self, sql: &str) -> Result<sea_orm::ExecResult, sea_orm::DbErr> {
                let $this = self;
                $connection.execute_unprepared(sql).await
            }

            async fn query_one_raw(
                &self,
                statement: sea_orm::Statement,
            ) -> Result<Option<sea_orm::QueryResult>, sea_orm::DbErr> {
                let $this = self;
                $connection.query_one_raw(statement).await
            }

            async fn query_all_raw(
                &self,
                statement: sea_orm::Statement,
            ) -> Result<Vec<sea_orm::QueryResult>, sea_orm::DbErr> {
                let $this = self;
                $connection.query_all_raw(statement).await
            }

            fn support_returning(&self) -> bool {
                let $this = self;
                $connection.support_returning()
            }

            fn is_mock_connection(&self) -> bool {
                let $this = self;
                $connection.is_mock_connection()
            }
        }
    };
}

__connection!(OutboxConnection, |this| this.db);
__connection!(OutboxTransaction, |this| this.watched());

/// A pool with an [`OutboxConfig`], for other table names or limits.
#[derive(Debug, Clone)]
pub struct OutboxConnection {
    db: DatabaseConnection,
    config: Arc<OutboxConfig>,
}

impl OutboxConnection {
    /// Combines a pool and a configuration. Marks its names as used by this process
    /// ([`RecordError::DefaultNames`](crate::RecordError::DefaultNames)).
    pub fn new(db: DatabaseConnection, config: OutboxConfig) -> Self {
        usage::note(&config.names);
        Self {
            db,
            config: Arc::new(config),
        }
    }

    pub(crate) fn settings(&self) -> &Arc<OutboxConfig> {
        &self.config
    }

    /// Opens a transaction with this connection's configuration. The commit wakes the relays of
    /// this process. Cancel-safe: dropping the future rolls back.
    ///
    /// # Errors
    ///
    /// The database's error.
    pub async fn begin(&self) -> Result<OutboxTransaction, DbErr> {
        self.begin_with(TransactionOptions::default()).await
    }

    /// As [`Self::begin`], with an isolation level or access mode. `None`: the database's default.
    ///
    /// SQLite is always serializable and does not enforce the access mode. Its transactions take
    /// the write lock at the beginning, except with `AccessMode::ReadOnly`: without the lock, a
    /// write after a read fails without waiting.
    ///
    /// ```
    /// # async fn demo(db: outbox_sea_orm::OutboxConnection) -> Result<(), sea_orm::DbErr> {
    /// use sea_orm::{IsolationLevel, TransactionOptions};
    ///
    /// let options = TransactionOptions {
    ///     isolation_level: Some(IsolationLevel::Serializable),
    ///     ..Default::default()
    /// };
    /// let tx = db.begin_with(options).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The database's error. Above READ COMMITTED, statements and the commit can report
    /// serialization failures: use [`Self::transaction_with`].
    pub async fn begin_with(&self, options: TransactionOptions) -> Result<OutboxTransaction, DbErr> {
        let db = self.db.clone();
        let tx = detached(async move { begin_with(&db, options).await }).await?;
        Ok(OutboxTransaction::begun(tx, self.config.clone()))
    }
}

impl Deref for OutboxConnection {
    type Target = DatabaseConnection;

    fn deref(&self) -> &DatabaseConnection {
        &self.db
    }
}

/// A transaction with an [`OutboxConfig`]. Its commit wakes the relays of this process. Dropping it
/// rolls back.
///
/// If MySQL, MariaDB or SQLite has rolled back everything, later statements and the commit fail.
#[derive(Debug)]
pub struct OutboxTransaction {
    tx: DatabaseTransaction,
    config: Arc<OutboxConfig>,
    nested: bool,
    integrity: Integrity,
}

impl OutboxTransaction {
    pub(crate) fn begun(tx: DatabaseTransaction, config: Arc<OutboxConfig>) -> Self {
        Self {
            tx,
            config,
            nested: false,
            integrity: Integrity::default(),
        }
    }

    /// Opens a nested transaction (savepoint) with this configuration. End the nested transaction
    /// before you use the outer transaction: sqlx identifies savepoints only by depth.
    ///
    /// # Errors
    ///
    /// The database's error. The outer transaction then rejects its commit.
    ///
    /// # Cancellation
    ///
    /// If the future is dropped, the outer transaction rejects its commit.
    pub async fn begin(&self) -> Result<Self, DbErr> {
        Self::within(self).await
    }

    /// Opens a nested transaction.
    #[doc(hidden)]
    pub async fn within(outer: &impl Transactional) -> Result<Self, DbErr> {
        // If `begin` fails, sqlx 0.9.0 silently rolls back the outer transaction. The dropped
        // `turn` then prevents the outer commit.
        let turn = Turn::take(outer).await?;
        let tx = outer.transaction().begin().await?;
        let integrity = turn.integrity().nested();
        turn.ends();
        let config = Arc::new(outer.config().clone());
        Ok(Self::savepoint(tx, config, integrity))
    }

    pub(crate) fn savepoint(
        tx: DatabaseTransaction,
        config: Arc<OutboxConfig>,
        integrity: Integrity,
    ) -> Self {
        Self {
            tx,
            config,
            nested: true,
            integrity,
        }
    }

    pub(crate) fn watched(&self) -> Watched<'_> {
        Watched::new(&self.tx, &self.integrity)
    }

    pub(crate) async fn verify(&self) -> Result<(), DbErr> {
        self.integrity.verify(&self.tx).await
    }

    pub(crate) fn into_inner(self) -> DatabaseTransaction {
        self.tx
    }

    /// Commits, and wakes the relays of this process.
    ///
    /// On PostgreSQL, first checks for a failed transaction (one round trip): sqlx would report
    /// PostgreSQL's rollback as a successful commit. A nested transaction only releases its
    /// savepoint.
    ///
    /// # Errors
    ///
    /// The database's error. If [`is_commit_refused`](crate::is_commit_refused) is true, nothing is
    /// stored; if false, the outcome is unknown. After an error of [`record`](crate::record) or a
    /// cancelled save or record, everything is rolled back.
    pub async fn commit(self) -> Result<(), DbErr> {
        detached(async move {
            self.verify().await?;
            if self.nested {
                return self.tx.commit().await.inspect_err(|_| self.integrity.lose());
            }
            look(&self.tx).await?;
            self.tx.commit().await?;
            // If the process crashes now, relays find the messages at their next poll.
            wake::notify();
            Ok(())
        })
        .await
    }

    /// Rolls back.
    ///
    /// # Errors
    ///
    /// The database's error. After an error, the server rolls back when the connection ends.
    pub async fn rollback(self) -> Result<(), DbErr> {
        detached(async move {
            // A rollback to a missing savepoint leaves sqlx with a wrong depth.
            let _ = self.integrity.usable(&self.tx).await;
            self.tx.rollback().await.inspect_err(|_| self.integrity.doubt())
        })
        .await
    }
}

impl Deref for OutboxTransaction {
    type Target = DatabaseTransaction;

    fn deref(&self) -> &DatabaseTransaction {
        self.integrity.expose();
        &self.tx
    }
}

impl Transactional for OutboxTransaction {
    fn transaction(&self) -> &DatabaseTransaction {
        &self.tx
    }

    fn config(&self) -> &OutboxConfig {
        &self.config
    }

    fn integrity(&self) -> Option<&Integrity> {
        Some(&self.integrity)
    }
}

pub(crate) static DEFAULT_CONFIG: LazyLock<Arc<OutboxConfig>> = LazyLock::new(Arc::default);

/// An open transaction for events.
///
/// SeaORM's [`DatabaseTransaction`] uses the default tables, and is rejected if the process uses
/// only other table names ([`RecordError::DefaultNames`](crate::RecordError::DefaultNames)).
/// Transactions of this crate and of handlers have an [`OutboxConfig`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a transaction",
    label = "an event recorded here could outlive a rolled-back change, or miss a committed one",
    note = "begin a transaction (`let tx = db.begin().await?`), write the change through `&tx`, and pass `&tx` here",
    note = "to save a model together with its events, use `insert_with_events(&db, …)` and its siblings, which open the transaction"
)]
pub trait Transactional: Send + Sync {
    /// SeaORM's transaction.
    fn transaction(&self) -> &DatabaseTransaction;

    /// Table names and limits for events.
    fn config(&self) -> &OutboxConfig;

    /// State of the transaction. `None` if this crate does not commit it.
    #[doc(hidden)]
    fn integrity(&self) -> Option<&Integrity> {
        None
    }
}

impl Transactional for DatabaseTransaction {
    fn transaction(&self) -> &DatabaseTransaction {
        self
    }

    fn config(&self) -> &OutboxConfig {
        &DEFAULT_CONFIG
    }
}

/// Call only inside [`detached`](crate::detached).
pub(crate) async fn begin(db: &DatabaseConnection) -> Result<DatabaseTransaction, DbErr> {
    begin_with(db, TransactionOptions::default()).await
}

/// Call only inside [`detached`](crate::detached).
pub(crate) async fn begin_with(
    db: &DatabaseConnection,
    mut options: TransactionOptions,
) -> Result<DatabaseTransaction, DbErr> {
    if db.get_database_backend() == DbBackend::Sqlite {
        // SQLite's deferred transaction fails if another transaction writes after its first read.
        let mode = match options.access_mode {
            Some(AccessMode::ReadOnly) => SqliteTransactionMode::Deferred,
            _ => SqliteTransactionMode::Immediate,
        };
        options = TransactionOptions {
            sqlite_transaction_mode: options.sqlite_transaction_mode.or(Some(mode)),
            isolation_level: None,
            access_mode: None,
        };
    }
    db.begin_with_options(options).await
}

/// Fails if an ignored error has ended the transaction: see [`OutboxTransaction::commit`].
pub(crate) async fn look<C: ConnectionTrait>(tx: &C) -> Result<(), DbErr> {
    if tx.get_database_backend() == DbBackend::Postgres {
        tx.execute_unprepared("SELECT 1").await?;
    }
    Ok(())
}
