//! Transactions of the in-memory outbox.
//!
//! Invariant: an uncommitted transaction is invisible, and a dropped transaction leaves only unused
//! row ids.

use std::mem;

use outbox_core::message::{EventError, IntoEvents, NewMessage};

use super::MemoryStore;

/// An open transaction. Dropping it rolls it back.
#[derive(Debug)]
#[must_use = "a transaction that is not committed is rolled back"]
pub struct MemoryTransaction {
    store: MemoryStore,
    messages: Vec<(i64, NewMessage)>,
}

impl MemoryStore {
    /// Sets the row id counter back, as a data-only restore does. New row ids then descend.
    pub fn set_back_row_ids(&self) {
        self.lock().set_back_row_ids();
    }
}

impl MemoryTransaction {
    pub(super) fn new(store: MemoryStore) -> Self {
        Self {
            store,
            messages: Vec::new(),
        }
    }

    /// Records events in this transaction.
    ///
    /// # Errors
    ///
    /// The [`EventError`] of the first invalid event. Then none of `events` is recorded.
    pub fn record(&mut self, events: impl IntoEvents) -> Result<(), EventError> {
        let mut state = self.store.lock();
        for message in events.into_events().checked(&state.limits)? {
            self.messages.push((state.next_row_id(), message));
        }
        Ok(())
    }

    /// Makes all events visible, numbered in commit order, and wakes the relays of this process.
    ///
    /// # Errors
    ///
    /// [`DuplicateKey`] if a deduplication key is taken. Then the transaction is rolled back.
    pub fn commit(mut self) -> Result<(), DuplicateKey> {
        let messages = mem::take(&mut self.messages);
        self.store.lock().commit(messages)?;
        outbox_core::wake::notify();
        Ok(())
    }

    /// Discards all recorded events, like dropping the transaction.
    pub fn roll_back(self) {}
}

/// A deduplication key is taken by an earlier message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("deduplication key `{key}` is taken by an earlier message")]
pub struct DuplicateKey {
    /// The deduplication key that is taken.
    pub key: String,
}

/// Why [`MemoryStore::record`] recorded nothing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// An event is invalid; see [`EventError`].
    #[error(transparent)]
    Event(#[from] EventError),
    /// A deduplication key is taken by an earlier message.
    #[error(transparent)]
    Duplicate(#[from] DuplicateKey),
}
