//! SeaORM's traits for our connections and transactions, so that code which is generic over them records where it should.
//!
//! Invariant: whoever begins a transaction through one of these traits gets one of this crate, with the configuration of its connection. Without
//! these implementations, SeaORM's own would be found through `Deref`, whose transactions record into the default tables.

use std::pin::Pin;

use futures_util::stream::{BoxStream, StreamExt as _, TryStreamExt as _};
use sea_orm::{
    AccessMode, ConnectionTrait, DatabaseConnection, DbBackend, DbErr, ExecResult, IsolationLevel,
    QueryResult, Statement, StreamTrait, TransactionError, TransactionOptions, TransactionSession,
    TransactionTrait,
};

use crate::joined::Integrity;
use crate::repeat::OpenTransaction;
use crate::transaction::{OutboxConnection, OutboxTransaction, Transactional as _};

/// The closure of SeaORM's own `transaction`.
type Boxed<'c, T, E> = Pin<Box<dyn Future<Output = Result<T, E>> + Send + 'c>>;

#[async_trait::async_trait]
impl ConnectionTrait for OutboxTransaction {
    fn get_database_backend(&self) -> DbBackend {
        ConnectionTrait::get_database_backend(&**self)
    }

    async fn execute_raw(&self, statement: Statement) -> Result<ExecResult, DbErr> {
        self.watched((**self).execute_raw(statement)).await
    }

    async fn execute_unprepared(&self, sql: &str) -> Result<ExecResult, DbErr> {
        self.watched((**self).execute_unprepared(sql)).await
    }

    async fn query_one_raw(&self, statement: Statement) -> Result<Option<QueryResult>, DbErr> {
        self.watched((**self).query_one_raw(statement)).await
    }

    async fn query_all_raw(&self, statement: Statement) -> Result<Vec<QueryResult>, DbErr> {
        self.watched((**self).query_all_raw(statement)).await
    }

    fn support_returning(&self) -> bool {
        (**self).support_returning()
    }

    fn is_mock_connection(&self) -> bool {
        (**self).is_mock_connection()
    }
}

crate::__connection_by_deref!(OpenTransaction);

/// Rows one by one. While the stream lives, other statements of the same transaction wait for it: end it or drop it first.
impl StreamTrait for OutboxTransaction {
    type Stream<'a> = BoxStream<'a, Result<QueryResult, DbErr>>;

    fn get_database_backend(&self) -> DbBackend {
        ConnectionTrait::get_database_backend(self)
    }

    fn stream_raw<'a>(&'a self, statement: Statement) -> Boxed<'a, Self::Stream<'a>, DbErr> {
        Box::pin(async move {
            let rows = self.watched((**self).stream_raw(statement)).await?;
            let integrity = self.integrity();
            let note = move |error: &DbErr| {
                integrity
                    .into_iter()
                    .for_each(|whole: &Integrity| whole.note(error))
            };
            Ok(rows.inspect_err(note).boxed())
        })
    }
}

/// As for [`OutboxTransaction`].
impl StreamTrait for OpenTransaction {
    type Stream<'a> = BoxStream<'a, Result<QueryResult, DbErr>>;

    fn get_database_backend(&self) -> DbBackend {
        ConnectionTrait::get_database_backend(self)
    }

    fn stream_raw<'a>(&'a self, statement: Statement) -> Boxed<'a, Self::Stream<'a>, DbErr> {
        (**self).stream_raw(statement)
    }
}

impl StreamTrait for OutboxConnection {
    type Stream<'a> = <DatabaseConnection as StreamTrait>::Stream<'a>;

    fn get_database_backend(&self) -> DbBackend {
        ConnectionTrait::get_database_backend(self)
    }

    fn stream_raw<'a>(&'a self, statement: Statement) -> Boxed<'a, Self::Stream<'a>, DbErr> {
        (**self).stream_raw(statement)
    }
}

#[async_trait::async_trait]
impl TransactionSession for OutboxTransaction {
    async fn commit(self) -> Result<(), DbErr> {
        Self::commit(self).await
    }

