//! Verdicts, until the store has taken them.
//!
//! Invariant: a verdict that the store did not take is kept and goes first, for as long as the lease lasts under which it was given. After that, another relay
//! may have decided otherwise. A confirmation of the broker is a fact, and outlives the lease. If the store refuses a single verdict, each settlement has half
//! as many verdicts as the one before, until the refused one is found and the others are settled. [`Refused`] keeps it: no refused verdict keeps another
//! verdict from being settled, nor a partition from being given back. A lane that a refused verdict closes stays closed. A message that the store refuses to set
//! aside stays pending in the store, and is not set aside again before the next try.

use std::collections::VecDeque;
use std::mem;

use tokio::time::Instant;

use super::lanes::Key;
use crate::quick_map::QuickSet;
use crate::relay::DeadMessage;
use crate::store::{FetchedRow, Lease, RowKey, Settlement, Verdict};

#[derive(Debug, Default)]
pub(super) struct Verdicts {
    unsettled: Vec<Given>,
    /// When the oldest of them was given.
    since: Option<Instant>,
    /// The verdicts on their way to the store.
    settling: Settling,
    /// Number of verdicts, of both kinds, that set aside a message which a fetch reported as having to wait.
    set_aside: usize,
    /// Maximum number of verdicts in the next settlement, while the one that the store refuses is being found.
    at_once: Option<usize>,
}

/// A verdict, and what follows once the store has taken it.
#[derive(Debug)]
pub(in crate::relay) struct Given {
    pub(in crate::relay) settlement: Settlement,
    /// The lane that it closes.
    pub(super) closes: Option<Key>,
    /// The dead letter that the application is told of then.
    pub(in crate::relay) dead: Option<DeadMessage>,
    /// The message was published, and the broker had it from an earlier attempt.
    pub(in crate::relay) is_duplicate: bool,
    /// It sets aside a message that a fetch reported as having to wait.
    pub(super) is_set_aside: bool,
    /// The lane of a message that waits behind another.
    pub(super) waits_in: Option<Key>,
}

/// Verdicts of one settlement, and the leases that they were sent with.
#[derive(Debug, Default)]
pub(in crate::relay) struct Settling {
    pub(in crate::relay) verdicts: Vec<Given>,
    pub(in crate::relay) leases: Vec<Lease>,
    /// The settlement is a single verdict that the store has refused before.
    pub(super) is_retry: bool,
}

impl Settling {
    /// The lease of a partition.
    pub(in crate::relay) fn lease_of(&self, partition: u16) -> Option<Lease> {
        self.leases
            .iter()
            .find(|lease| lease.partition == partition)
            .copied()
    }
}

impl Given {
    pub(super) fn new(settlement: Settlement) -> Self {
        Self {
            settlement,
            closes: None,
            dead: None,
            is_duplicate: false,
            is_set_aside: false,
            waits_in: None,
        }
    }

    pub(super) fn on(row: &FetchedRow, verdict: Verdict) -> Self {
        Self::new(row.with_verdict(verdict))
    }

    /// Whether the broker confirmed the message.
    pub(in crate::relay) fn is_published(&self) -> bool {
        matches!(self.settlement.verdict, Verdict::Published { .. })
    }
}

impl Verdicts {
    pub(super) fn give(&mut self, given: Given) {
        self.set_aside += usize::from(given.is_set_aside);
        self.since.get_or_insert_with(Instant::now);
        self.unsettled.push(given);
    }

    /// Whether the verdict on its way was refused before.
    pub(super) fn is_retry(&self) -> bool {
        self.settling.is_retry
    }

    /// Whether messages are being set aside.
    pub(super) fn is_setting_aside(&self) -> bool {
        self.set_aside > 0
    }

    /// Number of verdicts that wait to be settled.
    pub(super) fn unsettled(&self) -> usize {
        self.unsettled.len()
    }

    /// When the oldest of them was given.
    pub(super) fn since(&self) -> Option<Instant> {
        self.since
    }

    /// All that the store did not take yet, those on their way included.
    pub(super) fn not_taken(&self) -> impl Iterator<Item = &Given> {
        self.unsettled.iter().chain(&self.settling.verdicts)
    }

    /// The number of [`Self::not_taken`].
    pub(super) fn not_taken_count(&self) -> usize {
        self.unsettled.len() + self.settling.verdicts.len()
    }

    /// All verdicts go to the store, with these leases; only the first ones while the one that the store refuses is being found.
    pub(super) fn begin_settle(&mut self, leases: Vec<Lease>) -> Vec<Settlement> {
        let at_once = self.at_once.map_or(usize::MAX, |at_once| at_once.max(1));
        let rest = self.unsettled.split_off(at_once.min(self.unsettled.len()));
        let verdicts = mem::replace(&mut self.unsettled, rest);
        self.since = (!self.unsettled.is_empty()).then(Instant::now);
        self.send(verdicts, leases, false)
    }

    /// A verdict that the store has refused goes to it once more, alone.
    pub(super) fn begin_retry(&mut self, given: Given, leases: Vec<Lease>) -> Vec<Settlement> {
        self.send(vec![given], leases, true)
    }

    fn send(&mut self, verdicts: Vec<Given>, leases: Vec<Lease>, is_retry: bool) -> Vec<Settlement> {
        let settlements = verdicts.iter().map(|given| given.settlement.clone()).collect();
        self.settling = Settling {
            verdicts,
            leases,
            is_retry,
        };
        settlements
    }

    /// The store took the verdicts that were on their way, or refused them for good.
    pub(super) fn settled(&mut self) -> Settling {
        let settled = mem::take(&mut self.settling);
        self.ended(&settled.verdicts);
        // The verdict that the store refuses is among the others.
        if !settled.is_retry {
            let more = self.at_once.map(|at_once| at_once.saturating_mul(2));
            self.at_once = more.filter(|at_once| *at_once < self.unsettled.len());
        }
        settled
    }

