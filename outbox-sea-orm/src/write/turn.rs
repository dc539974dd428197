//! Serializes saves and records in one open transaction.
//!
//! Lock: sqlx names savepoints by depth, so a failed save would roll back rows of a concurrent save
//! that succeeds.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use sea_orm::{DatabaseTransaction, DbErr};
use tokio::sync::{Mutex as Lock, OwnedMutexGuard};

use crate::write::integrity::Integrity;
use crate::write::transaction::Transactional;

/// A save in progress. If it is dropped before [`Self::ends`], the transaction can no longer
/// commit.
pub(crate) struct Turn {
    integrity: Integrity,
    has_ended: bool,
    _place: Place,
}

impl Turn {
    /// Waits for other saves and records of the transaction. Cancel-safe. Fails if the transaction
    /// is lost.
    pub(crate) async fn take(tx: &impl Transactional) -> Result<Self, DbErr> {
        let mut place = Place::of(tx.transaction());
        place.hold = Some(place.lock.clone().lock_owned().await);
        let integrity = tx.integrity().cloned().unwrap_or_else(Integrity::unknown);
        integrity.usable(tx.transaction()).await?;
        Ok(Self {
            integrity,
            has_ended: false,
            _place: place,
        })
    }

    pub(crate) fn integrity(&self) -> &Integrity {
        &self.integrity
    }

    pub(crate) fn ends(mut self) {
        self.has_ended = true;
    }

    pub(crate) fn fails(mut self) {
        self.has_ended = true;
        self.integrity.fail();
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if !self.has_ended {
            self.integrity.lose();
        }
    }
}

/// Locks by the address of their transaction: a borrowed transaction cannot move.
static LOCKS: LazyLock<Mutex<HashMap<usize, Arc<Lock<()>>>>> = LazyLock::new(Mutex::default);

fn locks() -> MutexGuard<'static, HashMap<usize, Arc<Lock<()>>>> {
    LOCKS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A save's use of its transaction's lock. The last `Place` to drop removes the lock from `LOCKS`.
struct Place {
    address: usize,
    lock: Arc<Lock<()>>,
    hold: Option<OwnedMutexGuard<()>>,
}

impl Place {
    fn of(tx: &DatabaseTransaction) -> Self {
        let address = std::ptr::from_ref(tx).addr();
        let lock = locks().entry(address).or_default().clone();
        Self {
            address,
            lock,
            hold: None,
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut locks = locks();
        self.hold = None;
        // While `LOCKS` is locked, the lock cannot be cloned.
        if Arc::strong_count(&self.lock) == 2 {
            locks.remove(&self.address);
        }
    }
}
