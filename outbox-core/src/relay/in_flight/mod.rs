//! Messages in flight: fetched and not settled yet, with their lanes and the verdicts on them. A message is *out* from [`InFlight::next`] until the engine
//! says what became of it.
//!
//! Invariants:
//!
//! - A row is in flight from the fetch that returned it until the store took its verdict, until it is given back, or until everything is forgotten. So every
//!   row that is queued in a lane or out is in flight.
//! - A lane that a verdict closed stays closed until every fetch has ended that could have missed the end of that verdict, settled or dropped. Rows of the lane
//!   that such a fetch returns must wait as well.
//!
//! [`lanes`] decides which message is next, [`verdicts`] how long a verdict lives, and what becomes of a verdict that the store does not take. Not here:
//! calls of the store, see `engine`.

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
use verdicts::{Given, Refused, Verdicts};

pub(super) use lanes::Queued;
pub(super) use verdicts::Settling;

#[derive(Debug, Default)]
pub(super) struct InFlight {
    rows: QuickSet<RowKey>,
    lanes: Lanes,
    verdicts: Verdicts,
    refused: Refused,
    /// Lanes that verdicts closed.
    closed: QuickMap<Key, Closed>,
    /// Number of the last fetch that was started.
    fetches: u64,
}

/// A verdict that the store refused, and no other with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Alone {
    pub(super) row_id: i64,
    /// The store has refused it before.
    pub(super) again: bool,
}

/// Why a lane is closed.
#[derive(Debug, Default)]
struct Closed {
    /// Number of verdicts that close the lane and that the store did not take yet.
    verdicts: usize,
    /// The last fetch that may have missed the end of one of them.
    last_fetch: u64,
}

impl Closed {
    /// Whether the lane is closed for the rows that this fetch returned.
    fn is_for(&self, fetch: u64) -> bool {
        self.verdicts > 0 || self.last_fetch >= fetch
    }
}

/// The results of fetches.
impl InFlight {
    /// A fetch begins; returns its number and the rows that it is to leave out.
    pub(super) fn begin_fetch(&mut self) -> (u64, Vec<RowKey>) {
        self.fetches += 1;
        let fetch = self.fetches;
        self.closed.retain(|_, closed| closed.is_for(fetch));
        let mut rows: Vec<RowKey> = self.rows.iter().copied().collect();
        rows.sort_unstable();
        (fetch, rows)
    }

    /// Takes a row that a fetch returned as due. If its lane was closed meanwhile, the row waits. Returns false if the wait cannot be recorded, because the store
    /// refuses the verdict that closed the lane: then the row stays as it is in the store.
    pub(super) fn accept(&mut self, fetch: u64, row: FetchedRow) -> bool {
        // Most of the time no lane is closed, and the key need not be computed.
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

    /// Sets aside the messages that a fetch reported as having to wait. They are not in flight: a fetch that left them out would take their successors for due.
    /// Returns the number of messages set aside, without those that the store refuses to set aside.
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

    /// Whether messages are being set aside. Until the store has recorded that, a scan would only meet them again.
    pub(super) fn is_setting_aside(&self) -> bool {
        self.verdicts.is_setting_aside()
    }
}

/// Messages that go out and come back. After each of these methods but [`next`](Self::next) the message is no longer out.
impl InFlight {
    /// The next message that may go out. Its lane waits until the message is no longer out.
    pub(super) fn next(&mut self) -> Option<Queued> {
        let next = self.lanes.next()?;
        self.check_out(&next);
        Some(next)
    }

    /// The broker confirmed the message. `is_duplicate`: the broker had it from an earlier attempt.
    pub(super) fn published(&mut self, out: Queued, keep: bool, is_duplicate: bool) {
        self.check_out(&out);
        self.verdicts.give(Given {
            is_duplicate,
            ..Given::on(&out.row, Verdict::Published { keep })
        });
        self.lanes.proceed(out.key);
    }

    /// The message is to be sent again, before any other of its lane.
    pub(super) fn retry(&mut self, out: Queued) {
        self.check_out(&out);
        self.lanes.put_back(out);
    }

    /// The message and those behind it in its lane go back to the store without a verdict.
    pub(super) fn give_back(&mut self, out: Queued) {
        self.check_out(&out);
        self.rows.remove(&out.row.key());
        for row in self.lanes.close(out.key) {
            self.rows.remove(&row.key());
        }
    }

    /// The verdict makes the message wait, and those behind it in its lane as well.
    pub(super) fn block(&mut self, out: Queued, verdict: Verdict) {
        self.close(out, verdict, None);
    }

    /// The verdict makes the message a dead letter. The application is `told` of it once it is recorded. If it halts its aggregate, the messages behind it wait.
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

    /// If more than `max` messages are queued in a lane, all but the first `keep` of the longest lane go back to the store, to be fetched again behind those that
    /// stay. Returns whether any did.
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

    /// Makes a row wait behind the one that closed its lane. The lane stays closed until this verdict is settled too: a settlement may have taken the verdict
    /// that closed the lane, and not yet this one.
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

/// Messages that go back to the store without a verdict.
impl InFlight {
    /// Queued messages of this partition go back without a verdict, and so do messages whose verdicts the store refuses. Messages that are out stay out.
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

