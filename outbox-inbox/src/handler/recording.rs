//! What a handler has done with its transaction and in its outbox.
//!
//! Invariant: it can only be set, never taken back, so that the runtime asks once too often rather than once too seldom. Not here: what follows from it after the
//! handler has returned ([`crate::runtime`]).

use std::sync::atomic::{AtomicBool, Ordering};

use outbox_core::wake;
use outbox_sea_orm::Integrity;

/// What a handler has done with its transaction and in its outbox.
#[derive(Debug, Default)]
pub(crate) struct Recorded {
    /// Set as soon as something may have been recorded, by whichever way.
    any: AtomicBool,
    /// Set as soon as a save or record has used the transaction.
    in_doubt: AtomicBool,
    /// State of the transaction, by the outcome of the handler's statements.
    integrity: Integrity,
}

impl Recorded {
    /// Somebody is about to record something.
    pub(super) fn note_any(&self) {
        self.any.store(true, Ordering::Relaxed);
    }

    /// The runtime must ask before the commit whether the transaction is still there.
    pub(super) fn doubt(&self) {
        self.in_doubt.store(true, Ordering::Relaxed);
    }

    pub(crate) fn integrity(&self) -> &Integrity {
        &self.integrity
    }

    /// Whether the transaction must not be committed, as far as that is known: see [`Integrity::verify`].
    pub(crate) fn is_lost(&self) -> bool {
        self.integrity.is_lost()
    }

    /// Whether the transaction must be asked before the commit if it is still there.
    pub(crate) fn in_doubt(&self) -> bool {
        self.in_doubt.load(Ordering::Relaxed) || self.integrity.was_doubted()
    }

    /// After the commit: the relays of this process look for messages.
    pub(crate) fn wake(&self) {
        if self.any.load(Ordering::Relaxed) {
            wake::notify();
        }
    }
}
