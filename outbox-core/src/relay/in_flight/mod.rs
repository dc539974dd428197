//! Messages in flight: fetched and not settled. A message is *out* from [`InFlight::next`] until
//! the engine reports its outcome.
//!
//! Invariants:
//!
//! - A row is in flight from its fetch until the store has recorded its verdict or release, or
//!   until a lost lease resets the messages in memory.
//! - A lane is the queue of an aggregate. A verdict that blocks the aggregate closes its lane until
//!   the verdict is settled or dropped. Fetches that began before may still return rows of the
//!   aggregate, which must wait too.
//!
//! [`lanes`] selects the next message; [`verdicts`] keeps unrecorded verdicts.

mod lanes;
#[cfg(test)]
mod tests;
mod verdicts;

use std::time::Duration;

use tokio::time::Instant;

use super::DeadMessage;
use crate::message::Aggregate;
use crate::quick_map::{QuickMap, QuickSet};
use crate::store::{FetchedRow, Lease, RowKey, Settlement, Verdict};

use lanes::{Key, Lanes};
use verdicts::{Refused, Verdicts};

pub(super) use lanes::Queued;
pub(super) use verdicts::Given;

#[derive(Debug, Default)]
pub(super) struct InFlight {
    rows: QuickSet<RowKey>,
    lanes: Lanes,
    verdicts: Verdicts,
    refused: Refused,
    closed: QuickMap<Key, Closed>,
    fetches: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Alone {
    pub(super) row_id: i64,
    pub(super) again: bool,
}

#[derive(Debug, Default)]
struct Closed {
    verdicts: usize,
    /// The last fetch that began before the blocking verdict was settled, and so may return rows of
    /// the aggregate.
    last_fetch: u64,
}

impl Closed {
    fn is_for(&self, fetch: u64) -> bool {
        self.verdicts > 0 || self.last_fetch >= fetch
    }
}

impl InFlight {
    pub(super) fn begin_fetch(&mut self) -> (u64, Vec<RowKey>) {
        self.fetches += 1;
        let fetch = self.fetches;
        self.closed.retain(|_, closed| closed.is_for(fetch));
        let mut rows: Vec<RowKey> = self.rows.iter().copied().collect();
        rows.sort_unstable();
        (fetch, rows)
    }

    /// If the aggregate was blocked during the fetch, the row is set aside as waiting. Returns
    /// false if the store rejects the blocking verdict: the row is then not changed.
    pub(super) fn accept(&mut self, fetch: u64, row: FetchedRow) -> bool {
        let is_closed = || {
            let closed = self.closed.get(&Key::of(&row));
            closed.is_some_and(|closed| closed.is_for(fetch))
        };
        if !self.closed.is_empty() && is_closed() {
            let waits = row.with_verdict(Verdict::Waits);
            return !self.refused.closes(Key::of(&row)) && self.set_aside(vec![waits]) > 0;
        }
        self.refused.is_due(row.key());
        self.rows.insert(row.key());
        self.lanes.push(row);
        true
    }

    /// Messages set aside are not in flight. If a fetch excluded them as in flight, it would return
    /// later messages of their aggregates as due. Returns the number set aside.
    pub(super) fn set_aside(&mut self, mut waits: Vec<Settlement>) -> usize {
        waits.retain(|settlement| !self.refused.leaves(settlement.key()));
        let count = waits.len();
        for settlement in waits {
            self.verdicts.give(Given {
                is_set_aside: true,
                ..Given::new(settlement)
            });
        }
        count
    }

    pub(super) fn is_setting_aside(&self) -> bool {
        self.verdicts.is_setting_aside()
    }
}

impl InFlight {
    pub(super) fn next(&mut self) -> Option<Queued> {
        let next = self.lanes.next()?;
        self.check_out(&next);
        Some(next)
    }

    pub(super) fn published(&mut self, out: Queued, keep: bool, is_duplicate: bool) {
        self.check_out(&out);
        self.verdicts.give(Given {
            is_duplicate,
            ..Given::on(&out.row, Verdict::Published { keep })
        });
        self.lanes.proceed(out.key);
    }

    pub(super) fn retry(&mut self, out: Queued) {
        self.check_out(&out);
        self.lanes.put_back(out);
    }

    pub(super) fn give_back(&mut self, out: Queued) {
        self.check_out(&out);
        self.rows.remove(&out.row.key());
        for row in self.lanes.close(out.key) {
            self.rows.remove(&row.key());
        }
    }

