//! The keys that run in this process.
//!
//! Invariant: a key that was entered leaves when its request ends, however that ends. Not here: other processes, which only the database knows
//! ([`super::sql`]).

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use super::key::Digest;

/// The keys that run in this process. They spare the database most of the requests that would find their key in use, and on SQLite, where
/// one transaction writes at a time, all of them.
#[derive(Debug, Clone, Default)]
pub(super) struct Running(Arc<Mutex<HashSet<Digest>>>);

impl Running {
    /// Enters a key; `None` if it is there.
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

/// A key that runs. Dropped, it has ended.
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