    /// All messages without a verdict go back, those that are out as well. The leases of the `lost` partitions are lost, and the verdicts that were given under
    /// them.
    pub(super) fn forget(&mut self, lost: &[u16]) {
        self.lanes = Lanes::default();
        let is_lost = |given: &Given| !given.is_published() && lost.contains(&given.settlement.partition);
        let mut dropped = self.verdicts.lose(is_lost);
        dropped.append(&mut self.refused.take_if(is_lost));
        for given in dropped {
            self.end(&given);
        }
        // A message that is only set aside is not in flight. That a verdict closed its lane is not forgotten.
        let kept = self.verdicts.not_taken();
        let kept = kept.filter(|given| given.settlement.verdict != Verdict::Waits);
        self.rows = kept.map(|given| given.settlement.key()).collect();
        self.rows.extend(self.refused.rows());
    }

    /// All messages go back, and all verdicts are dropped: the partitions are handed over, and their next relay publishes again what is not settled.
    pub(super) fn let_go(&mut self) {
        *self = Self {
            fetches: self.fetches,
            ..Self::default()
        };
    }
}

/// How verdicts reach the store.
impl InFlight {
    /// All verdicts go to the store, with these leases.
    pub(super) fn begin_settle(&mut self, leases: Vec<Lease>) -> Vec<Settlement> {
        self.verdicts.begin_settle(leases)
    }

    /// The store took the verdicts that were on their way, or refused them for good.
    pub(super) fn settled(&mut self) -> Settling {
        let is_retry = self.verdicts.is_retry();
        let settled = self.verdicts.settled();
        settled.verdicts.iter().for_each(|given| self.end(given));
        if is_retry {
            self.verdicts.take_back(self.refused.take_all());
        }
        settled
    }

    /// The store may not have taken the verdicts that were on their way. Confirmations, and verdicts whose leases are still `owned`, go first next time.
    pub(super) fn not_settled(&mut self, owned: &[Lease]) {
        let is_retry = self.verdicts.is_retry();
        for given in self.verdicts.not_settled(owned) {
            self.end(&given);
        }
        self.go_on_retrying(is_retry);
    }

    /// A retry whose outcome is unknown is followed by the next one at once.
    fn go_on_retrying(&mut self, was_retry: bool) {
        if was_retry {
            self.refused.set_retry_at(Instant::now());
        }
    }

    /// The store refused one of the verdicts that were on their way, and recorded none. The next settlement has fewer. A verdict that was refused alone is kept
    /// apart and tried again after `pause` of the number of tries, or only goes last if `nothing_is_taken`. Returns which verdict was refused alone and is still
    /// valid.
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

    /// A message that the store refuses to set aside goes back to it. Fetches that left it out may take its successors for due. Returns whether the store refused
    /// that before.
    fn leave(&mut self, given: &Given) -> bool {
        if given.waits_in.is_some() {
            self.end(given);
        }
        self.refused.leave(given.settlement.key())
    }

    /// Whether a verdict that the store had refused is on its way.
    pub(super) fn is_retrying(&self) -> bool {
        self.verdicts.is_retry()
    }

    /// When a verdict that the store has refused is tried again.
    pub(super) fn retry_at(&self) -> Option<Instant> {
        self.refused.retry_at()
    }

    /// A verdict that the store has refused goes to it once more, with these leases. `None`: there is no such verdict.
    pub(super) fn begin_retry(&mut self, leases: Vec<Lease>) -> Option<Vec<Settlement>> {
        let given = self.refused.next()?;
        Some(self.verdicts.begin_retry(given, leases))
    }

    /// Number of messages whose verdicts the store refuses.
    pub(super) fn refused_count(&self) -> usize {
        self.refused.count()
    }

    /// A verdict is settled or dropped, so its message is no longer in flight. One that was only set aside was not in flight: if its row is now, a fetch has
    /// returned it as due since.
    fn end(&mut self, given: &Given) {
        if !given.is_set_aside {
            self.rows.remove(&given.settlement.key());
        }
        if let Some(closed) = given.closes.and_then(|key| self.closed.get_mut(&key)) {
            closed.verdicts -= 1;
            closed.last_fetch = self.fetches;
        }
    }

    /// Number of verdicts that wait to be settled.
    pub(super) fn unsettled(&self) -> usize {
        self.verdicts.unsettled()
    }

    /// When the oldest of them was given.
    pub(super) fn unsettled_since(&self) -> Option<Instant> {
        self.verdicts.since()
    }

    /// Number of verdicts that the store did not take yet, those on their way included, without those that it refuses.
    pub(super) fn not_taken(&self) -> usize {
        self.verdicts.not_taken_count()
    }
}

/// Counts.
impl InFlight {
    /// Whether nothing is in flight but messages whose verdicts the store refuses.
    pub(super) fn is_empty(&self) -> bool {
        self.rows.len() == self.refused.kept() && self.verdicts.unsettled() == 0
    }

    /// Whether a message of this partition is out, or its verdict is to be settled.
    pub(super) fn holds(&self, partition: u16) -> bool {
        let mut verdicts = self.verdicts.not_taken();
        self.lanes.has_out(partition) || verdicts.any(|given| given.settlement.partition == partition)
    }

    /// Whether a message may go out now.
    pub(super) fn is_ready(&self) -> bool {
        self.lanes.is_ready()
    }

    /// Number of messages that are queued.
    pub(super) fn queued(&self) -> usize {
        self.lanes.queued()
    }

    /// Bytes of the payloads of queued messages.
    pub(super) fn bytes(&self) -> usize {
        self.lanes.bytes()
    }

    /// Aggregates of which at least `min` messages are queued.
    pub(super) fn crowded(&self, min: usize) -> Vec<Aggregate> {
        self.lanes.crowded(min)
    }
}
