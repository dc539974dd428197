//! The transactions in which events are recorded.
//!
//! Invariants: an event is only written inside a transaction, which the type system checks ([`Transactional`]). A transaction that this
//! crate opens runs in a task of its own, so that a caller that goes away does not leave it half done, nor a connection in the pool with an
//! open transaction (as sqlx 0.9.0 does if a `begin` is dropped).

use std::future::Future;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

use outbox_core::wake;
use sea_orm::{
    ConnectionTrait, DatabaseConnection, DatabaseTransaction, DbBackend, DbErr, SqliteTransactionMode,
    TransactionOptions, TransactionTrait,
};

use crate::config::OutboxConfig;
use crate::detached::detached;
use crate::error::SaveError;
use crate::in_use;

static DEFAULT_CONFIG: LazyLock<OutboxConfig> = LazyLock::new(OutboxConfig::default);

/// Implements SeaORM's `ConnectionTrait` for a type that wraps a connection. With `Deref` alone, users would have to write `&*tx`.
#[doc(hidden)]
#[macro_export]
macro_rules! __connection_by_deref {
    ($ty:ty) => {
        #[async_trait::async_trait]
        impl sea_orm::ConnectionTrait for $ty {
            fn get_database_backend(&self) -> sea_orm::DbBackend {
                (**self).get_database_backend()
            }

            async fn execute_raw(
                &self,
                statement: sea_orm::Statement,
            ) -> Result<sea_orm::ExecResult, sea_orm::DbErr> {
                (**self).execute_raw(statement).await
            }

            async fn execute_unprepared(&self, sql: &str) -> Result<sea_orm::ExecResult, sea_orm::DbErr> {
                (**self).execute_unprepared(sql).await
            }

            async fn query_one_raw(
                &self,
                statement: sea_orm::Statement,
            ) -> Result<Option<sea_orm::QueryResult>, sea_orm::DbErr> {
                (**self).query_one_raw(statement).await
            }

            async fn query_all_raw(
                &self,
                statement: sea_orm::Statement,
            ) -> Result<Vec<sea_orm::QueryResult>, sea_orm::DbErr> {
                (**self).query_all_raw(statement).await
            }

            fn support_returning(&self) -> bool {
                (**self).support_returning()
            }

            fn is_mock_connection(&self) -> bool {
                (**self).is_mock_connection()
            }
        }
    };
}

__connection_by_deref!(OutboxConnection);
__connection_by_deref!(OutboxTransaction);

/// An open transaction: the only place where events may be recorded.
///
/// Implemented for SeaORM's [`DatabaseTransaction`], which records into the default tables; for [`OutboxTransaction`], which carries an
/// [`OutboxConfig`]; and for the transaction of an inbox handler. A process that only uses tables with other names must not record over
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

    /// Notes that the database has undone the transaction, so that a later commit reports an error. Only types with a commit of their own
    /// need to remember it.
    #[doc(hidden)]
    fn mark_lost(&self) {}
}

impl Transactional for DatabaseTransaction {
    fn transaction(&self) -> &DatabaseTransaction {
        self
    }

    fn config(&self) -> &OutboxConfig {
        &DEFAULT_CONFIG
    }
}

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
        in_use::note(&config.names);
        Self {
            db,
            config: Arc::new(config),
        }
    }

    /// Opens a transaction that carries the configuration. It wakes the relays of this process when it commits.
    ///
    /// Dropping the future is safe: the transaction is opened in a task of its own, and rolled back if the caller is gone.
    ///
    /// # Errors
    ///
    /// The database's error.
    pub async fn begin(&self) -> Result<OutboxTransaction, DbErr> {
        let db = self.db.clone();
        let tx = detached(async move { begin(&db).await }).await?;
        Ok(OutboxTransaction {
            tx,
            config: self.config.clone(),
            nested: false,
            lost: AtomicBool::new(false),
        })
    }
}

impl Deref for OutboxConnection {
    type Target = DatabaseConnection;

    fn deref(&self) -> &DatabaseConnection {
        &self.db
    }
}

/// A transaction that carries an [`OutboxConfig`] and wakes the relays when it commits. Dropped, it rolls back.
#[derive(Debug)]
pub struct OutboxTransaction {
    tx: DatabaseTransaction,
    config: Arc<OutboxConfig>,
    nested: bool,
    lost: AtomicBool,
}

impl OutboxTransaction {
    /// Opens a nested transaction (a savepoint) with the same configuration. It hides SeaORM's own `begin`, whose transaction would record
    /// into the default tables.
    ///
    /// # Errors
    ///
    /// The database's error.
    pub async fn begin(&self) -> Result<Self, DbErr> {
        Self::within(self).await
    }

    /// Opens a nested transaction with the configuration of the outer one.
    #[doc(hidden)]
    pub async fn within(outer: &impl Transactional) -> Result<Self, DbErr> {
        let config = Arc::new(outer.config().clone());
        Ok(Self {
            tx: outer.transaction().begin().await?,
            config,
            nested: true,
            lost: AtomicBool::new(false),
        })
    }