    /// The store refused one of the verdicts that were on their way. If only one was on its way, returns it, and the next settlement has one as well, because
    /// refused verdicts often follow each other.
    pub(super) fn refused(&mut self) -> Option<Settling> {
        let sent = self.settling.verdicts.len();
        if !self.settling.is_retry {
            self.at_once = Some((sent / 2).max(1));
        }
        if sent > 1 {
            return None;
        }
        let alone = mem::take(&mut self.settling);
        self.ended(&alone.verdicts);
        Some(alone)
    }

    /// Puts a verdict behind all others.
    pub(super) fn put_last(&mut self, given: Given) {
        self.set_aside += usize::from(given.is_set_aside);
        self.unsettled.push(given);
        self.ended(&[]);
    }

    /// Verdicts that the store has refused are to be settled with the others.
    pub(super) fn take_back(&mut self, verdicts: impl IntoIterator<Item = Given>) {
        self.unsettled.extend(verdicts);
        self.ended(&[]);
    }

    /// The store may not have taken the verdicts that were on their way: confirmations, and those whose lease is still owned, go first next time. Returns the
    /// others, which are dropped.
    pub(super) fn not_settled(&mut self, owned: &[Lease]) -> Vec<Given> {
        let mut settling = mem::take(&mut self.settling);
        let verdicts = mem::take(&mut settling.verdicts);
        let lives = |given: &Given| {
            let lease = settling.lease_of(given.settlement.partition);
            given.is_published() || lease.is_some_and(|lease| owned.contains(&lease))
        };
        let (mut kept, dropped): (Vec<_>, Vec<_>) = verdicts.into_iter().partition(lives);
        kept.append(&mut self.unsettled);
        self.unsettled = kept;
        self.ended(&dropped);
        dropped
    }

    /// Leases are lost. Returns the verdicts that are dropped. Those on their way are looked at when the settlement has failed.
    pub(super) fn lose(&mut self, is_lost: impl Fn(&Given) -> bool) -> Vec<Given> {
        let dropped: Vec<Given> = self.unsettled.extract_if(.., |given| is_lost(given)).collect();
        self.ended(&dropped);
        dropped
    }

    fn ended(&mut self, ended: &[Given]) {
        self.set_aside -= ended.iter().filter(|given| given.is_set_aside).count();
        if self.unsettled.is_empty() {
            self.since = None;
        } else {
            self.since.get_or_insert_with(Instant::now);
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Refused {
    verdicts: VecDeque<Given>,
    /// Messages that the store refuses to set aside.
    left: QuickSet<RowKey>,
    /// Messages that it refused to set aside before, and that may be set aside again.
    left_before: QuickSet<RowKey>,
    /// When the verdict that was refused first is tried again.
    retry_at: Option<Instant>,
    /// Number of tries since the store took one of them.
    tries: u32,
}

impl Refused {
    pub(super) fn put(&mut self, given: Given) {
        self.verdicts.push_back(given);
    }

    /// Returns whether the store refused to set it aside before.
    pub(super) fn leave(&mut self, row: RowKey) -> bool {
        self.left.insert(row);
        self.left_before.remove(&row)
    }

    /// A fetch has returned the message as due, so it need not be set aside.
    pub(super) fn is_due(&mut self, row: RowKey) {
        self.left.remove(&row);
        self.left_before.remove(&row);
    }

    /// Whether the store refuses to set the message aside.
    pub(super) fn leaves(&self, row: RowKey) -> bool {
        self.left.contains(&row)
    }

    /// Whether a refused verdict closes this lane.
    pub(super) fn closes(&self, key: Key) -> bool {
        self.verdicts.iter().any(|given| given.closes == Some(key))
    }

    pub(super) fn rows(&self) -> impl Iterator<Item = RowKey> {
        self.verdicts.iter().map(|given| given.settlement.key())
    }

    /// Number of verdicts that are kept.
    pub(super) fn kept(&self) -> usize {
        self.verdicts.len()
    }

    /// Number of messages concerned: of kept verdicts, and those that cannot be set aside.
    pub(super) fn count(&self) -> usize {
        self.verdicts.len() + self.left.len()
    }

    /// Counts one more try, and returns the number of tries.
    pub(super) fn count_try(&mut self) -> u32 {
        self.tries = self.tries.saturating_add(1);
        self.tries
    }

    pub(super) fn retry_at(&self) -> Option<Instant> {
        self.retry_at.filter(|_| self.count() > 0)
    }

    pub(super) fn set_retry_at(&mut self, at: Instant) {
        self.retry_at = Some(at);
    }

    /// Removes and returns the verdict to try again. Messages that could not be set aside may be set aside again.
    pub(super) fn next(&mut self) -> Option<Given> {
        self.left_before.extend(self.left.drain());
        self.retry_at = None;
        self.verdicts.pop_front()
    }

    /// Removes and returns all verdicts: the store took one of them, so it may take the others as well.
    pub(super) fn take_all(&mut self) -> VecDeque<Given> {
        mem::take(self).verdicts
    }

    /// Removes and returns the verdicts for which `is_taken` holds. Messages that could not be set aside may be set aside again.
    pub(super) fn take_if(&mut self, is_taken: impl Fn(&Given) -> bool) -> Vec<Given> {
        self.left.clear();
        self.left_before.clear();
        let all = mem::take(&mut self.verdicts).into_iter();
        let (taken, kept): (Vec<Given>, Vec<Given>) = all.partition(|given| is_taken(given));
        self.verdicts = kept.into();
        taken
    }
}
