//! Tracks the handler's use of its transaction and its outbox.

use std::sync::atomic::{AtomicBool, Ordering};

use outbox_core::wake;
use outbox_sea_orm::Integrity;

#[derive(Debug, Default)]
pub(crate) struct Recorded {
    any: AtomicBool,
    in_doubt: AtomicBool,
    integrity: Integrity,
}

impl Recorded {
    pub(super) fn note_any(&self) {
        self.any.store(true, Ordering::Relaxed);
    }

    pub(super) fn doubt(&self) {
        self.in_doubt.store(true, Ordering::Relaxed);
    }

    pub(crate) fn integrity(&self) -> &Integrity {
        &self.integrity
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.integrity.is_lost()
    }

    pub(crate) fn in_doubt(&self) -> bool {
        self.in_doubt.load(Ordering::Relaxed) || self.integrity.was_doubted()
    }

    pub(crate) fn wake(&self) {
        if self.any.load(Ordering::Relaxed) {
            wake::notify();
        }
    }
}
