//! Whether a transaction that several saves and records have joined may still be committed.
//!
//! Invariant: a transaction in which one of them was dropped half-way cannot be committed any more, as far as its type has a commit of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sea_orm::DbErr;

use crate::cause::has_undone_transaction;
use crate::kind::is_conflict;

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
}

impl Integrity {
    /// That of a transaction inside this one.
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

    /// Remembers what an error of a statement says about the transaction.
    pub fn note(&self, error: &DbErr) {
        if is_conflict(error) {
            self.note_conflict();
        }
        // To end a deadlock, MySQL undoes the whole transaction. Later statements would be committed one by one.
        if has_undone_transaction(error) {
            self.lose();
        }
    }

    /// A statement has lost against a concurrent transaction.
    pub(crate) fn note_conflict(&self) {
        self.whole.conflict.store(true, Ordering::Relaxed);
    }

    /// Whether a statement has lost against a concurrent transaction, so that the transaction is worth repeating.
    pub(crate) fn has_conflict(&self) -> bool {
        self.whole.conflict.load(Ordering::Relaxed)
    }

    /// Whether nothing of the transaction may be committed.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.check().is_err()
    }

    /// Refuses statements of a transaction that is lost: after a `begin` that was dropped, sqlx 0.9.0 has rolled it back, and the database would
    /// commit each of them by itself.
    ///
    /// # Errors
    ///
    /// As [`Self::check`].
    pub fn usable(&self) -> Result<(), DbErr> {
        if self.whole.lost.load(Ordering::Relaxed) {
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
            "an earlier save or record was undone by the database, or dropped half-way"
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
