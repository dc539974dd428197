//! The transactions that events are recorded in.
//!
//! Invariant: an event is only ever written inside a transaction, which the type system checks ([`Transactional`]), and a transaction
//! that this crate opens runs in a task of its own, so that a caller who goes away neither tears it nor poisons the pool
//! (sqlx 0.9.0 hands a connection back inside an open transaction if a `begin` is dropped).

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

static DEFAULT_CONFIG: LazyLock<OutboxConfig> = LazyLock::new(OutboxConfig::default);

/// Makes a type that wraps a connection good wherever SeaORM takes `&impl ConnectionTrait`; a `Deref` alone would make users
/// write `&*tx`.
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
/// Implemented for SeaORM's [`DatabaseTransaction`], which records under the default names, for [`OutboxTransaction`], which carries an
/// [`OutboxConfig`], and for the transaction of an inbox handler.
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

    /// Notes that the database has undone the transaction, so that a later commit does not pretend otherwise. Types that do not
    /// commit themselves need not remember it.
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

/// A pool together with an [`OutboxConfig`], for services that use other table names or limits than the default ones.
#[derive(Debug, Clone)]
pub struct OutboxConnection {
    db: DatabaseConnection,
    config: Arc<OutboxConfig>,
}

impl OutboxConnection {
    /// Pairs a pool with a configuration.
    pub fn new(db: DatabaseConnection, config: OutboxConfig) -> Self {
        Self {
            db,
            config: Arc::new(config),
        }
    }

    /// Opens a transaction that carries the configuration, and that wakes the relays of this process when it commits.
    ///
    /// Dropping the future is safe: the transaction is opened in a task of its own and rolled back if nobody takes it.
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

/// A transaction that knows where to record events and wakes the relays on commit. Dropped, it rolls back.
#[derive(Debug)]
pub struct OutboxTransaction {
    tx: DatabaseTransaction,
    config: Arc<OutboxConfig>,
    nested: bool,
    lost: AtomicBool,
}

impl OutboxTransaction {
    /// Opens a nested transaction (a savepoint) that records as this one does. SeaORM's own `begin`, which this hides, would record under
    /// the default names.
    ///
    /// # Errors
    ///
    /// The database's error.
    pub async fn begin(&self) -> Result<Self, DbErr> {
        Self::within(self).await
    }

    /// Opens a nested transaction that records as the outer one does.
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
    /// On PostgreSQL it asks first whether the transaction still stands: after an error that somebody swallowed, the server answers
    /// `COMMIT` with a rollback that sqlx reports as success. One round trip. A nested transaction only releases its savepoint.
    ///
    /// # Errors
    ///
    /// The database's error; the outcome is then unknown, unless the transaction had failed before, which rolls it back.
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
    /// The database's error; the server rolls back when the connection ends.
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

/// Begins a transaction that writes, at the database's own isolation level. Only to be called inside [`detached`].
async fn begin(db: &DatabaseConnection) -> Result<DatabaseTransaction, DbErr> {
    let mut options = TransactionOptions::default();
    if db.get_database_backend() == DbBackend::Sqlite {
        // A deferred transaction that reads first fails at once when another one has written meanwhile; this one waits its turn.
        options.sqlite_transaction_mode = Some(SqliteTransactionMode::Immediate);
    }
    db.begin_with_options(options).await
}

/// Work inside a transaction, boxed because it borrows it.
pub(crate) type Work<'t, T> = Pin<Box<dyn Future<Output = Result<T, SaveError>> + Send + 't>>;

/// Where a model can be saved: a pool, which opens a transaction, or an open transaction, which is joined.
///
/// Joining goes through a savepoint, so that a save that fails leaves nothing of itself in a transaction that the caller
/// may still commit.
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
                    // MySQL ends the whole transaction of a deadlock's victim, and the savepoint with it. What the caller wrote before is
                    // gone then; what it wrote afterwards would be committed alone.
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
                    // A deferred constraint: the server has refused, nothing is stored.
                    Some(_) => SaveError::Database(error),
                    None => SaveError::CommitUnknown(error),
                })?;
                // A crash before this line delays the messages by one poll.
                wake::notify();
                Ok(value)
            }
            Err(error) => {
                // The first error says what went wrong; a failing rollback only means that the connection is gone.
                if let Err(rollback) = tx.rollback().await {
                    tracing::warn!(error = %rollback, "rollback failed; the server rolls back when the connection ends");
                }
                Err(error)
            }
        }
    }
}