    async fn rollback(self) -> Result<(), DbErr> {
        Self::rollback(self).await
    }
}

/// A nested transaction (a savepoint) is part of the outer one, so it has no isolation level or access mode of its own.
fn begins_nested(options: TransactionOptions) -> Result<(), DbErr> {
    if options.isolation_level.is_some() || options.access_mode.is_some() {
        return Err(DbErr::Custom(
            "a nested transaction has the isolation level and access mode of its outer one; set them where that begins".to_owned(),
        ));
    }
    Ok(())
}

/// Implements `TransactionTrait` from a method that begins with options.
macro_rules! begins {
    ($(#[$doc:meta])* $ty:ty, |$db:ident, $options:ident| $begin:expr) => {
        $(#[$doc])*
        #[async_trait::async_trait]
        impl TransactionTrait for $ty {
            type Transaction = OutboxTransaction;

            async fn begin(&self) -> Result<OutboxTransaction, DbErr> {
                self.begin_with_options(TransactionOptions::default()).await
            }

            async fn begin_with_config(
                &self,
                isolation_level: Option<IsolationLevel>,
                access_mode: Option<AccessMode>,
            ) -> Result<OutboxTransaction, DbErr> {
                self.begin_with_options(TransactionOptions {
                    isolation_level,
                    access_mode,
                    sqlite_transaction_mode: None,
                })
                .await
            }

            async fn begin_with_options(
                &self,
                $options: TransactionOptions,
            ) -> Result<OutboxTransaction, DbErr> {
                let $db = self;
                $begin
            }

            async fn transaction<F, T, E>(&self, callback: F) -> Result<T, TransactionError<E>>
            where
                F: for<'c> FnOnce(&'c OutboxTransaction) -> Boxed<'c, T, E> + Send,
                T: Send,
                E: std::fmt::Display + std::fmt::Debug + Send,
            {
                self.transaction_with_config(callback, None, None).await
            }

            async fn transaction_with_config<F, T, E>(
                &self,
                callback: F,
                isolation_level: Option<IsolationLevel>,
                access_mode: Option<AccessMode>,
            ) -> Result<T, TransactionError<E>>
            where
                F: for<'c> FnOnce(&'c OutboxTransaction) -> Boxed<'c, T, E> + Send,
                T: Send,
                E: std::fmt::Display + std::fmt::Debug + Send,
            {
                let tx = self
                    .begin_with_config(isolation_level, access_mode)
                    .await
                    .map_err(TransactionError::Connection)?;
                once(tx, callback).await
            }
        }
    };
}

begins!(
    /// Its transactions record into the tables of this connection. SeaORM's `transaction` repeats nothing; [`OutboxConnection::transaction`] does.
    OutboxConnection,
    |db, options| db.begin_with(options).await
);
begins!(
    /// Nested transactions (savepoints), as from [`OutboxTransaction::begin`]. They refuse an isolation level or access mode of their own.
    OutboxTransaction,
    |tx, options| {
        begins_nested(options)?;
        Self::begin(tx).await
    }
);
begins!(
    /// As for [`OutboxTransaction`].
    OpenTransaction,
    |tx, options| {
        begins_nested(options)?;
        OutboxTransaction::begin(tx).await
    }
);

/// Runs SeaORM's closure, then commits or rolls back.
async fn once<F, T, E>(tx: OutboxTransaction, callback: F) -> Result<T, TransactionError<E>>
where
    F: for<'c> FnOnce(&'c OutboxTransaction) -> Boxed<'c, T, E> + Send,
    T: Send,
    E: std::fmt::Display + std::fmt::Debug + Send,
{
    match callback(&tx).await {
        Ok(value) => {
            tx.commit().await.map_err(TransactionError::Connection)?;
            Ok(value)
        }
        Err(error) => {
            if let Err(rollback) = tx.rollback().await {
                tracing::debug!(error = %rollback, "rollback failed; the server rolls back when the connection ends");
            }
            Err(TransactionError::Transaction(error))
        }
    }
}
