//! Which partitions this relay owns, and until when it may rely on that.
//!
//! Invariants: the relay believes in a lease for a shorter time than the store grants it. It counts from the moment before the
//! request was sent, with its own monotonic clock, so a paused process or a slow answer makes the belief end early, never late; and a machine that was
//! suspended ends it as well, see [`suspension`](super::suspension). A surplus partition is given back only when nothing of it is in flight. Not here: what
//! follows from a lost lease, see `engine::results`; how fit a relay is, see [`fitness`](super::fitness).

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::time::Instant;

use super::agreement::{Disagreement, disagreement};
use super::share::{Share, share};
use super::suspension::Clocks;
use crate::store::{Announcement, Fitness, Lease, OutboxStore, OwnerId, Pause, Relays, StoreError, within};

/// While there are other relays, or partitions that others own, the relay checks this often whether that has changed, so that a relay that stops is
/// succeeded within a second.
const SEARCH_INTERVAL: Duration = Duration::from_millis(900);

/// The longest wait for the store to release what an ended pause held: what was renewed before it counts only afterwards.
const FINISHING_MAX: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(super) struct Ownership {
    owner: OwnerId,
    ttl: Duration,
    /// How long the store may take for an answer.
    bound: Duration,
    shares: bool,
    leases: Vec<Lease>,
    /// Just before the oldest of the leases was granted or renewed.
    granted_at: Instant,
    clocks: Clocks,
    /// How far the wall clock was ahead then.
    lead: time::Duration,
    /// How long the machine has been suspended since then, as far as it was noticed.
    noticed: Duration,
    /// Surplus partitions: nothing of them is fetched any more.
    leaving: BTreeSet<u16>,
    /// Relays that are alive, this one included.
    relays: Relays,
    /// What this relay last said of itself.
    fitness: Fitness,
    /// It has announced itself and agreed with all others on the destination, or need not.
    has_agreed: bool,
    allows_others: bool,
    renew_at: Instant,
    search_at: Instant,
    /// A lease may have been lost since the last renewal was asked for: its answer proves nothing.
    in_doubt: bool,
    /// Nothing is sent before a renewal that is asked for from now on shows which leases have lasted.
    is_void: bool,
}

/// Until when a message may be published.
#[derive(Debug, Clone, Copy)]
pub(super) struct Deadlines {
    /// No publish starts after this.
    pub(super) start: Instant,
    /// No publish is waited for after this; its outcome is unknown.
    pub(super) confirm: Instant,
}

/// What one round of upkeep is to do, and what came of it.
#[derive(Debug)]
pub(super) struct Upkeep {
    owner: OwnerId,
    ttl: Duration,
    bound: Duration,
    asked_at: Instant,
    lead: time::Duration,
    /// Leases to renew; `None` if it is not time yet.
    renew: Option<Vec<Lease>>,
    owned: usize,
    announcement: Announcement,
    /// No upkeep has succeeded before: others may be starting at the same time.
    is_first: bool,
    allows_others: bool,
    relays: Relays,
    shares: bool,
    taken: Vec<Lease>,
    /// A live relay publishes elsewhere, and this one owns nothing: it may not begin.
    pub(super) disagreement: Option<Box<Disagreement>>,
    /// The pauses, if they were read.
    pub(super) pauses: Option<Vec<Pause>>,
    /// Why nothing could be taken over, although the leases are renewed.
    pub(super) trouble: Option<StoreError>,
    /// Whether ended pauses still hold something, as far as the store was asked to release it.
    pub(super) finished: Result<bool, StoreError>,
}

/// What changed.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Change {
    /// Partitions whose leases were lost, although they were relied on. They may be among those that were acquired.
    pub(super) lost: Vec<u16>,
    /// Partitions that were acquired.
    pub(super) taken: usize,
    /// Partitions that are to be given back from now on.
    pub(super) leaving: Vec<u16>,
}

impl Ownership {
    /// A relay that does not share takes whatever is free, and keeps it until it ends. The relay waits for an answer of the store no longer than `store_timeout`,
    /// and no longer than a third of the `ttl`: then there is time to ask again, on another connection, before the leases run out.
    pub(super) fn new(
        owner: OwnerId,
        ttl: Duration,
        store_timeout: Duration,
        shares: bool,
        clocks: Clocks,
    ) -> Self {
        let now = Instant::now();
        Self {
            owner,
            ttl,
            bound: store_timeout.min(ttl / 3),
            shares,
            leases: Vec::new(),
            granted_at: now,
            lead: clocks.lead(),
            clocks,
            noticed: Duration::ZERO,
            leaving: BTreeSet::new(),
            relays: Relays {
                unproven: 1,
                ..Relays::default()
            },
            fitness: Fitness::default(),
            has_agreed: false,
            allows_others: false,
            renew_at: now,
            search_at: now,
            in_doubt: false,
            is_void: false,
        }
    }

