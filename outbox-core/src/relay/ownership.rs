//! Which partitions this relay owns, and until when it may rely on that.
//!
//! Invariants: the relay believes in a lease for a shorter time than the store grants it. It counts
//! from the moment before the request was sent, with its own monotonic clock, so a paused process
//! or a slow answer makes the belief end early, never late; and a machine that was suspended ends
//! it as well, see [`suspension`](super::suspension). A surplus partition is given back only when
//! nothing of it is in flight. Not here: what follows from a lost lease, see `engine::leases`; how
//! fit a relay is, see [`fitness`](super::fitness).

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::time::Instant;

use super::agreement::{Disagreement, disagreement};
use super::config::RelayConfig;
use super::share::{Share, share};
use super::suspension::Clocks;
use crate::store::{Announcement, Fitness, Lease, OutboxStore, OwnerId, Pause, Relays, StoreError, within};

/// While there are other relays, or partitions that others own, the relay checks this often whether
/// that has changed, so that a relay that stops is succeeded within a second.
const SEARCH_INTERVAL: Duration = Duration::from_millis(900);

/// The longest wait for the store to release what an ended pause held: what was renewed before it
/// counts only afterwards.
const FINISHING_MAX: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(super) struct Ownership {
    terms: Terms,
    leases: Vec<Lease>,
    clocks: Clocks,
    /// Just before the oldest of the leases was granted or renewed.
    granted: Moment,
    /// How long the machine has been suspended since then, as far as it was noticed.
    noticed: Duration,
    /// Surplus partitions: nothing of them is fetched any more.
    leaving: BTreeSet<u16>,
    known: Known,
    renew_at: Instant,
    search_at: Instant,
    /// A lease may have been lost since the last renewal was asked for: its answer proves nothing.
    in_doubt: bool,
    /// Nothing is sent before a renewal that is asked for from now on shows which leases have
    /// lasted.
    is_void: bool,
}

/// The terms under which a relay owns partitions. They never change.
#[derive(Debug, Clone, Copy)]
struct Terms {
    owner: OwnerId,
    ttl: Duration,
    /// How long the store may take for an answer: at most a third of `ttl`. Then there is time to
    /// ask again, on another connection, before the leases expire.
    bound: Duration,
    /// Whether the relay shares the partitions. Otherwise it takes all free partitions and keeps
    /// them until it ends.
    shares: bool,
    /// As [`RelayConfig::allow_other_destination`].
    allows_others: bool,
}

/// A moment by two clocks.
#[derive(Debug, Clone, Copy)]
struct Moment {
    at: Instant,
    /// How far the wall clock was ahead.
    lead: time::Duration,
}

/// What the relay learned and announced with its last renewal.
#[derive(Debug, Clone, Copy)]
struct Known {
    /// Relays that are alive, this one included.
    relays: Relays,
    /// What this relay announced of itself.
    fitness: Fitness,
    /// It has announced itself and agreed with all others on the destination, or need not.
    has_agreed: bool,
}

/// Until when a message may be published.
#[derive(Debug, Clone, Copy)]
pub(super) struct Deadlines {
    /// No publish starts after this.
    pub(super) start: Instant,
    /// No publish is waited for after this; its outcome is unknown.
    pub(super) confirm: Instant,
}

