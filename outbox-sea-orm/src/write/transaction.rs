//! The transactions in which events are recorded, and a pool that opens them with settings of its own.
//!
//! Invariant: a transaction that this crate opens runs in a task of its own, so that a caller that goes away does not leave it half done, nor a connection in the pool with an
//! open transaction (as sqlx 0.9.0 does if a `begin` is dropped).

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

/// Implements SeaORM's `ConnectionTrait` for a type that wraps a connection. With `Deref` alone, users would have to write `&*tx`.
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

/// A pool together with an [`OutboxConfig`], for services with table names or limits of their own.
#[derive(Debug, Clone)]
pub struct OutboxConnection {
    db: DatabaseConnection,
    config: Arc<OutboxConfig>,
}

impl OutboxConnection {
    /// Pairs a pool with a configuration. From then on its table names count as in use in this process: see
    /// [`RecordError::DefaultNames`](crate::RecordError::DefaultNames).
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

    /// Opens a transaction that carries the configuration. It wakes the relays of this process when it commits.
    ///
    /// Dropping the future is safe: the transaction is opened in a task of its own, and rolled back if the caller is gone.
    ///
    /// # Errors
    ///
    /// The database's error.
    pub async fn begin(&self) -> Result<OutboxTransaction, DbErr> {
        self.begin_with(TransactionOptions::default()).await
    }

    /// As [`Self::begin`], with an isolation level or an access mode. Where an option is `None`, the database's own default applies.
    ///
    /// SQLite has one isolation level, serializable, and does not enforce the access mode. Its transactions take the write lock at their
    /// beginning, because a lock that is taken later fails without waiting; those with `AccessMode::ReadOnly` do not.
    ///
    /// ```
    /// # async fn demo(db: outbox_sea_orm::OutboxConnection) -> Result<(), sea_orm::DbErr> {
    /// use sea_orm::{IsolationLevel, TransactionOptions};
    ///
    /// let tx = db
    ///     .begin_with(TransactionOptions { isolation_level: Some(IsolationLevel::Serializable), ..Default::default() })
    ///     .await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The database's error. Above READ COMMITTED expect serialization failures, from any statement and from the commit:
    /// [`Self::transaction_with`] repeats them.
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

/// A transaction that carries an [`OutboxConfig`] and wakes the relays when it commits. Dropped, it rolls back.
///
/// If MySQL, MariaDB or SQLite has undone the whole transaction because of an error, later statements
/// and the commit fail. The database would commit each later statement by itself.
#[derive(Debug)]
pub struct OutboxTransaction {
    tx: DatabaseTransaction,
    config: Arc<OutboxConfig>,
    nested: bool,
    integrity: Integrity,
}

impl OutboxTransaction {
    /// A transaction that has just begun.
    pub(crate) fn begun(tx: DatabaseTransaction, config: Arc<OutboxConfig>) -> Self {
        Self {
            tx,
            config,
            nested: false,
            integrity: Integrity::default(),
        }
    }

    /// Opens a nested transaction (a savepoint) with the same configuration. It hides SeaORM's own `begin`, whose transaction would record
    /// into the default tables. End it before you use the outer one again: sqlx tells savepoints apart by their depth only.
    ///
    /// # Errors
    ///
    /// The database's error. The outer transaction can no longer be committed then.
    ///
    /// # Cancellation
    ///
    /// If the future is dropped, the outer transaction can no longer be committed.
    pub async fn begin(&self) -> Result<Self, DbErr> {
        Self::nested(self, self.config.clone()).await
    }

    /// Opens a nested transaction with the configuration of the outer one.
    #[doc(hidden)]
    pub async fn within(outer: &impl Transactional) -> Result<Self, DbErr> {
        let config = Arc::new(outer.config().clone());
        Self::nested(outer, config).await
    }

    async fn nested(outer: &impl Transactional, config: Arc<OutboxConfig>) -> Result<Self, DbErr> {
        // If it fails or is dropped, sqlx 0.9.0 rolls back the outer transaction without telling anybody.
        let turn = Turn::take(outer).await?;
        let tx = outer.transaction().begin().await?;
        let integrity = turn.integrity().nested();
        turn.ends();
        Ok(Self::savepoint(tx, config, integrity))
    }

    /// A savepoint that has just been made.
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

