//! The keys of running requests in this process. A key is removed when its request ends, however it
//! ends.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use super::key::Digest;

#[derive(Debug, Clone, Default)]
pub(super) struct Running(Arc<Mutex<HashSet<Digest>>>);

impl Running {
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
