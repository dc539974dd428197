//! Verdicts that the store has not recorded yet.
//!
//! Invariants:
//!
//! * While its lease lasts, an unrecorded verdict is kept and goes first. After the lease, another
//!   relay may have settled the message differently. A confirmed publish is a fact, so its verdict
//!   outlives the lease.
//! * After a rejection, settlements are halved until the rejected verdict is alone. In [`Refused`]
//!   the rejected verdict blocks neither other verdicts nor the release of its partition. Its
//!   aggregate stays blocked.
//! * A message stays pending while the store rejects the verdict that sets it aside.

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
    since: Option<Instant>,
    settling: Settling,
    set_aside: usize,
    at_once: Option<usize>,
}

#[derive(Debug)]
pub(in crate::relay) struct Given {
    pub(in crate::relay) settlement: Settlement,
    pub(super) closes: Option<Key>,
    pub(in crate::relay) dead: Option<DeadMessage>,
    pub(in crate::relay) is_duplicate: bool,
    pub(super) is_set_aside: bool,
    pub(super) waits_in: Option<Key>,
}

#[derive(Debug, Default)]
pub(super) struct Settling {
    pub(super) verdicts: Vec<Given>,
    pub(super) leases: Vec<Lease>,
    is_retry: bool,
}

impl Settling {
    fn lease_of(&self, partition: u16) -> Option<Lease> {
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

    pub(super) fn is_retry(&self) -> bool {
        self.settling.is_retry
    }

    pub(super) fn is_setting_aside(&self) -> bool {
        self.set_aside > 0
    }

    pub(super) fn unsettled(&self) -> usize {
        self.unsettled.len()
    }

    pub(super) fn since(&self) -> Option<Instant> {
        self.since
    }

    pub(super) fn not_taken(&self) -> impl Iterator<Item = &Given> {
        self.unsettled.iter().chain(&self.settling.verdicts)
    }

    pub(super) fn not_taken_count(&self) -> usize {
        self.unsettled.len() + self.settling.verdicts.len()
    }

    pub(super) fn begin_settle(&mut self, leases: Vec<Lease>) -> Vec<Settlement> {
        let at_once = self.at_once.map_or(usize::MAX, |at_once| at_once.max(1));
        let rest = self.unsettled.split_off(at_once.min(self.unsettled.len()));
        let verdicts = mem::replace(&mut self.unsettled, rest);
        self.since = (!self.unsettled.is_empty()).then(Instant::now);
        self.send(verdicts, leases, false)
    }

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

    pub(super) fn settled(&mut self) -> Vec<Given> {
        let settled = mem::take(&mut self.settling);
        self.ended(&settled.verdicts);
        if !settled.is_retry {
            let more = self.at_once.map(|at_once| at_once.saturating_mul(2));
            self.at_once = more.filter(|at_once| *at_once < self.unsettled.len());
        }
        settled.verdicts
    }

    /// Returns the settlement if it had one verdict. The next settlement stays small, because
    /// rejected verdicts are often adjacent.
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

    pub(super) fn put_last(&mut self, given: Given) {
        self.set_aside += usize::from(given.is_set_aside);
        self.unsettled.push(given);
        self.ended(&[]);
    }

    pub(super) fn take_back(&mut self, verdicts: impl IntoIterator<Item = Given>) {
        self.unsettled.extend(verdicts);
        self.ended(&[]);
    }

    /// As `InFlight::not_settled`. Returns the dropped verdicts.
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

    /// Drops unsettled verdicts of lost leases. Verdicts of the running settlement are dropped only
    /// after it has failed.
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
    left: QuickSet<RowKey>,
    left_before: QuickSet<RowKey>,
    retry_at: Option<Instant>,
    tries: u32,
}

impl Refused {
    pub(super) fn put(&mut self, given: Given) {
        self.verdicts.push_back(given);
    }

    pub(super) fn leave(&mut self, row: RowKey) -> bool {
        self.left.insert(row);
        self.left_before.remove(&row)
    }

    pub(super) fn is_due(&mut self, row: RowKey) {
        self.left.remove(&row);
        self.left_before.remove(&row);
    }

    pub(super) fn leaves(&self, row: RowKey) -> bool {
        self.left.contains(&row)
    }

    pub(super) fn closes(&self, key: Key) -> bool {
        self.verdicts.iter().any(|given| given.closes == Some(key))
    }

    pub(super) fn rows(&self) -> impl Iterator<Item = RowKey> {
        self.verdicts.iter().map(|given| given.settlement.key())
    }

    pub(super) fn kept(&self) -> usize {
        self.verdicts.len()
    }

    pub(super) fn count(&self) -> usize {
        self.verdicts.len() + self.left.len()
    }

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

    pub(super) fn next(&mut self) -> Option<Given> {
        self.left_before.extend(self.left.drain());
        self.retry_at = None;
        self.verdicts.pop_front()
    }

    /// Returns all rejected verdicts, to settle them again after the store has accepted one of
    /// them.
    pub(super) fn take_all(&mut self) -> VecDeque<Given> {
        mem::take(self).verdicts
    }

    pub(super) fn take_if(&mut self, is_taken: impl Fn(&Given) -> bool) -> Vec<Given> {
        self.left.clear();
        self.left_before.clear();
        let all = mem::take(&mut self.verdicts).into_iter();
        let (taken, kept): (Vec<Given>, Vec<Given>) = all.partition(|given| is_taken(given));
        self.verdicts = kept.into();
        taken
    }
}
