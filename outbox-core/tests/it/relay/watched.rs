//! A store whose calls are counted, and whose answers may take time.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use outbox_core::store::{FetchRequest, Fetched, HeldRequest, PurgeRequest, Purged};
use outbox_core::{Backlog, Lease, OutboxStore, OwnerId, Settlement, StoreError};

use super::*;

#[derive(Clone)]
pub(crate) struct Watched {
    store: MemoryStore,
    announcing: Duration,
    calls: Arc<AtomicUsize>,
}

impl Watched {
    pub(crate) fn new(store: &MemoryStore) -> Self {
        Self::slow_to_announce(store, Duration::ZERO)
    }

    pub(crate) fn slow_to_announce(store: &MemoryStore, announcing: Duration) -> Self {
        Self {
            store: store.clone(),
            announcing,
            calls: Arc::default(),
        }
    }

    /// How often the store was asked for anything.
    pub(crate) fn calls(&self) -> usize {
        self.calls.load(Ordering::Relaxed)
    }

    fn count(&self) -> &MemoryStore {
        self.calls.fetch_add(1, Ordering::Relaxed);
        &self.store
    }
}

impl OutboxStore for Watched {
    async fn preflight(&self) -> Result<Vec<String>, StoreError> {
        self.count().preflight().await
    }

    async fn announce(&self, owner: OwnerId, ttl: Duration) -> Result<u32, StoreError> {
        tokio::time::sleep(self.announcing).await;
        self.count().announce(owner, ttl).await
    }

    async fn acquire(&self, owner: OwnerId, ttl: Duration, max: u16) -> Result<Vec<Lease>, StoreError> {
        self.count().acquire(owner, ttl, max).await
    }

    async fn renew(&self, owner: OwnerId, leases: &[Lease], ttl: Duration) -> Result<Vec<Lease>, StoreError> {
        self.count().renew(owner, leases, ttl).await
    }

    async fn release(&self, owner: OwnerId, leases: &[Lease]) -> Result<(), StoreError> {
        self.count().release(owner, leases).await
    }

    async fn leave(&self, owner: OwnerId) -> Result<(), StoreError> {
        self.count().leave(owner).await
    }

    async fn fetch(&self, request: FetchRequest<'_>) -> Result<Fetched, StoreError> {
        self.count().fetch(request).await
    }

    async fn fetch_held(&self, request: HeldRequest<'_>) -> Result<Fetched, StoreError> {
        self.count().fetch_held(request).await
    }

    async fn settle(&self, leases: &[Lease], settlements: &[Settlement]) -> Result<usize, StoreError> {
        self.count().settle(leases, settlements).await
    }

    async fn purge(&self, request: PurgeRequest) -> Result<Purged, StoreError> {
        self.count().purge(request).await
    }

    async fn backlog(&self) -> Result<Backlog, StoreError> {
        self.count().backlog().await
    }
}
