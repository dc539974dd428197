//! Repeats a transaction after a conflict with a concurrent transaction.
//!
//! Invariants: an attempt is repeated only after its rollback, and never if the outcome of its
//! commit is unknown. Conflicts are detected at the statement, not in the closure's error.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use outbox_core::retry::Backoff;
use sea_orm::{DatabaseTransaction, DbErr, TransactionOptions};

use crate::config::OutboxConfig;
use crate::error::SaveError;
use crate::error::code::is_commit_refused;
use crate::error::kind::ErrorKind;
use crate::write::integrity::Integrity;
use crate::write::transaction::Transactional;
use crate::write::transaction::{OutboxConnection, OutboxTransaction};

const ATTEMPTS_MAX: u32 = 5;

const BACKOFF: Backoff = Backoff {
    min: Duration::from_millis(20),
    max: Duration::from_secs(1),
};

/// The open transaction of [`OutboxConnection::transaction`].
///
/// Pass `&tx` to SeaORM, saves and [`record`](crate::record). `tx.begin()` opens a savepoint. A
/// transaction that outlives the closure's future is rolled back.
#[derive(Debug)]
pub struct OpenTransaction(Arc<OutboxTransaction>);

impl OpenTransaction {
    pub(crate) fn as_outbox(&self) -> &OutboxTransaction {
        &self.0
    }
}

impl Deref for OpenTransaction {
    type Target = OutboxTransaction;

    fn deref(&self) -> &OutboxTransaction {
        &self.0
    }
}

impl Transactional for OpenTransaction {
    fn transaction(&self) -> &DatabaseTransaction {
        Transactional::transaction(&*self.0)
    }

    fn config(&self) -> &OutboxConfig {
        self.0.config()
    }

    fn integrity(&self) -> Option<&Integrity> {
        self.0.integrity()
    }
}

impl OutboxConnection {
    /// Runs the closure in a transaction, and commits. After a conflict, rolls back and repeats: at
    /// most 5 calls, with pauses of up to 20, 40, 80 and 160 ms.
    ///
    /// Repeats only after deadlocks, serialization failures and lock timeouts, if the closure
    /// returns any error or the commit is refused. Never repeats if the commit's outcome is
    /// unknown.
    ///
    /// Effects outside the transaction happen at each call of the closure. The closure may borrow,
    /// and must clone values that it consumes.
    ///
    /// ```
    /// # use outbox_core::DomainEvent;
    /// # mod account {
    /// #     use sea_orm::entity::prelude::*;
    /// #     #[sea_orm::model]
    /// #     #[derive(Clone, Debug, PartialEq, DeriveEntityModel)]
    /// #     #[sea_orm(table_name = "accounts")]
    /// #     pub struct Model { #[sea_orm(primary_key)] pub id: i32, pub cents: i64 }
    /// #     impl ActiveModelBehavior for ActiveModel {}
    /// # }
    /// # #[derive(DomainEvent, serde::Serialize)]
    /// # #[domain_event(aggregate = "account", name = "paid")]
    /// # struct Paid { #[domain_event(aggregate_id)] account: i32, cents: i64 }
    /// # use outbox_sea_orm::OutboxConnection;
    /// # type Outcome = Result<(), outbox_sea_orm::SaveError>;
    /// # async fn demo(db: OutboxConnection, from: i32, to: i32) -> Outcome {
    /// use outbox_sea_orm::{SaveError, SaveWithEvents};
    /// use sea_orm::{EntityTrait, IntoActiveModel, QuerySelect, Set};
    ///
    /// db.transaction(async |tx| {
    ///     for (id, cents) in [(from, -30), (to, 30)] {
    ///         let account = account::Entity::find_by_id(id).lock_exclusive().one(&tx).await?;
    ///         let missing = SaveError::RowMissing { table: "accounts".to_owned() };
    ///         let account = account.ok_or(missing)?;
    ///         let left = account.cents + cents;
    ///         let mut account = account.into_active_model();
    ///         account.cents = Set(left);
    ///         account.update_with_events(&tx, move |_| [Paid { account: id, cents }]).await?;
    ///     }
    ///     Ok::<_, SaveError>(())
    /// })
    /// .await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The last attempt's error. Errors of `begin` and the commit are converted from [`SaveError`].
    /// Nothing is stored, except possibly with [`SaveError::CommitUnknown`].
    ///
    /// # Cancellation
    ///
    /// Dropping the future or a panic rolls back. A commit that has begun completes in a separate
    /// task.
    pub async fn transaction<T, E, F, Fut>(&self, work: F) -> Result<T, E>
    where
        F: FnMut(OpenTransaction) -> Fut,
        Fut: Future<Output = Result<T, E>>,
        E: From<SaveError>,
    {
        self.transaction_with(TransactionOptions::default(), work).await
    }

