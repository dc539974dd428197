//! SeaORM's traits for the connections and transactions of this crate.
//!
//! Invariant: a transaction has the configuration of its connection. A `Deref` to SeaORM's type
//! would return SeaORM's transactions, which use the default tables.

use std::pin::Pin;

use sea_orm::{DbErr, TransactionError, TransactionOptions, TransactionSession};

use crate::write::retry::OpenTransaction;
use crate::write::transaction::Transactional;
use crate::write::transaction::{OutboxConnection, OutboxTransaction};

type Boxed<'c, T, E> = Pin<Box<dyn Future<Output = Result<T, E>> + Send + 'c>>;

crate::__connection!(OpenTransaction, |this| (*this.as_outbox()));

#[async_trait::async_trait]
impl TransactionSession for OutboxTransaction {
    async fn commit(self) -> Result<(), DbErr> {
        Self::commit(self).await
    }

    async fn rollback(self) -> Result<(), DbErr> {
        Self::rollback(self).await
    }
}

/// Begins a savepoint. Rejects an isolation level or access mode.
#[doc(hidden)]
pub async fn begin_nested(
    outer: &impl Transactional,
    options: TransactionOptions,
) -> Result<OutboxTransaction, DbErr> {
    if options.isolation_level.is_some() || options.access_mode.is_some() {
        return Err(DbErr::Custom(
            "a nested transaction has the isolation level and access mode of the outer transaction; set both where the outer transaction begins".to_owned(),
        ));
    }
    OutboxTransaction::within(outer).await
}

#[doc(hidden)]
#[macro_export]
macro_rules! __begins {
    ($(#[$doc:meta])* $ty:ty, |$db:ident, $options:ident| $begin:expr) => {
        $(#[$doc])*
        #[async_trait::async_trait]
        impl sea_orm::TransactionTrait for $ty {
            type Transaction = $crate::OutboxTransaction;

            async fn begin(&self) -> Result<$crate::OutboxTransaction, sea_orm::DbErr> {
                self.begin_with_options(sea_orm::TransactionOptions::default()).await
            }

            async fn begin_with_config(
                &self,
                isolation_level: Option<sea_orm::IsolationLevel>,
                access_mode: Option<sea_orm::AccessMode>,
            ) -> Result<$crate::OutboxTransaction, sea_orm::DbErr> {
                self.begin_with_options(sea_orm::TransactionOptions {
                    isolation_level,
                    access_mode,
                    sqlite_transaction_mode: None,
                })
                .await
            }

            async fn begin_with_options(
                &self,
                $options: sea_orm::TransactionOptions,
            ) -> Result<$crate::OutboxTransaction, sea_orm::DbErr> {
                let $db = self;
                $begin.await
            }

            async fn transaction<F, T, E>(&self, callback: F) -> Result<T, sea_orm::TransactionError<E>>
            where
                F: for<'c> FnOnce(
                        &'c $crate::OutboxTransaction,
                    ) -> std::pin::Pin<Box<dyn Future<Output = Result<T, E>> + Send + 'c>>
                    + Send,
                T: Send,
                E: std::fmt::Display + std::fmt::Debug + Send,
            {
                self.transaction_with_config(callback, None, None).await
            }

            async fn transaction_with_config<F, T, E>(
                &self,
                callback: F,
                isolation_level: Option<sea_orm::IsolationLevel>,
                access_mode: Option<sea_orm::AccessMode>,
            ) -> Result<T, sea_orm::TransactionError<E>>
            where
                F: for<'c> FnOnce(
                        &'c $crate::OutboxTransaction,
                    ) -> std::pin::Pin<Box<dyn Future<Output = Result<T, E>> + Send + 'c>>
                    + Send,
                T: Send,
                E: std::fmt::Display + std::fmt::Debug + Send,
            {
                let tx = self
                    .begin_with_config(isolation_level, access_mode)
                    .await
                    .map_err(sea_orm::TransactionError::Connection)?;
                $crate::run_once(tx, callback).await
            }
        }
    };
}

crate::__begins!(
    /// Transactions use the tables of this connection. Only [`OutboxConnection::transaction`]
    /// repeats conflicts.
    OutboxConnection,
    |db, options| db.begin_with(options)
);
crate::__begins!(
    /// Begins savepoints, as [`OutboxTransaction::begin`]. Rejects an isolation level or access
    /// mode.
    OutboxTransaction,
    |tx, options| begin_nested(tx, options)
);
crate::__begins!(
    /// The rules of [`OutboxTransaction`] apply.
    OpenTransaction,
    |tx, options| begin_nested(tx, options)
);

/// Runs SeaORM's closure, then commits or rolls back.
#[doc(hidden)]
pub async fn run_once<F, T, E>(tx: OutboxTransaction, callback: F) -> Result<T, TransactionError<E>>
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