    /// As [`RelayConfig::allow_other_destination`](super::RelayConfig::allow_other_destination).
    pub(super) fn allowing_other_destination(mut self, allows: bool) -> Self {
        self.allows_others = allows;
        self
    }

    pub(super) fn owner(&self) -> OwnerId {
        self.owner
    }

    /// All leases, for settling.
    pub(super) fn leases(&self) -> &[Lease] {
        &self.leases
    }

    /// The leases that are to be kept, for fetching.
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

    /// Until when messages of the owned partitions may be published, or `None` if none is owned.
    pub(super) fn deadlines(&self) -> Option<Deadlines> {
        let slept = self.slept();
        let starts_for = match self.is_void {
            true => Duration::ZERO,
            false => (self.ttl / 2).saturating_sub(slept),
        };
        (!self.leases.is_empty()).then(|| Deadlines {
            start: self.granted_at + starts_for,
            confirm: self.granted_at + (self.ttl * 5 / 6).saturating_sub(slept),
        })
    }

    /// How long the machine has been suspended since the leases were granted. A wall clock that was set forward looks the same.
    fn slept(&self) -> Duration {
        let ahead = self.clocks.lead().saturating_sub(self.lead);
        let slept = Duration::try_from(ahead).unwrap_or(Duration::ZERO);
        // Less than that is how two clocks differ, and within what the deadlines leave of a lease.
        if slept > self.ttl / 20 {
            slept
        } else {
            Duration::ZERO
        }
    }

    /// Whether the store keeps the leases from others no more, as far as this relay can tell.
    pub(super) fn has_run_out(&self) -> bool {
        self.granted_at + self.ttl.saturating_sub(self.slept()) <= Instant::now()
    }

    /// Looks whether the machine was suspended. If so, the leases are renewed at once. Returns for how long, if it was not known before.
    pub(super) fn notice_suspension(&mut self) -> Option<Duration> {
        let slept = self.slept();
        if self.leases.is_empty() || slept <= self.noticed {
            return None;
        }
        self.noticed = slept;
        self.doubt();
        Some(slept)
    }

    fn granted(&mut self, upkeep: &Upkeep) {
        self.granted_at = upkeep.asked_at;
        self.lead = upkeep.lead;
        self.noticed = Duration::ZERO;
    }

    /// When the next upkeep is due.
    pub(super) fn upkeep_at(&self) -> Instant {
        if self.relays.alive() > 1 || self.wanted() > 0 {
            self.renew_at.min(self.search_at)
        } else {
            self.renew_at
        }
    }

    /// Makes the next upkeep renew the leases at once, because one may be lost. If an upkeep is under way, another one follows it.
    pub(super) fn doubt(&mut self) {
        self.renew_at = Instant::now();
        self.in_doubt = true;
    }

    /// As [`Self::doubt`], where it is likely that others own them by now: nothing is sent until a renewal has shown that they do not. What is distrusted again
    /// and again is renewed no more often than others look for what is free.
    pub(super) fn distrust(&mut self) {
        self.doubt();
        self.renew_at = self.renew_at.max(self.granted_at + self.search_interval());
        self.is_void = true;
    }

    fn search_interval(&self) -> Duration {
        SEARCH_INTERVAL.min(self.ttl / 3)
    }

    /// Makes the next upkeep renew the leases at once.
    pub(super) fn renew_now(&mut self) {
        self.renew_at = Instant::now();
    }

    fn share(&self) -> Share {
        share(self.shares, self.fitness, self.relays)
    }

    /// Partitions to take over, if they are free.
    fn wanted(&self) -> usize {
        self.share().takes.saturating_sub(self.leases.len())
    }

    /// The upkeep that is due, by which the relay also announces itself.
    pub(super) fn plan(&mut self, announcement: impl Into<Announcement>) -> Upkeep {
        let now = Instant::now();
        let is_due = self.renew_at <= now;
        self.in_doubt &= !is_due;
        Upkeep {
            owner: self.owner,
            ttl: self.ttl,
            bound: self.bound,
            asked_at: now,
            lead: self.clocks.lead(),
            renew: is_due.then(|| self.leases.clone()),
            owned: self.leases.len(),
            announcement: announcement.into(),
            is_first: !self.has_agreed,
            allows_others: self.allows_others,
            relays: self.relays,
            shares: self.shares,
            taken: Vec::new(),
            disagreement: None,
            pauses: None,
            trouble: None,
            finished: Ok(false),
        }
    }