    /// Commits, and wakes the relays of this process.
    ///
    /// On PostgreSQL a statement is run first, to see whether the transaction has failed (one round trip). If it has, and the error was
    /// ignored, the server answers `COMMIT` with a rollback, which sqlx reports as success. A nested transaction only releases its savepoint.
    ///
    /// # Errors
    ///
    /// The database's error. The outcome is then unknown, except after an earlier error: then everything is rolled back.
    pub async fn commit(self) -> Result<(), DbErr> {
        detached(async move {
            if self.lost.load(Ordering::Relaxed) {
                return Err(DbErr::Custom(
                    "the database has undone this transaction after an earlier error; begin again".to_owned(),
                ));
            }
            if self.nested {
                return self.tx.commit().await;
            }
            if self.tx.get_database_backend() == DbBackend::Postgres {
                self.tx.execute_unprepared("SELECT 1").await?;
            }
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
        detached(self.tx.rollback()).await
    }
}

impl Deref for OutboxTransaction {
    type Target = DatabaseTransaction;

    fn deref(&self) -> &DatabaseTransaction {
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

    fn mark_lost(&self) {
        self.lost.store(true, Ordering::Relaxed);
    }
}

/// Begins a transaction that writes, at the database's own isolation level. Must be called inside [`detached`].
async fn begin(db: &DatabaseConnection) -> Result<DatabaseTransaction, DbErr> {
    let mut options = TransactionOptions::default();
    if db.get_database_backend() == DbBackend::Sqlite {
        // A deferred transaction that reads first fails at once if another one writes meanwhile; an immediate one waits for its turn.
        options.sqlite_transaction_mode = Some(SqliteTransactionMode::Immediate);
    }
    db.begin_with_options(options).await
}

/// Work inside a transaction, boxed because it borrows it.
pub(crate) type Work<'t, T> = Pin<Box<dyn Future<Output = Result<T, SaveError>> + Send + 't>>;

/// Where a model can be saved: a pool, which opens a transaction, or an open transaction, which the save joins.
///
/// A save joins through a savepoint. If it fails, nothing of it is left in the transaction, which the caller may still commit.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is neither a database connection nor a transaction",
    label = "models cannot be saved through this",
    note = "pass `&DatabaseConnection`, `&DatabaseTransaction`, `&OutboxConnection`, `&OutboxTransaction`, or a handler's `&Tx`"
)]
pub trait Executor: Send + Sync + sealed::Execute {}

impl<E: sealed::Execute> Executor for E {}

pub(crate) mod sealed {
    use super::*;

    pub trait Execute: Send + Sync {
        fn execute<T, F>(&self, work: F) -> impl Future<Output = Result<T, SaveError>> + Send
        where
            T: Send + 'static,
            F: for<'t> FnOnce(&'t DatabaseTransaction, &'t OutboxConfig) -> Work<'t, T> + Send + 'static;
    }

    impl Execute for DatabaseConnection {
        fn execute<T, F>(&self, work: F) -> impl Future<Output = Result<T, SaveError>> + Send
        where
            T: Send + 'static,
            F: for<'t> FnOnce(&'t DatabaseTransaction, &'t OutboxConfig) -> Work<'t, T> + Send + 'static,
        {
            let db = self.clone();
            detached(async move { own_transaction(&db, &DEFAULT_CONFIG, work).await })
        }
    }

    impl Execute for OutboxConnection {
        fn execute<T, F>(&self, work: F) -> impl Future<Output = Result<T, SaveError>> + Send
        where
            T: Send + 'static,
            F: for<'t> FnOnce(&'t DatabaseTransaction, &'t OutboxConfig) -> Work<'t, T> + Send + 'static,
        {
            let Self { db, config } = self.clone();
            detached(async move { own_transaction(&db, &config, work).await })
        }
    }

    impl<X: Transactional> Execute for X {
        async fn execute<T, F>(&self, work: F) -> Result<T, SaveError>
        where
            T: Send + 'static,
            F: for<'t> FnOnce(&'t DatabaseTransaction, &'t OutboxConfig) -> Work<'t, T> + Send + 'static,
        {
            let savepoint = self.transaction().begin().await.map_err(SaveError::Database)?;
            match work(&savepoint, self.config()).await {
                Ok(value) => {
                    savepoint.commit().await.map_err(SaveError::Database)?;
                    Ok(value)
                }
                Err(error) => {
                    // To end a deadlock, MySQL undoes a whole transaction, savepoints included. The caller's earlier writes are gone then;
                    // later ones would be committed alone.
                    if let Err(rollback) = savepoint.rollback().await {
                        tracing::error!(error = %rollback, "savepoint cannot be rolled back, the transaction is lost");
                        self.mark_lost();
                        return Err(SaveError::TransactionLost(Box::new(error)));
                    }
                    Err(error)
                }
            }
        }
    }

    async fn own_transaction<T, F>(
        db: &DatabaseConnection,
        config: &OutboxConfig,
        work: F,
    ) -> Result<T, SaveError>
    where
        F: for<'t> FnOnce(&'t DatabaseTransaction, &'t OutboxConfig) -> Work<'t, T>,
    {
        let tx = begin(db).await.map_err(SaveError::Database)?;
        match work(&tx, config).await {
            Ok(value) => {
                tx.commit().await.map_err(|error| match error.sql_err() {
                    // A deferred constraint: the server has refused the commit, so nothing is stored.
                    Some(_) => SaveError::Database(error),
                    None => SaveError::CommitUnknown(error),
                })?;
                // A crash before this line delays the messages by one poll.
                wake::notify();
                Ok(value)
            }
            Err(error) => {
                // The first error is the useful one; a failing rollback only means that the connection is gone.
                if let Err(rollback) = tx.rollback().await {
                    tracing::warn!(error = %rollback, "rollback failed; the server rolls back when the connection ends");
                }
                Err(error)
            }
        }
    }
}
