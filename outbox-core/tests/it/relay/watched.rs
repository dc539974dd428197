//! A store that counts its calls, and can delay or withhold answers.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use outbox_testing::store_methods;
use outbox_testing::store_types::*;

use super::*;

#[derive(Clone)]
pub(crate) struct Watched {
    store: MemoryStore,
    announcing: Duration,
    calls: Arc<AtomicUsize>,
    silent: Arc<Mutex<Vec<(&'static str, usize)>>>,
    silent_at_all: Arc<AtomicBool>,
    granted: Arc<AtomicUsize>,
    unanswered: Arc<AtomicUsize>,
    /// Partitions that another relay acquires before the next settlement; the next renewal reports
    /// their loss.
    lost: Arc<Mutex<Vec<u16>>>,
    announced: Arc<Mutex<Option<RelayHealth>>>,
    asked: Arc<Mutex<Vec<u32>>>,
    settlements: Arc<AtomicUsize>,
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
            silent: Arc::default(),
            silent_at_all: Arc::default(),
            granted: Arc::default(),
            unanswered: Arc::default(),
            lost: Arc::default(),
            announced: Arc::default(),
            asked: Arc::default(),
            settlements: Arc::default(),
        }
    }

    pub(crate) fn calls(&self) -> usize {
        self.calls.load(Ordering::Relaxed)
    }

    /// After `answered` more calls, the next call of this name is never answered.
    pub(crate) fn silence_one(&self, call: &'static str, answered: usize) {
        self.silent.lock().unwrap().push((call, answered));
    }

    pub(crate) fn silence_all(&self, silent: bool) {
        self.silent_at_all.store(silent, Ordering::Relaxed);
    }

    pub(crate) fn granted(&self) -> usize {
        self.granted.load(Ordering::Relaxed)
    }

    pub(crate) fn lose(&self, partitions: &[u16]) {
        self.lost.lock().unwrap().extend_from_slice(partitions);
    }

    fn left_of(&self, leases: &[Lease]) -> Vec<Lease> {
        let lost = self.lost.lock().unwrap();
        let is_left = |lease: &&Lease| !lost.contains(&lease.partition);
        leases.iter().filter(is_left).copied().collect()
    }

    pub(crate) fn announced(&self) -> Option<RelayHealth> {
        *self.announced.lock().unwrap()
    }

    pub(crate) fn asked(&self) -> Vec<u32> {
        self.asked.lock().unwrap().clone()
    }

    pub(crate) fn settlements(&self) -> usize {
        self.settlements.load(Ordering::Relaxed)
    }

    pub(crate) fn unanswered(&self) -> usize {
        self.unanswered.load(Ordering::Relaxed)
    }

    async fn call(&self, name: &'static str) -> &MemoryStore {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let is_silent = self.silent_at_all.load(Ordering::Relaxed) || {
            let mut silent = self.silent.lock().unwrap();
            let due = silent.iter_mut().position(|(silent, answered)| {
                *silent == name && std::mem::replace(answered, answered.saturating_sub(1)) == 0
            });
            due.map(|due| silent.remove(due)).is_some()
        };
        if is_silent {
            self.unanswered.fetch_add(1, Ordering::Relaxed);
            std::future::pending::<()>().await;
        }
        &self.store
    }
}

macro_rules! call {
    ($self:ident, $method:ident($($argument:expr),*)) => {
        $self.call(stringify!($method)).await.$method($($argument),*).await
    };
}

impl OutboxStore for Watched {
    store_methods!(self, call; preflight relays release leave fetch_waiting purge pauses finish_pauses backlog);

    async fn announce(
        &self,
        owner: OwnerId,
        ttl: Duration,
        announcement: &Announcement,
    ) -> Result<Relays, StoreError> {
        tokio::time::sleep(self.announcing).await;
        *self.announced.lock().unwrap() = Some(announcement.health);
        self.call("announce")
            .await
            .announce(owner, ttl, announcement)
            .await
    }

    async fn acquire(&self, owner: OwnerId, ttl: Duration, max: u16) -> Result<Vec<Lease>, StoreError> {
        let leases = self.call("acquire").await.acquire(owner, ttl, max).await?;
        self.granted.fetch_add(leases.len(), Ordering::Relaxed);
        Ok(leases)
    }

    async fn renew(&self, owner: OwnerId, leases: &[Lease], ttl: Duration) -> Result<Vec<Lease>, StoreError> {
        let store = self.call("renew").await;
        let left = self.left_of(leases);
        let lost: Vec<Lease> = leases
            .iter()
            .filter(|lease| !left.contains(lease))
            .copied()
            .collect();
        store.release(owner, &lost).await?;
        self.lost.lock().unwrap().clear();
        store.renew(owner, &left, ttl).await
    }

    async fn fetch(&self, request: FetchRequest<'_>) -> Result<Fetched, StoreError> {
        self.asked.lock().unwrap().push(request.limit.get());
        self.call("fetch").await.fetch(request).await
    }

    async fn settle(&self, leases: &[Lease], settlements: &[Settlement]) -> Result<usize, StoreError> {
        self.settlements.fetch_add(1, Ordering::Relaxed);
        let store = self.call("settle").await;
        store.settle(&self.left_of(leases), settlements).await
    }
}
