//! The partitions that this relay owns, and until when it may rely on its leases.
//!
//! Invariants: the relay trusts a lease for less time than granted. The trusted time starts before
//! the relay requests the lease, by the monotonic clock, and ends at a
//! [`suspension`](super::suspension). A surplus partition is released only without messages in
//! flight.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::time::Instant;

use super::agreement::{Disagreement, disagreement};
use super::config::RelayConfig;
use super::share::{Share, share};
use super::suspension::Clocks;
use crate::store::{
    Announcement, Lease, OutboxStore, OwnerId, Pause, RelayHealth, Relays, StoreError, within,
};

const SEARCH_INTERVAL: Duration = Duration::from_millis(900);

const FINISHING_MAX: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(super) struct Ownership {
    terms: Terms,
    leases: Vec<Lease>,
    clocks: Clocks,
    granted: Moment,
    noticed: Duration,
    leaving: BTreeSet<u16>,
    known: Known,
    renew_at: Instant,
    search_at: Instant,
    /// A lease may be lost since the last renewal began: the renewal's result proves nothing.
    in_doubt: bool,
    /// Nothing is sent until a later renewal proves the leases.
    is_void: bool,
}

#[derive(Debug, Clone, Copy)]
struct Terms {
    owner: OwnerId,
    ttl: Duration,
    /// Renewal timeout, at most a third of `ttl`: time for another try.
    bound: Duration,
    /// Whether the relay shares partitions. A relay that does not share keeps all free partitions
    /// until it ends.
    shares: bool,
    allows_others: bool,
}

#[derive(Debug, Clone, Copy)]
struct Moment {
    at: Instant,
    lead: time::Duration,
}

#[derive(Debug, Clone, Copy)]
struct Known {
    relays: Relays,
    health: RelayHealth,
    has_agreed: bool,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Deadlines {
    pub(super) start: Instant,
    pub(super) confirm: Instant,
}

#[derive(Debug)]
pub(super) struct Renewal {
    terms: Terms,
    asked: Moment,
    renew: Option<Vec<Lease>>,
    owned: usize,
    announcement: Announcement,
    is_first: bool,
    relays: Relays,
    taken: Vec<Lease>,
    pub(super) disagreement: Option<Box<Disagreement>>,
    pub(super) pauses: Option<Vec<Pause>>,
    pub(super) trouble: Option<StoreError>,
    pub(super) finished: Result<bool, StoreError>,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Change {
    /// Partitions lost before this renewal. The renewal may have acquired some of them again.
    pub(super) lost: Vec<u16>,
    pub(super) taken: usize,
    pub(super) leaving: Vec<u16>,
}

impl Ownership {
    pub(super) fn new(owner: OwnerId, config: &RelayConfig, shares: bool, clocks: Clocks) -> Self {
        let now = Instant::now();
        Self {
            terms: Terms {
                owner,
                ttl: config.lease_ttl,
                bound: config.store_timeout.min(config.lease_ttl / 3),
                shares,
                allows_others: config.allow_other_destination,
            },
            leases: Vec::new(),
            granted: Moment {
                at: now,
                lead: clocks.lead(),
            },
            clocks,
            noticed: Duration::ZERO,
            leaving: BTreeSet::new(),
            known: Known {
                relays: Relays {
                    unknown: 1,
                    ..Relays::default()
                },
                health: RelayHealth::default(),
                has_agreed: false,
            },
            renew_at: now,
            search_at: now,
            in_doubt: false,
            is_void: false,
        }
    }

    pub(super) fn owner(&self) -> OwnerId {
        self.terms.owner
    }

    pub(super) fn leases(&self) -> &[Lease] {
        &self.leases
    }

    pub(super) fn fetchable(&self) -> Vec<Lease> {
        self.leases
            .iter()
            .filter(|lease| !self.leaving.contains(&lease.partition))
            .copied()
            .collect()
    }

    pub(super) fn keeps(&self, partition: u16) -> bool {
        !self.leaving.contains(&partition) && self.leases.iter().any(|lease| lease.partition == partition)
    }

