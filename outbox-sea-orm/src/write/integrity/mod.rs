//! Whether an open transaction still exists at the server, and whether it may be committed.
//!
//! Invariants: a transaction that the server has undone is never committed. No later statement is
//! sent, because the server would commit each statement by itself. The server is asked after each
//! failed statement ([`is_undone`]). If the outcome of a statement is unknown, the server is asked
//! before the next statement.

pub(crate) mod rollback;
pub(crate) mod watch;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sea_orm::{ConnectionTrait, DbErr};
use tokio::sync::Mutex;

use crate::error::kind::is_conflict;
use crate::write::integrity::rollback::is_undone;

/// Whether a transaction can still be committed. Clones share what concerns the whole transaction; [`Integrity::nested`] does so for a nested one.
#[doc(hidden)]
#[derive(Debug, Clone, Default)]
pub struct Integrity {
    /// Holds for all nested transactions too.
    whole: Arc<Whole>,
    /// A record failed half-way at this level. A rollback of this level makes it good.
    failed: Arc<AtomicBool>,
}

/// What concerns a transaction with all that is nested in it.
#[derive(Debug, Default)]
struct Whole {
    /// The database has undone the transaction, or something was dropped half-way.
    lost: AtomicBool,
    /// A statement has lost against a concurrent transaction.
    conflict: AtomicBool,
    /// A statement has failed or was dropped, and the server has not been asked since.
    unverified: AtomicBool,
    /// Unwatched statements may run, so the server is asked before each watched statement.
    exposed: AtomicBool,
    /// A statement has failed or was dropped, or the transaction was exposed. Never reset.
    doubted: AtomicBool,
    /// Held during a watched statement and the question after its failure.
    statement: Mutex<()>,
}

impl Integrity {
    /// Integrity of a transaction whose earlier statements were not watched.
    #[must_use]
    pub fn unknown() -> Self {
        let integrity = Self::default();
        integrity.doubt();
        integrity
    }

    /// Integrity of a transaction nested in this one.
    #[must_use]
    pub fn nested(&self) -> Self {
        Self {
            whole: self.whole.clone(),
            failed: Arc::default(),
        }
    }

    /// The whole transaction must not be committed.
    pub fn lose(&self) {
        self.whole.lost.store(true, Ordering::Relaxed);
    }

    /// This level must not be committed.
    pub fn fail(&self) {
        self.failed.store(true, Ordering::Relaxed);
    }

    /// From now on, unwatched statements may run.
    pub fn expose(&self) {
        self.whole.exposed.store(true, Ordering::Relaxed);
        self.whole.doubted.store(true, Ordering::Relaxed);
    }

    /// The outcome of a statement is unknown.
    pub fn doubt(&self) {
        self.whole.unverified.store(true, Ordering::Relaxed);
        self.whole.doubted.store(true, Ordering::Relaxed);
    }

    /// Remembers the error of a statement.
    pub fn note(&self, error: &DbErr) {
        if is_conflict(error) {
            self.whole.conflict.store(true, Ordering::Relaxed);
        }
        self.doubt();
    }

    /// Whether a statement has lost against a concurrent transaction, so that the transaction is worth repeating.
    #[must_use]
    pub fn has_conflict(&self) -> bool {
        self.whole.conflict.load(Ordering::Relaxed)
    }

    /// Whether unwatched statements may run.
    #[must_use]
    pub fn is_exposed(&self) -> bool {
        self.whole.exposed.load(Ordering::Relaxed)
    }

    /// Whether a statement has ever failed or been dropped, or the transaction was exposed.
    #[must_use]
    pub fn was_doubted(&self) -> bool {
        self.whole.doubted.load(Ordering::Relaxed)
    }

    /// Whether nothing of the transaction may be committed.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.check().is_err()
    }

    /// Runs one statement of the transaction `tx` at a time. If the statement fails, asks the server
    /// whether the transaction still exists.
    ///
    /// # Errors
    ///
    /// The statement's error. If the transaction is lost, [`DbErr::Custom`], and nothing is sent. If the
    /// connection is lost, the connection's error.
    ///
    /// # Cancellation
    ///
    /// If the future is dropped, the server is asked before the next statement.
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
                // The caller gets the statement's own error.
                let _ = self.ask(tx).await;
            }
        }
        outcome
    }

    /// Refuses more work in a lost transaction. Asks the server if the state is unknown.
    pub(crate) async fn usable(&self, tx: &impl ConnectionTrait) -> Result<(), DbErr> {
        let _turn = self.whole.statement.lock().await;
        self.ask(tx).await
    }

    /// Refuses a commit that would store a part. Asks the server if the state is unknown.
    ///
    /// # Errors
    ///
    /// As [`Self::check`]. If the connection is lost, the connection's error.
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

    /// Refuses a commit that would store a part.
    ///
    /// # Errors
    ///
    /// [`DbErr::Custom`] that says what to do.
    pub fn check(&self) -> Result<(), DbErr> {
        let reason = if self.whole.lost.load(Ordering::Relaxed) {
            "the database has undone it after an error, or an earlier save or record was dropped half-way"
        } else if self.failed.load(Ordering::Relaxed) {
            "an earlier record failed"
        } else {
            return Ok(());
        };
        Err(DbErr::Custom(format!(
            "the transaction is lost: {reason}; roll back and begin again"
        )))
    }
}

/// Marks the outcome of a statement as unknown when dropped.
struct Unseen<'i>(&'i Integrity);

impl Drop for Unseen<'_> {
    fn drop(&mut self) {
        self.0.doubt();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nested_transaction_shares_what_concerns_the_whole() {
        let outer = Integrity::default();
        let (failed, lost) = (outer.nested(), outer.nested());
        failed.fail();
        assert!(failed.check().is_err());
        assert!(outer.check().is_ok() && lost.check().is_ok());
        lost.lose();
        assert!(outer.check().is_err() && outer.nested().check().is_err());
    }
}