    /// As [`Self::transaction`], with another isolation level or access mode.
    ///
    /// # Errors
    ///
    /// As [`Self::transaction`].
    pub async fn transaction_with<T, E, F, Fut>(
        &self,
        options: TransactionOptions,
        mut work: F,
    ) -> Result<T, E>
    where
        F: FnMut(OpenTransaction) -> Fut,
        Fut: Future<Output = Result<T, E>>,
        E: From<SaveError>,
    {
        let mut failures = 0;
        loop {
            let Failed { error, is_conflict } = match self.attempt(options, &mut work).await {
                Ok(value) => return Ok(value),
                Err(failed) => failed,
            };
            failures += 1;
            if !is_conflict || failures >= ATTEMPTS_MAX {
                return Err(error);
            }
            let pause = BACKOFF.delay(failures, &mut fastrand::Rng::new());
            tracing::debug!(
                failures,
                ?pause,
                "transaction conflicted with a concurrent transaction, repeating"
            );
            tokio::time::sleep(pause).await;
        }
    }

    async fn attempt<T, E, F, Fut>(&self, options: TransactionOptions, work: &mut F) -> Result<T, Failed<E>>
    where
        F: FnMut(OpenTransaction) -> Fut,
        Fut: Future<Output = Result<T, E>>,
        E: From<SaveError>,
    {
        let tx = Arc::new(self.begin_with(options).await.map_err(refused)?);
        let outcome = work(OpenTransaction(tx.clone())).await;
        let Some(tx) = Arc::into_inner(tx) else {
            // While another clone of `tx` exists, the transaction cannot be rolled back.
            return Err(match outcome {
                Err(error) => Failed {
                    error,
                    is_conflict: false,
                },
                Ok(_) => refused(DbErr::Custom(
                    "the transaction outlived its closure and is not committed; do not return or store `OpenTransaction`".to_owned(),
                )),
            });
        };
        let integrity = tx.integrity().cloned().unwrap_or_default();
        match outcome {
            Ok(value) => match tx.commit().await {
                Ok(()) => Ok(value),
                // PostgreSQL refuses the commit if the closure ignored a conflict.
                Err(error) if is_commit_refused(&error) => {
                    let failed = refused(error);
                    let is_conflict = failed.is_conflict || integrity.has_conflict();
                    Err(Failed {
                        is_conflict,
                        ..failed
                    })
                }
                Err(error) => Err(Failed {
                    error: SaveError::CommitUnknown(error).into(),
                    is_conflict: false,
                }),
            },
            Err(error) => {
                // If the rollback fails, the next attempt would wait for this attempt's locks.
                if let Err(rollback) = tx.rollback().await {
                    tracing::debug!(error = %rollback, "rollback failed; the server rolls back when the connection ends");
                }
                Err(Failed {
                    error,
                    is_conflict: integrity.has_conflict(),
                })
            }
        }
    }
}

struct Failed<E> {
    error: E,
    is_conflict: bool,
}

fn refused<E: From<SaveError>>(error: DbErr) -> Failed<E> {
    Failed {
        is_conflict: ErrorKind::of(&error) == ErrorKind::Conflict,
        error: SaveError::Database(error).into(),
    }
}
