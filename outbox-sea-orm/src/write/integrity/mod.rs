//! Tracks whether an open transaction still exists on the server.
//!
//! Invariant: after a rollback by the server, no statement and no commit is sent, because a
//! statement would be committed alone. The server is checked after a failed statement
//! ([`is_undone`]), or before the next statement if an outcome is unknown.

pub(crate) mod rollback;
pub(crate) mod watch;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sea_orm::{ConnectionTrait, DbErr};
use tokio::sync::Mutex;

use crate::error::kind::is_conflict;
use crate::write::integrity::rollback::is_undone;

/// Whether a transaction can be committed. Clones share all state.
#[doc(hidden)]
#[derive(Debug, Clone, Default)]
pub struct Integrity {
    whole: Arc<Whole>,
    failed: Arc<AtomicBool>,
}

#[derive(Debug, Default)]
struct Whole {
    /// The server rolled back the transaction, or a save or record was cancelled.
    lost: AtomicBool,
    conflict: AtomicBool,
    /// A statement failed or was dropped, and the transaction is not checked yet.
    unverified: AtomicBool,
    /// Statements may run without [`Integrity::watch`].
    exposed: AtomicBool,
    /// Whether a statement's outcome was ever unknown.
    doubted: AtomicBool,
    /// Lock: held for a statement and its check.
    statement: Mutex<()>,
}

impl Integrity {
    /// State of a transaction whose earlier statements did not run through [`Self::watch`].
    #[must_use]
    pub fn unknown() -> Self {
        let integrity = Self::default();
        integrity.doubt();
        integrity
    }

    /// State of a nested transaction: shares only the state of the whole transaction.
    #[must_use]
    pub fn nested(&self) -> Self {
        Self {
            whole: self.whole.clone(),
            failed: Arc::default(),
        }
    }

    /// Prevents the commit of the whole transaction.
    pub fn lose(&self) {
        self.whole.lost.store(true, Ordering::Relaxed);
    }

    /// Prevents the commit of this nesting level.
    pub fn fail(&self) {
        self.failed.store(true, Ordering::Relaxed);
    }

    /// Marks that statements may run outside of [`Self::watch`].
    pub fn expose(&self) {
        self.whole.exposed.store(true, Ordering::Relaxed);
        self.whole.doubted.store(true, Ordering::Relaxed);
    }

    /// Marks a statement's outcome as unknown.
    pub fn doubt(&self) {
        self.whole.unverified.store(true, Ordering::Relaxed);
        self.whole.doubted.store(true, Ordering::Relaxed);
    }

    /// Records the error of a statement.
    pub fn note(&self, error: &DbErr) {
        if is_conflict(error) {
            self.whole.conflict.store(true, Ordering::Relaxed);
        }
        self.doubt();
    }

    /// Whether a concurrent transaction won a conflict.
    #[must_use]
    pub fn has_conflict(&self) -> bool {
        self.whole.conflict.load(Ordering::Relaxed)
    }

    /// Whether statements may run outside of [`Self::watch`].
    #[must_use]
    pub fn is_exposed(&self) -> bool {
        self.whole.exposed.load(Ordering::Relaxed)
    }

    /// Whether a statement's outcome was ever unknown.
    #[must_use]
    pub fn was_doubted(&self) -> bool {
        self.whole.doubted.load(Ordering::Relaxed)
    }

    /// Whether this nesting level must not be committed.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.check().is_err()
    }

    /// Runs one statement at a time. Checks the server after a failed statement.
    ///
    /// # Errors
    ///
    /// The error of the statement or connection. [`DbErr::Custom`] if the transaction is lost;
    /// nothing is sent.
    ///
    /// # Cancellation
    ///
    /// If the future is dropped, the next statement first checks the state of the transaction.
    pub async fn watch<T>(
        &self,
        tx: &impl ConnectionTrait,
        statement: impl Future<Output = Result<T, DbErr>>,
    ) -> Result<T, DbErr> {
        let _turn = self.whole.statement.lock().await;
        self.ask(tx).await?;
        let unseen = Unseen(self);
        let outcome = statement.await;
        match &outcome {
            Ok(_) => std::mem::forget(unseen),
            Err(error) => {
                self.note(error);
                drop(unseen);
                let _ = self.ask(tx).await;
            }
        }
        outcome
    }

    pub(crate) async fn usable(&self, tx: &impl ConnectionTrait) -> Result<(), DbErr> {
        let _turn = self.whole.statement.lock().await;
        self.ask(tx).await
    }

    /// As [`Self::check`], after a check of the server if an outcome is unknown.
    ///
    /// # Errors
    ///
    /// [`DbErr::Custom`], or the error of the connection.
    pub async fn verify(&self, tx: &impl ConnectionTrait) -> Result<(), DbErr> {
        self.usable(tx).await?;
        self.check()
    }

    async fn ask(&self, tx: &impl ConnectionTrait) -> Result<(), DbErr> {
        let whole = &*self.whole;
        let is_unverified = whole.unverified.load(Ordering::Relaxed) || whole.exposed.load(Ordering::Relaxed);
        if is_unverified && !whole.lost.load(Ordering::Relaxed) {
            if is_undone(tx).await? {
                self.lose();
            }
            whole.unverified.store(false, Ordering::Relaxed);
        }
        if whole.lost.load(Ordering::Relaxed) {
            return self.check();
        }
        Ok(())
    }

    /// Fails if a commit would store only a part of the transaction.
    ///
    /// # Errors
    ///
    /// [`DbErr::Custom`] with the next step.
    pub fn check(&self) -> Result<(), DbErr> {
        let reason = if self.whole.lost.load(Ordering::Relaxed) {
            "the database rolled back after an error, or an earlier save or record was cancelled"
        } else if self.failed.load(Ordering::Relaxed) {
            "an earlier record failed"
        } else {
            return Ok(());
        };
        Err(DbErr::Custom(format!(
            "the transaction is lost: {reason}; roll back and repeat the whole transaction"
        )))
    }
}

struct Unseen<'i>(&'i Integrity);

impl Drop for Unseen<'_> {
    fn drop(&mut self) {
        self.0.doubt();
    }
}
