//! Stores with one mistake each, which wrap a correct [`MemoryStore`]. For mistakes in recording,
//! see [`WriterMistake`](super::WriterMistake).

mod audit;
mod mistake;
mod operate;
mod pause;
mod read;
mod spoil;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use outbox_core::message::PARTITIONS;
use outbox_testing::store_types::*;
use outbox_testing::{MemoryStore, StoredRow, store_methods};

pub use mistake::StoreMistake;

use StoreMistake as M;

/// A store with one mistake.
#[derive(Debug)]
pub struct WrongStore {
    inner: MemoryStore,
    mistake: StoreMistake,
    memory: Mutex<Memory>,
}

#[derive(Debug, Default)]
struct Memory {
    cursor: i64,
    leased: bool,
    health: HashMap<OwnerId, RelayHealth>,
    stuck: HashSet<Aggregate>,
    retried: HashSet<MessageId>,
    returned: BTreeSet<RowKey>,
}

impl WrongStore {
    /// Wraps a store.
    #[must_use]
    pub fn new(inner: MemoryStore, mistake: StoreMistake) -> Self {
        Self {
            inner,
            mistake,
            memory: Mutex::default(),
        }
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn is_ahead(&self) -> bool {
        let partitions = self.inner.partitions().await.unwrap_or_default();
        partitions.iter().any(|partition| partition.is_ahead)
    }

    fn find(&self, wanted: impl Fn(&StoredRow) -> bool) -> Vec<StoredRow> {
        self.inner.rows().into_iter().filter(wanted).collect()
    }
}

macro_rules! forward {
    ($self:ident, $method:ident($($argument:expr),*)) => { $self.inner.$method($($argument),*).await };
}

use forward;

impl OutboxStore for WrongStore {
    store_methods!(self, forward; pauses);

    async fn preflight(&self, deletes: bool) -> Result<Vec<SetupProblem>, StoreError> {
        if self.mistake == M::AlwaysComplains {
            return Err(StoreError::setup(SetupKind::Version, "the server is too new", ""));
        }
        self.inner.preflight(deletes).await
    }

    async fn announce(
        &self,
        owner: OwnerId,
        ttl: Duration,
        announcement: &Announcement,
    ) -> Result<Relays, StoreError> {
        let mut announcement = announcement.clone();
        let mut ttl = ttl;
        match self.mistake {
            M::AnnouncesForEver => ttl = LEASE_TTL_MAX,
            M::KeepsTheFirstHealth => {
                let first = *self.memory().health.entry(owner).or_insert(announcement.health);
                announcement.health = first;
            }
            M::ForgetsDestinations => announcement.registration = Arc::default(),
            _ => {}
        }
        self.inner.announce(owner, ttl, &announcement).await
    }

    async fn relays(&self) -> Result<Vec<LiveRelay>, StoreError> {
        let mut relays = self.inner.relays().await?;
        match self.mistake {
            M::ListsNoUnhealthyRelays => relays.retain(|relay| relay.health != RelayHealth::Unhealthy),
            M::ForgetsTroubles => relays.iter_mut().for_each(|relay| relay.trouble = None),
            _ => {}
        }
        Ok(relays)
    }

    async fn acquire(&self, owner: OwnerId, ttl: Duration, max: u16) -> Result<Vec<Lease>, StoreError> {
        match self.mistake {
            M::GrantsOwnedLeases => self.inner.expire_leases(),
            M::IgnoresMax => return self.inner.acquire(owner, ttl, PARTITIONS).await,
            M::TakesLeasesAhead if self.is_ahead().await => self.inner.expire_leases(),
            M::KeepsLeasesAhead if self.is_ahead().await => return Ok(Vec::new()),
            M::LeasesForEver if self.memory().leased => return Ok(Vec::new()),
            _ => {}
        }
        let mut leases = self.inner.acquire(owner, ttl, max).await?;
        self.memory().leased = true;
        if self.mistake == M::ReusesEpochs {
            for lease in &mut leases {
                lease.epoch = 1;
            }
        }
        Ok(leases)
    }