/// A renewal of the leases: the request, and the answer.
#[derive(Debug)]
pub(super) struct Renewal {
    terms: Terms,
    asked: Moment,
    /// Leases to renew; `None` if it is not time yet.
    renew: Option<Vec<Lease>>,
    owned: usize,
    announcement: Announcement,
    /// No renewal has succeeded before: others may be starting at the same time.
    is_first: bool,
    relays: Relays,
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
    /// Partitions whose leases were lost, although they were relied on. They may be among those
    /// that were acquired.
    pub(super) lost: Vec<u16>,
    /// Partitions that were acquired.
    pub(super) taken: usize,
    /// Partitions that are to be given back from now on.
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
                    unproven: 1,
                    ..Relays::default()
                },
                fitness: Fitness::default(),
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
            false => (self.terms.ttl / 2).saturating_sub(slept),
        };
        (!self.leases.is_empty()).then(|| Deadlines {
            start: self.granted.at + starts_for,
            confirm: self.granted.at + (self.terms.ttl * 5 / 6).saturating_sub(slept),
        })
    }

    /// How long the machine has been suspended since the leases were granted. A wall clock that was
    /// set forward looks the same.
    fn slept(&self) -> Duration {
        let ahead = self.clocks.lead().saturating_sub(self.granted.lead);
        let slept = Duration::try_from(ahead).unwrap_or(Duration::ZERO);
        // Less than that is how two clocks differ, and within what the deadlines leave of a lease.
        if slept > self.terms.ttl / 20 {
            slept
        } else {
            Duration::ZERO
        }
    }

    /// Whether the store keeps the leases from others no more, as far as this relay can tell.
    pub(super) fn has_run_out(&self) -> bool {
        self.granted.at + self.terms.ttl.saturating_sub(self.slept()) <= Instant::now()
    }

    /// Looks whether the machine was suspended. If so, the leases are renewed at once. Returns for
    /// how long, if it was not known before.
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

    /// When the next renewal is due.
    pub(super) fn renewal_at(&self) -> Instant {
        if self.known.relays.alive() > 1 || self.wanted() > 0 {
            self.renew_at.min(self.search_at)
        } else {
            self.renew_at
        }
    }

    /// Makes the next renewal renew the leases at once, because one may be lost. If a renewal is
    /// under way, another one follows it.
    pub(super) fn doubt(&mut self) {
        self.renew_at = Instant::now();
        self.in_doubt = true;
    }

    /// As [`Self::doubt`], where it is likely that others own them by now: nothing is sent until a
    /// renewal has shown that they do not. What is distrusted again and again is renewed no more
    /// often than others look for what is free.
    pub(super) fn distrust(&mut self) {
        self.doubt();
        self.renew_at = self.renew_at.max(self.granted.at + self.search_interval());
        self.is_void = true;
    }

    fn search_interval(&self) -> Duration {
        SEARCH_INTERVAL.min(self.terms.ttl / 3)
    }

    /// Makes the next renewal renew the leases at once.
    pub(super) fn renew_now(&mut self) {
        self.renew_at = Instant::now();
    }

    fn share(&self) -> Share {
        share(self.terms.shares, self.known.fitness, self.known.relays)
    }

    /// Partitions to take over, if they are free.
    fn wanted(&self) -> usize {
        self.share().takes.saturating_sub(self.leases.len())
    }

    /// The renewal that is due, by which the relay also announces itself.
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

    /// Applies the result of a renewal.
    pub(super) fn apply(&mut self, mut renewal: Renewal) -> Change {
        let mut change = Change::default();
        if renewal.renews() {
            self.granted(&renewal);
        }
        if let Some(kept) = renewal.renew.take() {
            // What was given back while the answer was on its way is not owned, although the answer
            // says so.
            let lost = self.leases.extract_if(.., |lease| !kept.contains(lease));
            change.lost = lost.map(|lease| lease.partition).collect();
            if !self.in_doubt {
                self.renew_at = renewal.asked.at + self.terms.ttl / 3;
                self.is_void = false;
            }
        }
        self.known = Known {
            relays: renewal.relays,
            fitness: renewal.announcement.fitness,
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
        // The newest go first: their queues are the shortest.
        for lease in self.leases.iter().rev() {
            if change.leaving.len() < surplus && self.leaving.insert(lease.partition) {
                change.leaving.push(lease.partition);
            }
        }
        change
    }

    /// Waits at least this long before the next renewal, after one that failed. The leases run on
    /// meanwhile.
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
        self.known.relays
    }

    /// Whether it hands everything over, because others can do what it cannot.
    pub(super) fn hands_over(&self) -> bool {
        self.share().keeps == 0
    }

    /// Whether a renewal is due.
    pub(super) fn is_due(&self) -> bool {
        self.renewal_at() <= Instant::now()
    }
}

#[cfg(test)]
impl Ownership {
    /// Takes these partitions over.
    pub(super) fn take(&mut self, partitions: impl IntoIterator<Item = u16>) -> Renewal {
        let mut renewal = self.plan(Fitness::Fit);
        let lease = |partition| Lease { partition, epoch: 1 };
        renewal.taken = partitions.into_iter().map(lease).collect();
        renewal
    }
}

impl Renewal {
    /// Whether it asks which leases have lasted.
    pub(super) fn renews(&self) -> bool {
        self.renew.is_some()
    }

    /// Announces the relay, renews what it owns and takes over what is free, up to its share. A
    /// crash in between leaves leases that run out.
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
        let share = share(self.terms.shares, self.announcement.fitness, self.relays);
        if let Ok(wanted @ 1..) = u16::try_from(share.takes.saturating_sub(self.owned)) {
            // Whoever owns nothing by now begins to send with what it takes, and may have read them
            // long ago.
            if self.pauses.is_none() {
                self.pauses = Some(within(bound, "pauses could not be read", store.pauses()).await?);
            }
            let acquired = store.acquire(self.terms.owner, self.terms.ttl, wanted);
            match within(bound, "leases could not be acquired", acquired).await {
                Ok(taken) => self.taken = taken,
                // Not an error of the whole: a relay that does not hear of its renewals keeps its
                // leases from others, and sends nothing.
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
            self.relays = store
                .announce(self.terms.owner, self.terms.ttl, &self.announcement)
                .await?;
            if self.is_first && self.announcement.registration.destination.is_some() {
                // Two relays may announce themselves at the same time, and neither sees the other.
                // Both are stored now.
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