    pub(super) fn deadlines(&self) -> Option<Deadlines> {
        let slept = self.slept();
        let starts_for = match self.is_void {
            true => Duration::ZERO,
            false => (self.terms.ttl / 2).saturating_sub(slept),
        };
        (!self.leases.is_empty()).then(|| Deadlines {
            start: self.granted.at + starts_for,
            confirm: self.granted.at + (self.terms.ttl * 5 / 6).saturating_sub(slept),
        })
    }

    /// How long the machine was suspended. A wall clock that was set forward looks the same.
    fn slept(&self) -> Duration {
        let ahead = self.clocks.lead().saturating_sub(self.granted.lead);
        let slept = Duration::try_from(ahead).unwrap_or(Duration::ZERO);
        // A difference of at most `ttl / 20` between the clocks is drift, which the lease deadlines
        // cover.
        if slept > self.terms.ttl / 20 {
            slept
        } else {
            Duration::ZERO
        }
    }

    pub(super) fn has_run_out(&self) -> bool {
        self.granted.at + self.terms.ttl.saturating_sub(self.slept()) <= Instant::now()
    }

    pub(super) fn notice_suspension(&mut self) -> Option<Duration> {
        let slept = self.slept();
        if self.leases.is_empty() || slept <= self.noticed {
            return None;
        }
        self.noticed = slept;
        self.doubt();
        Some(slept)
    }

    fn granted(&mut self, renewal: &Renewal) {
        self.granted = renewal.asked;
        self.noticed = Duration::ZERO;
    }

    pub(super) fn renewal_at(&self) -> Instant {
        if self.known.relays.alive() > 1 || self.wanted() > 0 {
            self.renew_at.min(self.search_at)
        } else {
            self.renew_at
        }
    }

    /// If a renewal is running, another renewal follows.
    pub(super) fn doubt(&mut self) {
        self.renew_at = Instant::now();
        self.in_doubt = true;
    }

    /// Nothing is sent until a renewal proves the leases. Repeated calls renew no more often than
    /// the search interval.
    pub(super) fn distrust(&mut self) {
        self.doubt();
        self.renew_at = self.renew_at.max(self.granted.at + self.search_interval());
        self.is_void = true;
    }

    fn search_interval(&self) -> Duration {
        SEARCH_INTERVAL.min(self.terms.ttl / 3)
    }

    pub(super) fn renew_now(&mut self) {
        self.renew_at = Instant::now();
    }

    fn share(&self) -> Share {
        share(self.terms.shares, self.known.health, self.known.relays)
    }

    fn wanted(&self) -> usize {
        self.share().takes.saturating_sub(self.leases.len())
    }

    pub(super) fn plan(&mut self, announcement: impl Into<Announcement>) -> Renewal {
        let asked = Moment {
            at: Instant::now(),
            lead: self.clocks.lead(),
        };
        let is_due = self.renew_at <= asked.at;
        self.in_doubt &= !is_due;
        Renewal {
            terms: self.terms,
            asked,
            renew: is_due.then(|| self.leases.clone()),
            owned: self.leases.len(),
            announcement: announcement.into(),
            is_first: !self.known.has_agreed,
            relays: self.known.relays,
            taken: Vec::new(),
            disagreement: None,
            pauses: None,
            trouble: None,
            finished: Ok(false),
        }
    }

    pub(super) fn apply(&mut self, mut renewal: Renewal) -> Change {
        let mut change = Change::default();
        if renewal.renews() {
            self.granted(&renewal);
        }
        if let Some(kept) = renewal.renew.take() {
            // A lease released during the renewal is not owned, although the result contains it.
            let lost = self.leases.extract_if(.., |lease| !kept.contains(lease));
            change.lost = lost.map(|lease| lease.partition).collect();
            if !self.in_doubt {
                self.renew_at = renewal.asked.at + self.terms.ttl / 3;
                self.is_void = false;
            }
        }
        self.known = Known {
            relays: renewal.relays,
            health: renewal.announcement.health,
            has_agreed: true,
        };
        self.search_at = renewal.asked.at + self.search_interval();
        change.taken = renewal.taken.len();
        if self.leases.is_empty() {
            self.granted(&renewal);
        }
        self.leases.extend(renewal.taken);
        self.leaving
            .retain(|partition| self.leases.iter().any(|lease| lease.partition == *partition));
        let surplus = self
            .leases
            .len()
            .saturating_sub(self.share().keeps.saturating_add(self.leaving.len()));
        // Releases the newest leases first: their queues are shortest.
        for lease in self.leases.iter().rev() {
            if change.leaving.len() < surplus && self.leaving.insert(lease.partition) {
                change.leaving.push(lease.partition);
            }
        }
        change
    }

