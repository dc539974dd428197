//! Runs a save in a new transaction, or in a savepoint of an open transaction.
//!
//! Invariant: a new transaction runs in a separate task. If the caller is dropped before the
//! transaction begins, no work runs.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Weak};

use outbox_core::wake;
use sea_orm::{DatabaseConnection, DbErr, TransactionTrait};

use crate::config::OutboxConfig;
use crate::error::SaveError;
use crate::error::code::is_commit_refused;
use crate::task::detached;
use crate::write::integrity::rollback::close;
use crate::write::transaction::begin;
use crate::write::transaction::{DEFAULT_CONFIG, Transactional};
use crate::write::transaction::{OutboxConnection, OutboxTransaction};
use crate::write::turn::Turn;

/// The last statement must prove that the transaction has not failed.
pub(crate) type Work<'t, T> = Pin<Box<dyn Future<Output = Result<T, SaveError>> + Send + 't>>;

/// A pool, or an open transaction, in which a save uses a savepoint.
///
/// A failed save leaves nothing in an open transaction, and the caller may still commit. Saves and
/// calls of [`record`](crate::record) in one transaction run one after another. Run no other
/// statement during a save: a failed save rolls it back.
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
            F: for<'t> FnOnce(&'t OutboxTransaction) -> Work<'t, T> + Send + 'static;
    }

    impl Execute for DatabaseConnection {
        async fn execute<T, F>(&self, work: F) -> Result<T, SaveError>
        where
            T: Send + 'static,
            F: for<'t> FnOnce(&'t OutboxTransaction) -> Work<'t, T> + Send + 'static,
        {
            over_pool(self.clone(), DEFAULT_CONFIG.clone(), work).await
        }
    }

    impl Execute for OutboxConnection {
        async fn execute<T, F>(&self, work: F) -> Result<T, SaveError>
        where
            T: Send + 'static,
            F: for<'t> FnOnce(&'t OutboxTransaction) -> Work<'t, T> + Send + 'static,
        {
            over_pool(DatabaseConnection::clone(self), self.settings().clone(), work).await
        }
    }

    impl<X: Transactional> Execute for X {
        async fn execute<T, F>(&self, work: F) -> Result<T, SaveError>
        where
            T: Send + 'static,
            F: for<'t> FnOnce(&'t OutboxTransaction) -> Work<'t, T> + Send + 'static,
        {
            // If the future is dropped before `Turn::ends`, the transaction can no longer commit.
            let turn = Turn::take(self)
                .await
                .map_err(|error| lost(SaveError::Database(error)))?;
            let outcome = joined(self, &turn, work).await;
            match outcome {
                Err(SaveError::TransactionLost(_)) => {}
                _ => turn.ends(),
            }
            outcome
        }
    }
}

async fn over_pool<T, F>(db: DatabaseConnection, config: Arc<OutboxConfig>, work: F) -> Result<T, SaveError>
where
    T: Send + 'static,
    F: for<'t> FnOnce(&'t OutboxTransaction) -> Work<'t, T> + Send + 'static,
{
    let waiting = Arc::new(());
    let caller = Arc::downgrade(&waiting);
    detached(async move { own_transaction(&db, config, caller, work).await }).await
}

fn lost(error: SaveError) -> SaveError {
    SaveError::TransactionLost(Box::new(error))
}

async fn joined<T, F>(outer: &impl Transactional, turn: &Turn, work: F) -> Result<T, SaveError>
where
    F: for<'t> FnOnce(&'t OutboxTransaction) -> Work<'t, T>,
{
    let integrity = turn.integrity().nested();
    let savepoint = match outer.transaction().begin().await {
        Ok(savepoint) => savepoint,
        Err(error) => {
            close(outer.transaction()).await;
            return Err(lost(SaveError::Database(error)));
        }
    };
    let config = Arc::new(outer.config().clone());
    let savepoint = OutboxTransaction::savepoint(savepoint, config, integrity.clone());
    let outcome = verified(&savepoint, work(&savepoint).await).await;
    let savepoint = savepoint.into_inner();
    let (error, rolled_back) = match outcome {
        Ok(value) => match savepoint.commit().await {
            Ok(()) => return Ok(value),
            Err(error) => (SaveError::Database(error), false),
        },
        // On MySQL, a deadlock rolls back the whole transaction.
        Err(error) => {
            integrity.doubt();
            let is_undone = integrity.usable(&savepoint).await.is_err();
            let rolled_back = savepoint.rollback().await;
            if let Err(rollback) = &rolled_back {
                tracing::error!(error = %rollback, "savepoint could not be rolled back, so the whole transaction is lost");
            }
            (error, rolled_back.is_ok() && !is_undone)
        }
    };
    if rolled_back {
        return Err(error);
    }
    close(outer.transaction()).await;
    Err(lost(error))
}

/// Fails if the work ignored an error while it recorded events.
async fn verified<T>(tx: &OutboxTransaction, outcome: Result<T, SaveError>) -> Result<T, SaveError> {
    let value = outcome?;
    tx.verify().await.map_err(SaveError::Database)?;
    Ok(value)
}

async fn own_transaction<T, F>(
    db: &DatabaseConnection,
    config: Arc<OutboxConfig>,
    caller: Weak<()>,
    work: F,
) -> Result<T, SaveError>
where
    F: for<'t> FnOnce(&'t OutboxTransaction) -> Work<'t, T>,
{
    let tx = OutboxTransaction::begun(begin(db).await.map_err(SaveError::Database)?, config);
    let outcome = if caller.strong_count() > 0 {
        work(&tx).await
    } else {
        // Without a caller the work must not run, because the caller may have retried it.
        Err(SaveError::Database(DbErr::Custom(
            "the caller was dropped".to_owned(),
        )))
    };
    let outcome = verified(&tx, outcome).await;
    let tx = tx.into_inner();
    match outcome {
        Ok(value) => {
            tx.commit().await.map_err(|error| {
                if is_commit_refused(&error) {
                    SaveError::Database(error)
                } else {
                    SaveError::CommitUnknown(error)
                }
            })?;
            // If the process crashes now, relays find the messages at their next poll.
            wake::notify();
            Ok(value)
        }
        Err(error) => {
            if let Err(rollback) = tx.rollback().await {
                tracing::warn!(error = %rollback, "rollback failed; the server rolls back when the connection ends");
            }
            Err(error)
        }
    }
}