    pub(super) fn block(&mut self, out: Queued, verdict: Verdict) {
        self.close(out, verdict, None);
    }

    pub(super) fn dead_letter(&mut self, out: Queued, verdict: Verdict, told: DeadMessage) {
        if told.halts {
            self.close(out, verdict, Some(told));
            return;
        }
        self.check_out(&out);
        self.verdicts.give(Given {
            dead: Some(told),
            ..Given::on(&out.row, verdict)
        });
        self.lanes.proceed(out.key);
    }

    fn close(&mut self, out: Queued, verdict: Verdict, dead: Option<DeadMessage>) {
        self.check_out(&out);
        self.give_closing(out.key, &out.row, verdict, dead);
        for row in self.lanes.close(out.key) {
            self.give_waiting(out.key, &row);
        }
    }

    fn give_closing(&mut self, key: Key, row: &FetchedRow, verdict: Verdict, dead: Option<DeadMessage>) {
        self.closed.entry(key).or_default().verdicts += 1;
        self.verdicts.give(Given {
            closes: Some(key),
            dead,
            ..Given::on(row, verdict)
        });
    }

    /// If the longest lane (queue of an aggregate) has more than `max` messages, all but `keep` of
    /// them leave memory and wait in the store.
    pub(super) fn shorten(&mut self, max: usize, keep: usize) -> bool {
        let Some(key) = self.lanes.longest(max) else {
            return false;
        };
        let mut rest = self.lanes.shorten(key, keep).into_iter();
        let Some(first) = rest.next() else { return false };
        let due_at_once = Verdict::Blocked {
            delay: Duration::ZERO,
            error: None,
            attempt: false,
        };
        self.give_closing(key, &first, due_at_once, None);
        for row in rest {
            self.give_waiting(key, &row);
        }
        true
    }

    /// The aggregate stays blocked until this verdict is settled too, because an earlier settlement
    /// may contain only the verdict that blocked the aggregate.
    fn give_waiting(&mut self, key: Key, row: &FetchedRow) {
        self.closed.entry(key).or_default().verdicts += 1;
        self.verdicts.give(Given {
            closes: Some(key),
            waits_in: Some(key),
            ..Given::on(row, Verdict::Waits)
        });
    }

    fn check_out(&self, out: &Queued) {
        debug_assert!(
            self.rows.contains(&out.row.key()),
            "row {} is out and not in flight",
            out.row.row_id
        );
    }
}

impl InFlight {
    pub(super) fn drop_partition(&mut self, partition: u16) {
        for row in self.lanes.take_partition(partition) {
            self.rows.remove(&row.key());
        }
        for given in self
            .refused
            .take_if(|given| given.settlement.partition == partition)
        {
            self.end(&given);
        }
    }

    /// Drops all messages without a verdict, even sent messages, and all verdicts under the leases
    /// of the `lost` partitions.
    pub(super) fn forget(&mut self, lost: &[u16]) {
        self.lanes = Lanes::default();
        let is_lost = |given: &Given| !given.is_published() && lost.contains(&given.settlement.partition);
        let mut dropped = self.verdicts.lose(is_lost);
        dropped.append(&mut self.refused.take_if(is_lost));
        for given in dropped {
            self.end(&given);
        }
        // A message that is only set aside is not in flight; its aggregate stays blocked.
        let kept = self.verdicts.not_taken();
        let kept = kept.filter(|given| given.settlement.verdict != Verdict::Waits);
        self.rows = kept.map(|given| given.settlement.key()).collect();
        self.rows.extend(self.refused.rows());
    }

    /// Drops all messages and verdicts: the next owners of the partitions republish unsettled
    /// messages.
    pub(super) fn let_go(&mut self) {
        *self = Self {
            fetches: self.fetches,
            ..Self::default()
        };
    }
}

impl InFlight {
    pub(super) fn begin_settle(&mut self, leases: Vec<Lease>) -> Vec<Settlement> {
        self.verdicts.begin_settle(leases)
    }

    pub(super) fn settled(&mut self) -> Vec<Given> {
        let is_retry = self.verdicts.is_retry();
        let settled = self.verdicts.settled();
        settled.iter().for_each(|given| self.end(given));
        if is_retry {
            self.verdicts.take_back(self.refused.take_all());
        }
        settled
    }

