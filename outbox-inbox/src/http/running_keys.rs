//! The keys that run in this process.
//!
//! Invariant: an entered key is removed when its request ends, however it ends. Not here: keys that run in other processes, which only the database
//! knows ([`super::sql`]).

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use super::key::Digest;

/// The keys that run in this process. The list spares the database most requests whose key is in use, and on SQLite, where one transaction writes at
/// a time, all of them.
#[derive(Debug, Clone, Default)]
pub(super) struct Running(Arc<Mutex<HashSet<Digest>>>);

impl Running {
    /// Enters a key; `None` if it is already running.
    pub(super) fn enter(&self, id: Digest) -> Option<Entry> {
        self.keys(|keys| keys.insert(id)).then(|| Entry {
            running: self.clone(),
            id,
        })
    }

    fn keys<R>(&self, change: impl FnOnce(&mut HashSet<Digest>) -> R) -> R {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A running key. Dropping the entry removes the key.
#[derive(Debug)]
pub(super) struct Entry {
    running: Running,
    id: Digest,
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.running.keys(|keys| keys.remove(&self.id));
    }
}
