//! An in-memory deduplication store. Each operation holds the lock for its whole duration.

use std::collections::HashMap;
use std::future::ready;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use outbox_core::dedup::{ClaimToken, DedupFuture, DedupKey, DedupStore, DedupStoreError, StoreClaim};
use tokio::time::Instant;

/// A [`DedupStore`] for tests. Clones share their state. Keeps every key for its full retention.
#[derive(Debug, Clone, Default)]
pub struct MemoryDedupStore {
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    entries: HashMap<DedupKey, Entry>,
    tokens: u128,
    down: bool,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    token: ClaimToken,
    done: bool,
    until: Instant,
}

impl Entry {
    fn is_over(&self) -> bool {
        self.until <= Instant::now()
    }
}

impl MemoryDedupStore {
    /// Creates an empty store.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// While `down`, every call fails with [`DedupStoreError::Unavailable`], without effect.
    pub fn set_down(&self, down: bool) {
        self.state().down = down;
    }

    /// Whether a key is completed.
    #[must_use]
    pub fn is_done(&self, key: &DedupKey) -> bool {
        let state = self.state();
        state
            .entries
            .get(key)
            .is_some_and(|entry| entry.done && !entry.is_over())
    }

    /// Removes a key, as an eviction or a restore from a backup does.
    pub fn forget(&self, key: &DedupKey) {
        self.state().entries.remove(key);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn answer<T: Send + 'static>(&self, operation: impl FnOnce(&mut State) -> T) -> DedupFuture<'static, T> {
        let mut state = self.state();
        let answer = if state.down {
            Err(DedupStoreError::unavailable("switched off by the test", None))
        } else {
            Ok(operation(&mut state))
        };
        Box::pin(ready(answer))
    }
}

/// Operations run when called, not when polled.
impl DedupStore for MemoryDedupStore {
    fn claim<'a>(&'a self, key: &'a DedupKey, lease: Duration) -> DedupFuture<'a, StoreClaim> {
        self.answer(|state| match state.entries.get(key) {
            Some(entry) if !entry.is_over() => {
                if entry.done {
                    StoreClaim::Done
                } else {
                    StoreClaim::InProgress
                }
            }
            _ => {
                state.tokens += 1;
                let token = ClaimToken::new(state.tokens);
                let entry = Entry {
                    token,
                    done: false,
                    until: Instant::now() + lease,
                };
                state.entries.insert(key.clone(), entry);
                StoreClaim::Mine(token)
            }
        })
    }

    fn complete<'a>(
        &'a self,
        key: &'a DedupKey,
        token: ClaimToken,
        retention: Duration,
    ) -> DedupFuture<'a, bool> {
        self.answer(|state| {
            let entry = state.entries.get(key);
            let ours = entry.is_none_or(|entry| entry.token == token || entry.is_over());
            if ours && entry.is_none_or(|entry| !entry.done || entry.is_over()) {
                let entry = Entry {
                    token,
                    done: true,
                    until: Instant::now() + retention,
                };
                state.entries.insert(key.clone(), entry);
            }
            ours
        })
    }

    fn release<'a>(&'a self, key: &'a DedupKey, token: ClaimToken) -> DedupFuture<'a, ()> {
        self.answer(|state| {
            if state
                .entries
                .get(key)
                .is_some_and(|entry| entry.token == token && !entry.done)
            {
                state.entries.remove(key);
            }
        })
    }

    fn preflight(&self, _: Duration) -> DedupFuture<'_, Vec<String>> {
        self.answer(|_| Vec::new())
    }
}
