//! Messages in flight: fetched and not settled yet.
//!
//! Invariants: a row is in flight from the fetch that returned it until the store took its verdict, or until everything is forgotten. A verdict that the
//! store did not take stays and goes first. A lane that a verdict closed stays closed until every fetch that could have missed the verdict is over: what
//! such a fetch returns of it must wait as well. Absent here: I/O.

use std::collections::{HashMap, HashSet};
use std::mem;

use tokio::time::Instant;

use super::DeadMessage;
use super::schedule::Key;
use crate::store::{FetchedRow, Settlement, Verdict};

#[derive(Debug, Default)]
pub(super) struct InFlight {
    /// Row ids of the rows in flight.
    rows: HashSet<i64>,
    unsettled: Unsettled,
    /// When the oldest of the unsettled verdicts was given.
    since: Option<Instant>,
    /// Lanes that a verdict closed, and the last fetch that may not have seen it; none while it is unsettled.
    closed: HashMap<Key, Option<u64>>,
    /// Number of the last fetch that was started.
    fetches: u64,
    /// What is on its way to the store sets something aside.
    setting_aside: bool,
}

/// Verdicts on their way to the store, and what is to happen once they are there.
#[derive(Debug, Default)]
pub(super) struct Unsettled {
    pub(super) settlements: Vec<Settlement>,
    pub(super) closed: Vec<Key>,
    pub(super) dead: Vec<DeadMessage>,
    /// Something that a fetch returned is to wait.
    sets_aside: bool,
}

impl InFlight {
    /// A fetch begins; returns its number and the rows that it is to leave out.
    pub(super) fn begin_fetch(&mut self) -> (u64, Vec<i64>) {
        self.fetches += 1;
        let fetch = self.fetches;
        self.closed
            .retain(|_, seen| seen.is_none_or(|last| last >= fetch));
        let mut rows: Vec<i64> = self.rows.iter().copied().collect();
        rows.sort_unstable();
        (fetch, rows)
    }

    /// Takes a row that a fetch returned. False if it may not go out, because its lane was closed meanwhile: then it waits.
    pub(super) fn take(&mut self, fetch: u64, row: &FetchedRow) -> bool {
        let is_closed = |seen: &Option<u64>| seen.is_none_or(|last| last >= fetch);
        let closed = !self.closed.is_empty() && self.closed.get(&Key::of(row)).is_some_and(is_closed);
        if closed {
            self.set_aside(vec![Settlement {
                row_id: row.row_id,
                partition: row.partition,
                waited: row.waited,
                verdict: Verdict::Waits,
            }]);
        } else {
            self.rows.insert(row.row_id);
        }
        !closed
    }

    /// Gives a verdict on a row in flight.
    pub(super) fn settle(&mut self, row: &FetchedRow, verdict: Verdict) {
        self.rows.insert(row.row_id);
        self.add(Settlement {
            row_id: row.row_id,
            partition: row.partition,
            waited: row.waited,
            verdict,
        });
    }

    /// Sets aside what a fetch said has to wait. It is not in flight: a fetch that left it out would take its successors for due.
    pub(super) fn set_aside(&mut self, waits: Vec<Settlement>) {
        self.unsettled.sets_aside |= !waits.is_empty();
        waits.into_iter().for_each(|settlement| self.add(settlement));
    }

    /// Whether something is being set aside; until it is, a scan would only meet it again.
    pub(super) fn is_setting_aside(&self) -> bool {
        self.setting_aside || self.unsettled.sets_aside
    }

    fn add(&mut self, settlement: Settlement) {
        self.since.get_or_insert_with(Instant::now);
        self.unsettled.settlements.push(settlement);
    }

    /// A verdict closes this lane.
    pub(super) fn close(&mut self, key: Key) {
        self.closed.insert(key, None);
        self.unsettled.closed.push(key);
    }

    /// To be told once it is settled.
    pub(super) fn dead(&mut self, message: DeadMessage) {
        self.unsettled.dead.push(message);
    }

    /// A row goes back to the store without a verdict.
    pub(super) fn drop_row(&mut self, row_id: i64) {
        self.rows.remove(&row_id);
    }

    /// Verdicts to be settled.
    pub(super) fn unsettled(&self) -> usize {
        self.unsettled.settlements.len()
    }

    /// When the oldest unsettled verdict was given.
    pub(super) fn since(&self) -> Option<Instant> {
        self.since
    }

    /// Takes all verdicts, to settle them.
    pub(super) fn begin_settle(&mut self) -> Unsettled {
        self.since = None;
        self.setting_aside = self.unsettled.sets_aside;
        mem::take(&mut self.unsettled)
    }

