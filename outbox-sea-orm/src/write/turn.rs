//! The turns of saves and records that join one open transaction.
//!
//! Invariant: of the saves and records that join one transaction, one runs at a time. sqlx names savepoints by their depth, so of two at the same
//! time the first to fail would undo the other one's rows, and the other would still report success. Not here: whether the transaction may still be
//! committed, see [`crate::write::integrity`].

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use sea_orm::{DatabaseTransaction, DbErr};
use tokio::sync::{Mutex as Lock, OwnedMutexGuard};

use crate::write::integrity::Integrity;
use crate::write::transaction::Transactional;

/// The turn of a save or record that has joined a transaction. Dropped before [`Self::ends`], it makes the transaction uncommittable.
pub(crate) struct Turn {
    integrity: Integrity,
    has_ended: bool,
    _place: Place,
}

impl Turn {
    /// Waits until no other save or record runs that has joined this transaction. A caller that is dropped while it waits has done nothing.
    /// Fails if the transaction is lost. A transaction that remembers nothing is asked.
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

    /// What becomes of the transaction. It is forgotten with the turn if the transaction remembers nothing.
    pub(crate) fn integrity(&self) -> &Integrity {
        &self.integrity
    }

    /// The work has come to its end: nothing of it is half done.
    pub(crate) fn ends(mut self) {
        self.has_ended = true;
    }

    /// The work has failed half-way: the level must be rolled back.
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

/// The locks of the transactions that somebody has joined or waits to join, by the address of the transaction. All of these borrow it, so it
/// stays where it is, and no other transaction can have its address.
static LOCKS: LazyLock<Mutex<HashMap<usize, Arc<Lock<()>>>>> = LazyLock::new(Mutex::default);

fn locks() -> MutexGuard<'static, HashMap<usize, Arc<Lock<()>>>> {
    LOCKS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A place in the queue for a transaction. Nothing is left of the queue when the last place is given up.
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
        // One is the map's, one is ours. Others clone it under the same lock.
        if Arc::strong_count(&self.lock) == 2 {
            locks.remove(&self.address);
        }
    }
}