    /// Fails if nothing of the transaction may be committed.
    pub(crate) async fn verify(&self) -> Result<(), DbErr> {
        self.integrity.verify(&self.tx).await
    }

    /// The transaction, for its end.
    pub(crate) fn into_inner(self) -> DatabaseTransaction {
        self.tx
    }

    /// Commits, and wakes the relays of this process.
    ///
    /// On PostgreSQL a statement is run first, to see whether the transaction has failed (one round trip). If it has, and the error was
    /// ignored, the server answers `COMMIT` with a rollback, which sqlx reports as success. A nested transaction only releases its savepoint.
    ///
    /// # Errors
    ///
    /// The database's error: [`is_commit_refused`](crate::is_commit_refused) says whether nothing is stored, or the outcome is unknown. After an
    /// error of [`record`](crate::record), and after a save or record that was dropped half-way, the commit is refused and everything rolled back.
    pub async fn commit(self) -> Result<(), DbErr> {
        detached(async move {
            self.verify().await?;
            if self.nested {
                return self.tx.commit().await.inspect_err(|_| self.integrity.lose());
            }
            look(&self.tx).await?;
            self.tx.commit().await?;
            // A crash before this line delays the messages by one poll.
            wake::notify();
            Ok(())
        })
        .await
    }

    /// Rolls back.
    ///
    /// # Errors
    ///
    /// The database's error. The server then rolls back when the connection ends.
    pub async fn rollback(self) -> Result<(), DbErr> {
        detached(async move {
            // The rollback of a missing savepoint leaves sqlx with a wrong depth.
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

/// An open transaction: the only place where events may be recorded.
///
/// Implemented for SeaORM's [`DatabaseTransaction`], which records into the default tables; for [`OutboxTransaction`](crate::OutboxTransaction) and
/// [`OpenTransaction`](crate::OpenTransaction), which carry an [`OutboxConfig`]; and for the transaction of an inbox handler. A process that only uses tables with other names must not record over
/// SeaORM's own transactions ([`RecordError::DefaultNames`](crate::RecordError::DefaultNames)).
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a transaction",
    label = "an event recorded here could outlive a rolled-back change, or miss a committed one",
    note = "begin a transaction (`let tx = db.begin().await?`), write the change through `&tx`, and pass `&tx` here",
    note = "to save a model together with its events, use `insert_with_events(&db, …)` and its siblings, which open the transaction"
)]
pub trait Transactional: Send + Sync {
    /// The transaction.
    fn transaction(&self) -> &DatabaseTransaction;

    /// Where events are recorded.
    fn config(&self) -> &OutboxConfig;

    /// What is remembered until the commit. Only types with a commit of their own can refuse it.
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

/// Begins a transaction that writes, at the database's own isolation level. Must be called inside [`detached`](crate::detached).
pub(crate) async fn begin(db: &DatabaseConnection) -> Result<DatabaseTransaction, DbErr> {
    begin_with(db, TransactionOptions::default()).await
}

/// Begins a transaction with these options. Must be called inside [`detached`](crate::detached).
pub(crate) async fn begin_with(
    db: &DatabaseConnection,
    mut options: TransactionOptions,
) -> Result<DatabaseTransaction, DbErr> {
    if db.get_database_backend() == DbBackend::Sqlite {
        // A deferred transaction that reads first fails at once if another one writes meanwhile; an immediate one waits for its turn.
        let mode = match options.access_mode {
            Some(AccessMode::ReadOnly) => SqliteTransactionMode::Deferred,
            _ => SqliteTransactionMode::Immediate,
        };
        options = TransactionOptions {
            sqlite_transaction_mode: options.sqlite_transaction_mode.or(Some(mode)),
            // SQLite has neither, and SeaORM would warn each time.
            isolation_level: None,
            access_mode: None,
        };
    }
    db.begin_with_options(options).await
}

/// Fails if an error that somebody swallowed has ended the transaction. PostgreSQL would answer its commit with a rollback, which sqlx 0.9.0
/// reports as success.
pub(crate) async fn look<C: ConnectionTrait>(tx: &C) -> Result<(), DbErr> {
    if tx.get_database_backend() == DbBackend::Postgres {
        tx.execute_unprepared("SELECT 1").await?;
    }
    Ok(())
}
