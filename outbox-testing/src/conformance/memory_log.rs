//! The fixture of the log in memory, or of a wrapper of it.

use std::time::Duration;

use outbox_core::log::{Logged, MessageLog, Position};
use outbox_core::message::{Events, MessageId};
use time::OffsetDateTime;

use super::log::LogFixture;
use super::memory::MemoryStoreFixture;
use super::store::{Refused, RowState, StoreCapabilities, StoreFixture};
use crate::{MemoryLog, MemoryStore, MemoryTransaction};

/// Runs the suite of logs over [`MemoryLog`], or over a wrapper of it.
#[derive(Debug)]
pub struct MemoryMessageLogFixture<L = MemoryLog> {
    store: MemoryStoreFixture,
    /// The log beneath the wrapper, for what a test does to it from outside.
    memory: MemoryLog,
    log: L,
}

impl MemoryMessageLogFixture {
    /// The log of a fresh store.
    #[must_use]
    pub fn new() -> Self {
        Self::wrapping(|store| store.log())
    }
}

impl Default for MemoryMessageLogFixture {
    fn default() -> Self {
        Self::new()
    }
}

impl<L> MemoryMessageLogFixture<L> {
    /// A wrapper around the log of a fresh store.
    pub fn wrapping(wrap: impl FnOnce(MemoryStore) -> L) -> Self {
        let store = MemoryStoreFixture::new();
        let memory: &MemoryStore = store.store();
        Self {
            memory: memory.log(),
            log: wrap(memory.clone()),
            store,
        }
    }
}

impl<L: MessageLog> StoreFixture for MemoryMessageLogFixture<L> {
    type Store = MemoryStore;
    type Open = MemoryTransaction;

    fn capabilities(&self) -> StoreCapabilities {
        self.store.capabilities()
    }

    fn store(&self) -> &MemoryStore {
        self.store.store()
    }

    async fn now(&self) -> OffsetDateTime {
        self.store.now().await
    }

    async fn commit(&self, events: Events) -> Result<(), Refused> {
        self.store.commit(events).await
    }

    async fn roll_back(&self, events: Events) -> Result<(), Refused> {
        self.store.roll_back(events).await
    }

    async fn begin(&self, events: Events) -> Result<MemoryTransaction, Refused> {
        self.store.begin(events).await
    }

    async fn expire_leases(&self) {
        self.store.expire_leases().await;
    }

    async fn set_back_row_ids(&self) {
        self.store.set_back_row_ids().await;
    }

    async fn set_clock_back(&self, by: Duration) {
        self.store.set_clock_back(by).await;
    }

    async fn corrupt(&self, id: MessageId) {
        self.store.corrupt(id).await;
    }

    async fn rows(&self) -> Vec<RowState> {
        self.store.rows().await
    }
}

impl<L: MessageLog> LogFixture for MemoryMessageLogFixture<L> {
    type Log = L;

    fn log(&self) -> &L {
        &self.log
    }

    async fn write_elsewhere(&self) {
        self.memory.write_elsewhere(1);
    }

    async fn interrupt(&self) {
        self.memory.interrupt();
    }

    async fn lose(&self) {
        self.memory.lose();
    }

    async fn commit_unseen(&self, events: Events) -> Vec<Logged> {
        let before = self.rows().await.len();
        self.memory.hide_next(u32::MAX);
        self.commit(events).await.expect("events are recorded");
        let recorded = self.rows().await.into_iter().skip(before);
        recorded
            .map(|row| Logged {
                id: row.id,
                transaction: 0,
                passed_from: Position(u64::MAX),
            })
            .collect()
    }

    async fn show(&self) {
        self.memory.hide_next(0);
    }
}