    /// The store took these verdicts.
    pub(super) fn settled(&mut self, settled: &Unsettled) {
        self.setting_aside = false;
        for settlement in &settled.settlements {
            self.rows.remove(&settlement.row_id);
        }
        for key in &settled.closed {
            // Closed again meanwhile, by a verdict that is still here?
            if !self.unsettled.closed.contains(key) {
                self.closed.insert(*key, Some(self.fetches));
            }
        }
    }

    /// The store did not take these verdicts: they go first next time.
    pub(super) fn not_settled(&mut self, mut unsettled: Unsettled) {
        unsettled.settlements.append(&mut self.unsettled.settlements);
        unsettled.closed.append(&mut self.unsettled.closed);
        unsettled.dead.append(&mut self.unsettled.dead);
        unsettled.sets_aside |= self.unsettled.sets_aside;
        self.setting_aside = false;
        self.unsettled = unsettled;
        self.since.get_or_insert_with(Instant::now);
    }

    /// Whether anything of this partition awaits its settlement.
    pub(super) fn has_unsettled(&self, partition: u16) -> bool {
        self.unsettled
            .settlements
            .iter()
            .any(|settlement| settlement.partition == partition)
    }

    /// Everything without a verdict goes back to the store. `settling` is on its way there.
    pub(super) fn forget(&mut self, settling: &[Settlement]) {
        let kept = self.unsettled.settlements.iter().chain(settling);
        // What is only set aside is not in flight; if a verdict closed its lane, that is not forgotten.
        let kept = kept.filter(|settlement| settlement.verdict != Verdict::Waits);
        self.rows = kept.map(|settlement| settlement.row_id).collect();
    }

    /// Everything goes back to the store, verdicts and all: the partitions are handed over, and whoever takes them sends again what is not settled.
    pub(super) fn let_go(&mut self) {
        *self = Self {
            fetches: self.fetches,
            ..Self::default()
        };
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.unsettled.settlements.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::message::Aggregate;

    fn row(row_id: i64) -> FetchedRow {
        FetchedRow {
            row_id,
            partition: 0,
            aggregate: Aggregate::new("thing", "a"),
            sequenced: true,
            attempts: 0,
            failures: 0,
            waited: false,
            age: Duration::ZERO,
            message: Err("not needed".to_owned()),
        }
    }

    #[test]
    fn a_fetch_that_began_before_a_block_was_settled_does_not_overtake_it() {
        let mut in_flight = InFlight::default();
        let (first, _) = in_flight.begin_fetch();
        assert!(in_flight.take(first, &row(1)));
        let (second, left_out) = in_flight.begin_fetch();
        assert_eq!(left_out, [1]);
        in_flight.settle(&row(1), Verdict::Waits);
        in_flight.close(Key::of(&row(1)));
        let settling = in_flight.begin_settle();
        assert!(!in_flight.take(second, &row(2)), "not settled yet");
        in_flight.settled(&settling);
        assert!(!in_flight.take(second, &row(3)), "the fetch began before");
        let (third, left_out) = in_flight.begin_fetch();
        assert!(left_out.is_empty(), "what waits is looked at again: {left_out:?}");
        assert!(in_flight.take(third, &row(2)));
    }

    #[test]
    fn what_is_set_aside_during_a_settlement_is_set_aside_until_the_next() {
        let mut in_flight = InFlight::default();
        in_flight.settle(&row(1), Verdict::Published { keep: true });
        let settling = in_flight.begin_settle();
        in_flight.set_aside(vec![Settlement {
            row_id: 2,
            partition: 0,
            waited: false,
            verdict: Verdict::Waits,
        }]);
        in_flight.settled(&settling);
        assert!(in_flight.is_setting_aside());
        let settling = in_flight.begin_settle();
        assert!(in_flight.is_setting_aside());
        in_flight.settled(&settling);
        assert!(!in_flight.is_setting_aside());
    }

    #[test]
    fn verdicts_that_were_not_taken_go_first() {
        let mut in_flight = InFlight::default();
        in_flight.settle(&row(1), Verdict::Published { keep: true });
        let settling = in_flight.begin_settle();
        in_flight.settle(&row(2), Verdict::Published { keep: true });
        in_flight.not_settled(settling);
        in_flight.forget(&[]);
        let row_ids: Vec<_> = in_flight
            .begin_settle()
            .settlements
            .iter()
            .map(|s| s.row_id)
            .collect();
        assert_eq!(row_ids, [1, 2]);
        assert_eq!(in_flight.begin_fetch().1, [1, 2]);
    }
}
