//! Which partitions this relay owns, and until when it may rely on that.
//!
//! Invariants: the relay believes in a lease for a shorter time than the store grants it. It counts from the moment before the
//! request was sent, with its own monotonic clock, so a paused process or a slow answer makes the belief end early, never late. A surplus partition
//! is given back only when nothing of it is in flight. Not here: what follows from a lost lease, see `engine::results`; how fit a relay is, see
//! [`fitness`](super::fitness).

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::time::Instant;

use crate::message::PARTITIONS;
use crate::store::{Fitness, Lease, OutboxStore, OwnerId, Relays, StoreError, within};

/// While there are other relays, or partitions that others own, the relay checks this often whether that has changed, so that a relay that stops is
/// succeeded within a second.
const SEARCH_INTERVAL: Duration = Duration::from_millis(900);

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
    /// Surplus partitions: nothing of them is fetched any more.
    leaving: BTreeSet<u16>,
    /// Relays that are alive, this one included.
    relays: Relays,
    /// What this relay last said of itself.
    fitness: Fitness,
    renew_at: Instant,
    search_at: Instant,
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
    /// Leases to renew; `None` if it is not time yet.
    renew: Option<Vec<Lease>>,
    owned: usize,
    fitness: Fitness,
    relays: Relays,
    shares: bool,
    taken: Vec<Lease>,
    /// Why nothing could be taken over, although the leases are renewed.
    pub(super) trouble: Option<StoreError>,
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
    pub(super) fn new(owner: OwnerId, ttl: Duration, store_timeout: Duration, shares: bool) -> Self {
        let now = Instant::now();
        Self {
            owner,
            ttl,
            bound: store_timeout.min(ttl / 3),
            shares,
            leases: Vec::new(),
            granted_at: now,
            leaving: BTreeSet::new(),
            relays: Relays {
                unproven: 1,
                ..Relays::default()
            },
            fitness: Fitness::default(),
            renew_at: now,
            search_at: now,
        }
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
        (!self.leases.is_empty()).then(|| Deadlines {
            start: self.granted_at + self.ttl / 2,
            confirm: self.granted_at + self.ttl * 5 / 6,
        })
    }

    /// When the next upkeep is due.
    pub(super) fn upkeep_at(&self) -> Instant {
        if self.relays.alive() > 1 || self.wanted() > 0 {
            self.renew_at.min(self.search_at)
        } else {
            self.renew_at
        }
    }

    /// Makes the next upkeep renew the leases at once, because one may be lost.
    pub(super) fn doubt(&mut self) {
        self.renew_at = Instant::now();
    }

    fn share(&self) -> Share {
        share(self.shares, self.fitness, self.relays)
    }

    /// Partitions to take over, if they are free.
    fn wanted(&self) -> usize {
        self.share().takes.saturating_sub(self.leases.len())
    }

    /// The upkeep that is due, by which the relay also tells others its fitness.
    pub(super) fn plan(&self, fitness: Fitness) -> Upkeep {
        let now = Instant::now();
        Upkeep {
            owner: self.owner,
            ttl: self.ttl,
            bound: self.bound,
            asked_at: now,
            renew: (self.renew_at <= now).then(|| self.leases.clone()),
            owned: self.leases.len(),
            fitness,
            relays: self.relays,
            shares: self.shares,
            taken: Vec::new(),
            trouble: None,
        }
    }

    /// Takes over the result of an upkeep.
    pub(super) fn apply(&mut self, upkeep: Upkeep) -> Change {
        let mut change = Change::default();
        if let Some(kept) = upkeep.renew {
            // What was given back while the answer was on its way is not owned, although the answer says so.
            let lost = self.leases.extract_if(.., |lease| !kept.contains(lease));
            change.lost = lost.map(|lease| lease.partition).collect();
            self.granted_at = upkeep.asked_at;
            self.renew_at = upkeep.asked_at + self.ttl / 3;
        }
        self.fitness = upkeep.fitness;
        self.relays = upkeep.relays;
        self.search_at = upkeep.asked_at + SEARCH_INTERVAL.min(self.ttl / 3);
        change.taken = upkeep.taken.len();
        if self.leases.is_empty() {
            self.granted_at = upkeep.asked_at;
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

/// How many partitions a relay may own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Share {
    /// It takes over free partitions until it has this many.
    takes: usize,
    /// It gives back the partitions that it has beyond this many.
    keeps: usize,
}

/// The share of one relay among those that are alive, rounded up.
///
/// An ailing relay hands over to relays that are fit, and to no others: a relay that has not succeeded lately might only be waiting for the same broker. If none
/// is fit, all partitions stay where they are, however long the broker is away and whatever relays come and go. A relay that tries again gets its share for that.
fn share(shares: bool, own: Fitness, relays: Relays) -> Share {
    let all = usize::from(PARTITIONS);
    let among = |relays: u32| all.div_ceil(relays.max(1) as usize);
    let able = relays.alive() - relays.ailing;
    // While nobody is fit, nobody hands over; a relay that tries again gets its share all the same.
    let staying = if relays.ailing > 0 && relays.trying == 0 {
        all
    } else {
        among(relays.alive())
    };
    let (takes, keeps) = match own {
        _ if !shares => (all, all),
        Fitness::Ailing if relays.fit > 0 => (0, 0),
        // Free partitions are for the relays that are not ailing, if there are any.
        Fitness::Ailing if able > 0 => (0, staying),
        Fitness::Ailing => (among(relays.alive()), staying),
        _ if relays.fit > 0 => (among(able), among(able)),
        _ => (among(able), staying.max(among(able))),
    };
    Share { takes, keeps }
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
        let share = share(self.shares, self.fitness, self.relays);
        if let Ok(wanted @ 1..) = u16::try_from(share.takes.saturating_sub(self.owned)) {
            let acquired = store.acquire(self.owner, self.ttl, wanted);
            match within(bound, "leases could not be acquired", acquired).await {
                Ok(taken) => self.taken = taken,
                // Not an error of the whole: a relay that does not hear of its renewals keeps its leases from others, and sends nothing.
                Err(error) => self.trouble = Some(error),
            }
        }
        Ok(self)
    }

    async fn keep<S: OutboxStore>(mut self, store: &S) -> Result<Self, StoreError> {
        if self.renew.is_some() || self.relays.alive() > 1 {
            self.relays = store.announce(self.owner, self.ttl, self.fitness).await?;
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
mod tests {
    use super::*;

    fn lease(partition: u16) -> Lease {
        Lease { partition, epoch: 1 }
    }

    fn apply(ownership: &mut Ownership, alive: u32, taken: impl IntoIterator<Item = u16>) -> Change {
        let mut upkeep = ownership.plan(Fitness::Fit);
        upkeep.renew = Some(ownership.leases.clone());
        upkeep.relays = Relays {
            fit: alive,
            ..Relays::default()
        };
        upkeep.taken = taken.into_iter().map(lease).collect();
        ownership.apply(upkeep)
    }

    #[tokio::test(start_paused = true)]
    async fn a_relay_gives_back_what_exceeds_its_share() {
        let mut ownership = Ownership::new(
            OwnerId::fresh(),
            Duration::from_secs(15),
            Duration::from_secs(10),
            true,
        );
        assert_eq!(apply(&mut ownership, 1, 0..64).taken, 64);
        let change = apply(&mut ownership, 3, []);
        assert_eq!(change.leaving.len(), 64 - 22);
        assert_eq!(ownership.fetchable().len(), 22);
        assert_eq!(apply(&mut ownership, 3, []), Change::default(), "only once");
        let given = ownership.give_back(&change.leaving);
        assert_eq!((given.len(), ownership.leases().len()), (42, 22));
        assert_eq!(ownership.wanted(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn deadlines_count_from_before_the_request() {
        let mut ownership = Ownership::new(
            OwnerId::fresh(),
            Duration::from_secs(12),
            Duration::from_secs(10),
            true,
        );
        let mut upkeep = ownership.plan(Fitness::Fit);
        let asked_at = Instant::now();
        tokio::time::advance(Duration::from_secs(5)).await;
        upkeep.taken = vec![lease(7)];
        ownership.apply(upkeep);
        let deadlines = ownership.deadlines().unwrap();
        assert_eq!(deadlines.start, asked_at + Duration::from_secs(6));
        assert_eq!(deadlines.confirm, asked_at + Duration::from_secs(10));
    }

    /// Whatever relays there are, the partitions are covered; and nobody hands over to one that has not succeeded.
    #[test]
    fn shares_cover_all_partitions_and_go_to_those_that_are_fit() {
        let all = usize::from(PARTITIONS);
        for code in 1..4_u32.pow(4) {
            let [fit, unproven, trying, ailing] = [code % 4, code / 4 % 4, code / 16 % 4, code / 64];
            let relays = Relays {
                fit,
                unproven,
                trying,
                ailing,
            };
            let counts = [fit, unproven, trying, ailing];
            let shares = Fitness::ALL.map(|own| share(true, own, relays));
            let takes = (0..4).map(|own| shares[own].takes * counts[own] as usize);
            assert!(takes.sum::<usize>() >= all, "{relays:?}");
            for Share { takes, keeps } in shares {
                assert!(takes <= keeps, "what it takes it would give back: {relays:?}");
            }
            let hands_over = shares[Fitness::Ailing as usize].keeps == 0;
            assert_eq!(hands_over, fit > 0, "{relays:?}");
            if fit == 0 && trying == 0 && ailing > 0 {
                assert!(shares.iter().all(|share| share.keeps == all), "{relays:?}");
            }
        }
    }
}
