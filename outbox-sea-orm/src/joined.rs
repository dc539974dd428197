//! The turns of saves and records that join one open transaction, and the end of a transaction that the database has undone.
//!
//! Invariant: of the saves and records that join one transaction, one runs at a time. sqlx names savepoints by their depth, so of two at the same
//! time the first to fail would undo the other one's rows, and the other would still report success. Not here: whether the transaction may still be
//! committed, see [`crate::integrity`].

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use sea_orm::{ConnectionTrait, DatabaseTransaction, DbBackend, DbErr};
use tokio::sync::{Mutex as Lock, OwnedMutexGuard};

use crate::integrity::Integrity;
use crate::transactional::Transactional;

/// The turn of a save or record that has joined a transaction. Dropped before [`Self::ends`], it makes the transaction uncommittable.
pub(crate) struct Turn<'t> {
    integrity: Option<&'t Integrity>,
    has_ended: bool,
    _place: Place,
}

impl<'t> Turn<'t> {
    /// Waits until no other save or record runs that has joined this transaction. A caller that is dropped while it waits has done nothing.
    /// Fails if the transaction is lost.
    pub(crate) async fn take(tx: &'t impl Transactional) -> Result<Self, DbErr> {
        let mut place = Place::of(tx.transaction());
        place.hold = Some(place.lock.clone().lock_owned().await);
        let integrity = tx.integrity();
        integrity.map_or(Ok(()), Integrity::usable)?;
        Ok(Self {
            integrity,
            has_ended: false,
            _place: place,
        })
    }

    /// The work has come to its end: nothing of it is half done.
    pub(crate) fn ends(mut self) {
        self.has_ended = true;
    }

    /// The work has failed half-way: the level must be rolled back.
    pub(crate) fn fails(mut self) {
        self.has_ended = true;
        if let Some(integrity) = self.integrity {
            integrity.fail();
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if !self.has_ended
            && let Some(integrity) = self.integrity
        {
            integrity.lose();
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

/// Closes the connection of a transaction that the database has undone. Later statements would otherwise be committed one by one, and a later
/// commit of SeaORM's own transaction would report success. SQLite: see [`is_undone_on_sqlite`].
pub(crate) async fn close<C: ConnectionTrait>(tx: &C) {
    let end = match tx.get_database_backend() {
        DbBackend::Postgres => "SELECT pg_terminate_backend(pg_backend_pid())",
        DbBackend::MySql => "KILL CONNECTION_ID()",
        _ => return,
    };
    // Twice: the first try may get the answer of a rollback that sqlx has queued, and is not sent then. The last answer is an error, because the
    // connection is gone.
    for _ in 0..2 {
        if let Err(error) = tx.execute_unprepared(end).await {
            tracing::debug!(%error, "connection of an undone transaction is being closed");
        }
    }
}

/// Savepoints of sqlx that are made anew after SQLite has undone a transaction; so many may be nested.
const SAVEPOINTS: u32 = 8;

/// Whether SQLite has undone the whole transaction (a full disk, for example). Ask before the rollback to a savepoint, which would fail then, and
/// leave sqlx 0.9.0 with a wrong depth on a connection that goes back into the pool.
///
/// If so, a new transaction with the same savepoints takes its place. It cannot be committed, because it violates a deferred foreign key (sqlx
/// switches foreign keys on). So later statements are not committed one by one. A crash leaves nothing of it.
pub(crate) async fn is_undone_on_sqlite<C: ConnectionTrait>(tx: &C) -> bool {
    // Fails in a transaction.
    if tx.get_database_backend() != DbBackend::Sqlite || tx.execute_unprepared("BEGIN").await.is_err() {
        return false;
    }
    let savepoints: String = (1..=SAVEPOINTS)
        .map(|n| format!("; SAVEPOINT _sqlx_savepoint_{n}"))
        .collect();
    let refused = tx
        .execute_unprepared(&format!(
            "CREATE TEMP TABLE outbox_undone (id INTEGER PRIMARY KEY, \
             gone INTEGER REFERENCES outbox_undone (id) DEFERRABLE INITIALLY DEFERRED); \
             INSERT INTO outbox_undone VALUES (1, 2){savepoints}"
        ))
        .await;
    if let Err(error) = refused {
        tracing::error!(%error, "an undone transaction could not be made uncommittable; roll it back");
    }
    true
}