    /// Call this after a settlement with unknown outcome. The next settlement repeats the confirmed
    /// messages, and the verdicts of partitions whose lease is in `owned`.
    pub(super) fn not_settled(&mut self, owned: &[Lease]) {
        let is_retry = self.verdicts.is_retry();
        for given in self.verdicts.not_settled(owned) {
            self.end(&given);
        }
        self.go_on_retrying(is_retry);
    }

    fn go_on_retrying(&mut self, was_retry: bool) {
        if was_retry {
            self.refused.set_retry_at(Instant::now());
        }
    }

    /// Call this after the store rejected a settlement; the next settlement is smaller. A verdict
    /// that was rejected alone is retried after `pause(tries)`. If the store has accepted nothing
    /// (`nothing_is_taken`), the verdict goes last instead.
    pub(super) fn refused(
        &mut self,
        owned: &[Lease],
        nothing_is_taken: bool,
        pause: impl FnOnce(u32) -> Duration,
    ) -> Option<Alone> {
        let is_retry = self.verdicts.is_retry();
        let Some(alone) = self.verdicts.refused() else {
            self.not_settled(owned);
            return None;
        };
        let leases = alone.leases;
        let given = alone.verdicts.into_iter().next()?;
        let row_id = given.settlement.row_id;
        let partition = given.settlement.partition;
        let lease = leases.iter().find(|lease| lease.partition == partition);
        let lives = given.is_published() || lease.is_some_and(|lease| owned.contains(lease));
        if !lives {
            self.end(&given);
            self.go_on_retrying(is_retry);
            return None;
        }
        if nothing_is_taken && !is_retry {
            self.verdicts.put_last(given);
            return None;
        }
        if is_retry || self.refused.retry_at().is_none() {
            let pause = pause(self.refused.count_try());
            self.refused.set_retry_at(Instant::now() + pause);
        }
        let mut again = is_retry;
        if given.settlement.verdict == Verdict::Waits {
            again |= self.leave(&given);
        } else {
            self.refused.put(given);
        }
        Some(Alone { row_id, again })
    }

    fn leave(&mut self, given: &Given) -> bool {
        if given.waits_in.is_some() {
            self.end(given);
        }
        self.refused.leave(given.settlement.key())
    }

    pub(super) fn is_retrying(&self) -> bool {
        self.verdicts.is_retry()
    }

    pub(super) fn retry_at(&self) -> Option<Instant> {
        self.refused.retry_at()
    }

    pub(super) fn begin_retry(&mut self, leases: Vec<Lease>) -> Option<Vec<Settlement>> {
        let given = self.refused.next()?;
        Some(self.verdicts.begin_retry(given, leases))
    }

    pub(super) fn refused_count(&self) -> usize {
        self.refused.count()
    }

    /// A message that was only set aside was not in flight. Its row stays in `rows`, because a
    /// later fetch may have returned the row as due.
    fn end(&mut self, given: &Given) {
        if !given.is_set_aside {
            self.rows.remove(&given.settlement.key());
        }
        if let Some(closed) = given.closes.and_then(|key| self.closed.get_mut(&key)) {
            closed.verdicts -= 1;
            closed.last_fetch = self.fetches;
        }
    }

    pub(super) fn unsettled(&self) -> usize {
        self.verdicts.unsettled()
    }

    pub(super) fn unsettled_since(&self) -> Option<Instant> {
        self.verdicts.since()
    }

    pub(super) fn not_taken(&self) -> usize {
        self.verdicts.not_taken_count()
    }
}

impl InFlight {
    pub(super) fn is_empty(&self) -> bool {
        self.rows.len() == self.refused.kept() && self.verdicts.unsettled() == 0
    }

    pub(super) fn holds(&self, partition: u16) -> bool {
        let mut verdicts = self.verdicts.not_taken();
        self.lanes.has_out(partition) || verdicts.any(|given| given.settlement.partition == partition)
    }

    pub(super) fn is_ready(&self) -> bool {
        self.lanes.is_ready()
    }

    pub(super) fn queued(&self) -> usize {
        self.lanes.queued()
    }

    pub(super) fn bytes(&self) -> usize {
        self.lanes.bytes()
    }

    pub(super) fn crowded(&self, min: usize) -> Vec<Aggregate> {
        self.lanes.crowded(min)
    }
}