    pub(super) fn postpone(&mut self, pause: Duration) {
        let next = Instant::now() + pause;
        self.renew_at = self.renew_at.max(next);
        self.search_at = self.search_at.max(next);
    }

    pub(super) fn leaving(&self) -> impl Iterator<Item = u16> + '_ {
        self.leaving.iter().copied()
    }

    /// Removes the leases of `partitions`. The caller ensures that no message of `partitions` is in
    /// flight.
    pub(super) fn give_back(&mut self, partitions: &[u16]) -> Vec<Lease> {
        let (given, kept) = self
            .leases
            .iter()
            .partition(|lease| partitions.contains(&lease.partition));
        self.leases = kept;
        self.leaving.retain(|partition| !partitions.contains(partition));
        given
    }

    pub(super) fn relays(&self) -> Relays {
        self.known.relays
    }

    pub(super) fn hands_over(&self) -> bool {
        self.share().keeps == 0
    }

    pub(super) fn is_due(&self) -> bool {
        self.renewal_at() <= Instant::now()
    }
}

#[cfg(test)]
impl Ownership {
    pub(super) fn take(&mut self, partitions: impl IntoIterator<Item = u16>) -> Renewal {
        let mut renewal = self.plan(RelayHealth::Healthy);
        let lease = |partition| Lease { partition, epoch: 1 };
        renewal.taken = partitions.into_iter().map(lease).collect();
        renewal
    }
}

impl Renewal {
    pub(super) fn renews(&self) -> bool {
        self.renew.is_some()
    }

    /// If the relay crashes during this call, leases that the call has acquired expire.
    pub(super) async fn run<S: OutboxStore>(mut self, store: &S) -> Result<Self, StoreError> {
        let bound = self.terms.bound;
        self = within(bound, "leases could not be renewed", self.keep(store)).await?;
        if self.owned == 0 && self.relays.disagreeing > 0 && !self.terms.allows_others {
            let relays = within(bound, "relays could not be listed", store.relays()).await?;
            self.disagreement = disagreement(self.terms.owner, &self.announcement, relays).map(Box::new);
            if self.disagreement.is_some() {
                return Ok(self);
            }
        }
        let share = share(self.terms.shares, self.announcement.health, self.relays);
        if let Ok(wanted @ 1..) = u16::try_from(share.takes.saturating_sub(self.owned)) {
            // A relay without leases may have stale pauses and is about to send.
            if self.pauses.is_none() {
                self.pauses = Some(within(bound, "pauses could not be read", store.pauses()).await?);
            }
            let acquired = store.acquire(self.terms.owner, self.terms.ttl, wanted);
            match within(bound, "leases could not be acquired", acquired).await {
                Ok(taken) => self.taken = taken,
                // A failed acquisition does not fail the renewal, because without renewed leases
                // the relay would send nothing.
                Err(error) => self.trouble = Some(error),
            }
        }
        if self.pauses.iter().flatten().any(|pause| !pause.stands()) {
            let finishing = store.finish_pauses();
            self.finished = within(
                bound.min(FINISHING_MAX),
                "a pause could not be finished",
                finishing,
            )
            .await;
        }
        Ok(self)
    }

    /// Reads pauses first: a relay that cannot read pauses must stop sending.
    async fn keep<S: OutboxStore>(mut self, store: &S) -> Result<Self, StoreError> {
        if self.renew.is_some() {
            self.pauses = Some(store.pauses().await?);
        }
        if self.renew.is_some() || self.relays.alive() > 1 {
            self.relays = store
                .announce(self.terms.owner, self.terms.ttl, &self.announcement)
                .await?;
            if self.is_first && self.announcement.registration.destination.is_some() {
                // Two starting relays detect each other only with the second announcement.
                self.relays = store
                    .announce(self.terms.owner, self.terms.ttl, &self.announcement)
                    .await?;
            }
        }
        if let Some(leases) = &mut self.renew {
            if !leases.is_empty() {
                *leases = store.renew(self.terms.owner, leases, self.terms.ttl).await?;
            }
            self.owned = leases.len();
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests;