    /// Takes over the result of an upkeep.
    pub(super) fn apply(&mut self, mut upkeep: Upkeep) -> Change {
        let mut change = Change::default();
        if upkeep.renews() {
            self.granted(&upkeep);
        }
        if let Some(kept) = upkeep.renew.take() {
            // What was given back while the answer was on its way is not owned, although the answer says so.
            let lost = self.leases.extract_if(.., |lease| !kept.contains(lease));
            change.lost = lost.map(|lease| lease.partition).collect();
            if !self.in_doubt {
                self.renew_at = upkeep.asked_at + self.ttl / 3;
                self.is_void = false;
            }
        }
        self.fitness = upkeep.announcement.fitness;
        self.has_agreed = true;
        self.relays = upkeep.relays;
        self.search_at = upkeep.asked_at + self.search_interval();
        change.taken = upkeep.taken.len();
        if self.leases.is_empty() {
            self.granted(&upkeep);
        }
        self.leases.extend(upkeep.taken);
        self.leaving
            .retain(|partition| self.leases.iter().any(|lease| lease.partition == *partition));
        let surplus = self
            .leases
            .len()
            .saturating_sub(self.share().keeps.saturating_add(self.leaving.len()));
        // The newest go first: their queues are the shortest.
        for lease in self.leases.iter().rev() {
            if change.leaving.len() < surplus && self.leaving.insert(lease.partition) {
                change.leaving.push(lease.partition);
            }
        }
        change
    }

    /// Waits at least this long before the next upkeep, after one that failed. The leases run on meanwhile.
    pub(super) fn postpone(&mut self, pause: Duration) {
        let next = Instant::now() + pause;
        self.renew_at = self.renew_at.max(next);
        self.search_at = self.search_at.max(next);
    }

    /// Surplus partitions.
    pub(super) fn leaving(&self) -> impl Iterator<Item = u16> + '_ {
        self.leaving.iter().copied()
    }

    /// Takes the leases of partitions of which nothing is in flight, to be released.
    pub(super) fn give_back(&mut self, partitions: &[u16]) -> Vec<Lease> {
        let (given, kept) = self
            .leases
            .iter()
            .partition(|lease| partitions.contains(&lease.partition));
        self.leases = kept;
        self.leaving.retain(|partition| !partitions.contains(partition));
        given
    }

    /// Relays that are alive, this one included.
    pub(super) fn relays(&self) -> Relays {
        self.relays
    }

    /// Whether it hands everything over, because others can do what it cannot.
    pub(super) fn hands_over(&self) -> bool {
        self.share().keeps == 0
    }

    /// Whether upkeep is due.
    pub(super) fn is_due(&self) -> bool {
        self.upkeep_at() <= Instant::now()
    }
}

impl Upkeep {
    /// Whether it asks which leases have lasted.
    pub(super) fn renews(&self) -> bool {
        self.renew.is_some()
    }

    /// Announces the relay, renews what it owns and takes over what is free, up to its share. A crash in between leaves leases that run out.
    pub(super) async fn run<S: OutboxStore>(mut self, store: &S) -> Result<Self, StoreError> {
        let bound = self.bound;
        self = within(bound, "leases could not be renewed", self.keep(store)).await?;
        if self.owned == 0 && self.relays.disagreeing > 0 && !self.allows_others {
            let relays = within(bound, "relays could not be listed", store.relays()).await?;
            self.disagreement = disagreement(self.owner, &self.announcement, relays).map(Box::new);
            if self.disagreement.is_some() {
                return Ok(self);
            }
        }
        let share = share(self.shares, self.announcement.fitness, self.relays);
        if let Ok(wanted @ 1..) = u16::try_from(share.takes.saturating_sub(self.owned)) {
            // Whoever owns nothing by now begins to send with what it takes, and may have read them long ago.
            if self.pauses.is_none() {
                self.pauses = Some(within(bound, "pauses could not be read", store.pauses()).await?);
            }
            let acquired = store.acquire(self.owner, self.ttl, wanted);
            match within(bound, "leases could not be acquired", acquired).await {
                Ok(taken) => self.taken = taken,
                // Not an error of the whole: a relay that does not hear of its renewals keeps its leases from others, and sends nothing.
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

    /// The pauses come first: a relay that cannot read them must not go on sending.
    async fn keep<S: OutboxStore>(mut self, store: &S) -> Result<Self, StoreError> {
        if self.renew.is_some() {
            self.pauses = Some(store.pauses().await?);
        }
        if self.renew.is_some() || self.relays.alive() > 1 {
            self.relays = store.announce(self.owner, self.ttl, &self.announcement).await?;
            if self.is_first && self.announcement.registration.destination.is_some() {
                // Two relays may announce themselves at the same time, and neither sees the other. Both are stored now.
                self.relays = store.announce(self.owner, self.ttl, &self.announcement).await?;
            }
        }
        if let Some(leases) = &mut self.renew {
            if !leases.is_empty() {
                *leases = store.renew(self.owner, leases, self.ttl).await?;
            }
            self.owned = leases.len();
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests;