    async fn renew(&self, owner: OwnerId, leases: &[Lease], ttl: Duration) -> Result<Vec<Lease>, StoreError> {
        if self.mistake == M::RenewsBlindly {
            return Ok(leases.to_vec());
        }
        self.inner.renew(owner, leases, ttl).await
    }

    async fn release(&self, owner: OwnerId, leases: &[Lease]) -> Result<(), StoreError> {
        self.memory().leased = false;
        match self.mistake {
            M::ForgetsReleases => return Ok(()),
            M::ReleasesForOthers => self.inner.expire_leases(),
            _ => {}
        }
        self.inner.release(owner, leases).await
    }

    async fn leave(&self, owner: OwnerId) -> Result<(), StoreError> {
        if self.mistake == M::LeavesWithoutGivingBack {
            return Ok(());
        }
        self.inner.leave(owner).await
    }

    async fn fetch(&self, request: FetchRequest<'_>) -> Result<Fetched, StoreError> {
        let all = self.inner.current_leases();
        let returned: Vec<RowKey> = self.memory().returned.iter().copied().collect();
        let mut wrong = request;
        match self.mistake {
            M::IgnoresPartitions => wrong.leases = &all,
            M::RemembersFormerOwners => wrong.in_flight = &returned,
            M::IgnoresLimit | M::LooksPastItsLimit => wrong.limit = NonZeroU32::MAX,
            M::IgnoresBytes => wrong.bytes = usize::MAX,
            M::IgnoresRowsInFlight => wrong.in_flight = &[],
            _ => {}
        }
        let mut fetched = self.inner.fetch(wrong).await?;
        if self.mistake == M::LooksPastItsLimit {
            fetched.due.truncate(request.limit.get() as usize);
        }
        self.spoil(&mut fetched)?;
        let keys = fetched.due.iter().map(FetchedRow::key);
        self.memory().returned.extend(keys);
        Ok(fetched)
    }

    async fn fetch_waiting(&self, request: WaitingRequest<'_>) -> Result<Fetched, StoreError> {
        let all = self.inner.current_leases();
        let mut wrong = request;
        match self.mistake {
            M::IgnoresPartitions => wrong.leases = &all,
            M::IgnoresWaitingBounds => {
                wrong.limit = NonZeroU32::MAX;
                wrong.per_aggregate = NonZeroU32::MAX;
                wrong.bytes = usize::MAX;
            }
            M::IgnoresExclusions => wrong.excluding = &[],
            M::IgnoresRowsInFlight => wrong.in_flight = &[],
            _ => {}
        }
        let mut fetched = self.inner.fetch_waiting(wrong).await?;
        self.spoil_waiting(&mut fetched, &request);
        Ok(fetched)
    }

    async fn settle(&self, leases: &[Lease], settlements: &[Settlement]) -> Result<usize, StoreError> {
        let current = self.inner.current_leases();
        match self.mistake {
            M::AcceptsStaleEpochs => return self.inner.settle(&current, settlements).await,
            M::AllOrNothing if leases.iter().any(|lease| !current.contains(lease)) => return Ok(0),
            M::LosesSettlements => return Ok(settlements.len()),
            _ => {}
        }
        let spoilt = self.spoil_settlements(settlements).await?;
        let accepted = self.inner.settle(leases, &spoilt).await?;
        self.after_settling(settlements).await?;
        if self.mistake == M::FreesKeysEarly {
            self.inner.forget_dedup_keys();
        }
        let lost = settlements.len() - spoilt.len();
        let is_counted = self.mistake == M::CountsChangedRows;
        Ok(accepted + if is_counted { 0 } else { lost })
    }

    async fn purge(&self, request: PurgeRequest) -> Result<Purged, StoreError> {
        self.purge_wrongly(request).await
    }

    async fn finish_pauses(&self) -> Result<bool, StoreError> {
        self.finish_wrongly().await
    }

    async fn backlog(&self) -> Result<Backlog, StoreError> {
        let mut backlog = self.inner.backlog().await?;
        match self.mistake {
            M::HidesDeadLetters => backlog.dead_letters = 0,
            M::HidesWaiting => backlog.waiting = 0,
            M::HidesAgeOfFailed if backlog.pending == backlog.waiting => backlog.oldest_unpublished = None,
            _ => {}
        }
        Ok(backlog)
    }
}
