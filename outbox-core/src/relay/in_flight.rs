//! Messages in flight: fetched and not settled yet.
//!
//! Invariants: a row is in flight from the fetch that returned it until the store took its verdict, or until everything is forgotten. A verdict that the
//! store did not take stays and goes first, for as long as the lease lasts under which it was given: beyond that, others may have decided otherwise. That the
//! broker confirmed a message is a fact, which outlives leases. A lane that a verdict closed stays closed until every fetch that could have missed the verdict, or
//! that it was dropped, is over: what such a fetch returns of it must wait as well. Not here: I/O, see `engine`.

use std::collections::{HashMap, HashSet};
use std::mem;

use tokio::time::Instant;

use super::DeadMessage;
use super::schedule::Key;
use crate::store::{FetchedRow, Lease, Settlement, Verdict};

#[derive(Debug, Default)]
pub(super) struct InFlight {
    /// Row ids of the rows in flight.
    rows: HashSet<i64>,
    /// Verdicts that the store did not take yet.
    unsettled: Vec<Given>,
    /// When the oldest of them was given.
    since: Option<Instant>,
    /// Verdicts on their way to the store, and the leases that they were sent with.
    settling: (Vec<Given>, Vec<Lease>),
    /// Lanes that verdicts closed.
    closed: HashMap<Key, Closed>,
    /// Number of the last fetch that was started.
    fetches: u64,
    /// Verdicts, on their way or not, on what a fetch said has to wait.
    set_aside: usize,
}

/// A verdict, and what follows once the store has taken it.
#[derive(Debug)]
pub(super) struct Given {
    pub(super) settlement: Settlement,
    /// The lane that it closes.
    closes: Option<Key>,
    /// To be told then.
    pub(super) dead: Option<DeadMessage>,
    /// It was published, and the broker had it from an earlier attempt.
    pub(super) is_duplicate: bool,
    /// A fetch said that it has to wait.
    is_set_aside: bool,
}

/// A lane that is closed.
#[derive(Debug, Default)]
struct Closed {
    /// Verdicts that close it and that the store did not take yet.
    verdicts: usize,
    /// The last fetch that may not have seen what became of them.
    last_fetch: u64,
}

impl Closed {
    /// Whether it is closed for what this fetch returned.
    fn is_for(&self, fetch: u64) -> bool {
        self.verdicts > 0 || self.last_fetch >= fetch
    }
}

impl Given {
    fn new(settlement: Settlement) -> Self {
        Self {
            settlement,
            closes: None,
            dead: None,
            is_duplicate: false,
            is_set_aside: false,
        }
    }

    /// It says nothing but that the broker confirmed the message.
    pub(super) fn is_published(&self) -> bool {
        matches!(self.settlement.verdict, Verdict::Published { .. })
    }
}

impl InFlight {
    /// A fetch begins; returns its number and the rows that it is to leave out.
    pub(super) fn begin_fetch(&mut self) -> (u64, Vec<i64>) {
        self.fetches += 1;
        let fetch = self.fetches;
        self.closed.retain(|_, closed| closed.is_for(fetch));
        let mut rows: Vec<i64> = self.rows.iter().copied().collect();
        rows.sort_unstable();
        (fetch, rows)
    }

    /// Takes a row that a fetch returned. False if it may not go out, because its lane was closed meanwhile: then it waits.
    pub(super) fn take(&mut self, fetch: u64, row: &FetchedRow) -> bool {
        let closed = !self.closed.is_empty()
            && self
                .closed
                .get(&Key::of(row))
                .is_some_and(|closed| closed.is_for(fetch));
        if closed {
            self.set_aside(vec![settlement(row, Verdict::Waits)]);
        } else {
            self.rows.insert(row.row_id);
        }
        !closed
    }

    /// The broker confirmed a message, which `is_duplicate` if it had it from an earlier attempt.
    pub(super) fn published(&mut self, row: &FetchedRow, keep: bool, is_duplicate: bool) {
        self.rows.insert(row.row_id);
        self.add(Given {
            is_duplicate,
            ..Given::new(settlement(row, Verdict::Published { keep }))
        });
    }

    /// A message waits behind one whose verdict closes their lane.
    pub(super) fn wait(&mut self, row: &FetchedRow) {
        self.give(row, Verdict::Waits, None, None);
    }

    /// Gives a verdict that closes a lane.
    pub(super) fn close(&mut self, key: Key, row: &FetchedRow, verdict: Verdict, dead: Option<DeadMessage>) {
        self.closed.entry(key).or_default().verdicts += 1;
        self.give(row, verdict, Some(key), dead);
    }

    /// Gives the verdict that a message is a dead letter, which halts nothing.
    pub(super) fn dead_letter(&mut self, row: &FetchedRow, verdict: Verdict, dead: DeadMessage) {
        self.give(row, verdict, None, Some(dead));
    }

    fn give(&mut self, row: &FetchedRow, verdict: Verdict, closes: Option<Key>, dead: Option<DeadMessage>) {
        self.rows.insert(row.row_id);
        self.add(Given {
            closes,
            dead,
            ..Given::new(settlement(row, verdict))
        });
    }

    /// Sets aside what a fetch said has to wait. It is not in flight: a fetch that left it out would take its successors for due.
    pub(super) fn set_aside(&mut self, waits: Vec<Settlement>) {
        self.set_aside += waits.len();
        for settlement in waits {
            self.add(Given {
                is_set_aside: true,
                ..Given::new(settlement)
            });
        }
    }

    /// Whether something is being set aside; until it is, a scan would only meet it again.
    pub(super) fn is_setting_aside(&self) -> bool {
        self.set_aside > 0
    }

    fn add(&mut self, given: Given) {
        self.since.get_or_insert_with(Instant::now);
        self.unsettled.push(given);
    }

    /// A row goes back to the store without a verdict.
    pub(super) fn drop_row(&mut self, row_id: i64) {
        self.rows.remove(&row_id);
    }

    /// Verdicts to be settled.
    pub(super) fn unsettled(&self) -> usize {
        self.unsettled.len()
    }

    /// Verdicts that the store did not take yet, those on their way included.
    pub(super) fn not_taken(&self) -> usize {
        self.unsettled.len() + self.settling.0.len()
    }

    /// When the oldest unsettled verdict was given.
    pub(super) fn since(&self) -> Option<Instant> {
        self.since
    }

    /// All verdicts go to the store, with these leases.
    pub(super) fn begin_settle(&mut self, leases: Vec<Lease>) -> Vec<Settlement> {
        self.since = None;
        let given = mem::take(&mut self.unsettled);
        let settlements = given.iter().map(|given| given.settlement.clone()).collect();
        self.settling = (given, leases);
        settlements
    }

    /// The store took the verdicts that were on their way, or refused them for good. Returns them, and the leases that they were sent with.
    pub(super) fn settled(&mut self) -> (Vec<Given>, Vec<Lease>) {
        let settled = mem::take(&mut self.settling);
        settled.0.iter().for_each(|given| self.end(given));
        settled
    }

    /// The store may not have taken what was on its way: it goes first next time, as far as the leases still are the same.
    pub(super) fn not_settled(&mut self, owned: &[Lease]) {
        let (given, leases) = mem::take(&mut self.settling);
        let lives = |given: &Given| {
            let of_partition = |lease: &&Lease| lease.partition == given.settlement.partition;
            let lease = leases.iter().find(of_partition);
            given.is_published() || lease.is_some_and(|lease| owned.contains(lease))
        };
        let (mut kept, dropped): (Vec<_>, Vec<_>) = given.into_iter().partition(lives);
        dropped.iter().for_each(|given| self.end(given));
        kept.append(&mut self.unsettled);
        self.unsettled = kept;
        self.note_since();
    }

    /// Leases of these partitions are lost: what was decided under them is dropped. What is on its way is looked at when it has failed.
    pub(super) fn lose(&mut self, partitions: &[u16]) {
        let is_lost =
            |given: &mut Given| !given.is_published() && partitions.contains(&given.settlement.partition);
        let dropped: Vec<Given> = self.unsettled.extract_if(.., is_lost).collect();
        dropped.iter().for_each(|given| self.end(given));
        self.note_since();
    }

    /// A verdict is settled or dropped.
    fn end(&mut self, given: &Given) {
        self.set_aside -= usize::from(given.is_set_aside);
        self.rows.remove(&given.settlement.row_id);
        if let Some(closed) = given.closes.and_then(|key| self.closed.get_mut(&key)) {
            closed.verdicts -= 1;
            closed.last_fetch = self.fetches;
        }
    }

    fn note_since(&mut self) {
        self.since = match self.unsettled.is_empty() {
            true => None,
            false => Some(self.since.unwrap_or_else(Instant::now)),
        };
    }

    /// Whether anything of this partition awaits its settlement.
    pub(super) fn has_unsettled(&self, partition: u16) -> bool {
        self.given().any(|given| given.settlement.partition == partition)
    }

    fn given(&self) -> impl Iterator<Item = &Given> {
        self.unsettled.iter().chain(&self.settling.0)
    }

    /// Everything without a verdict goes back to the store.
    pub(super) fn forget(&mut self) {
        // What is only set aside is not in flight; if a verdict closed its lane, that is not forgotten.
        let kept = self
            .given()
            .filter(|given| given.settlement.verdict != Verdict::Waits);
        self.rows = kept.map(|given| given.settlement.row_id).collect();
    }

    /// Everything goes back to the store, verdicts and all: the partitions are handed over, and whoever takes them sends again what is not settled.
    pub(super) fn let_go(&mut self) {
        *self = Self {
            fetches: self.fetches,
            ..Self::default()
        };
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.unsettled.is_empty()
    }
}

fn settlement(row: &FetchedRow, verdict: Verdict) -> Settlement {
    Settlement {
        row_id: row.row_id,
        partition: row.partition,
        waited: row.waited,
        verdict,
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

    const FIRST: Lease = Lease {
        partition: 0,
        epoch: 1,
    };
    const SECOND: Lease = Lease {
        partition: 0,
        epoch: 2,
    };

    fn blocked() -> Verdict {
        Verdict::Blocked {
            delay: Duration::ZERO,
            error: None,
            attempt: false,
        }
    }

    fn to_settle(in_flight: &mut InFlight) -> Vec<i64> {
        let settlements = in_flight.begin_settle(vec![FIRST]);
        settlements.iter().map(|settlement| settlement.row_id).collect()
    }

    #[test]
    fn a_fetch_that_began_before_a_block_was_settled_does_not_overtake_it() {
        let mut in_flight = InFlight::default();
        let (first, _) = in_flight.begin_fetch();
        assert!(in_flight.take(first, &row(1)));
        let (second, left_out) = in_flight.begin_fetch();
        assert_eq!(left_out, [1]);
        in_flight.close(Key::of(&row(1)), &row(1), Verdict::Waits, None);
        in_flight.begin_settle(vec![FIRST]);
        assert!(!in_flight.take(second, &row(2)), "not settled yet");
        in_flight.settled();
        assert!(!in_flight.take(second, &row(3)), "the fetch began before");
        let (third, left_out) = in_flight.begin_fetch();
        assert!(left_out.is_empty(), "what waits is looked at again: {left_out:?}");
        assert!(in_flight.take(third, &row(2)));
    }

    #[test]
    fn what_is_set_aside_during_a_settlement_is_set_aside_until_the_next() {
        let mut in_flight = InFlight::default();
        in_flight.published(&row(1), true, false);
        in_flight.begin_settle(vec![FIRST]);
        in_flight.set_aside(vec![settlement(&row(2), Verdict::Waits)]);
        in_flight.settled();
        assert!(in_flight.is_setting_aside());
        in_flight.begin_settle(vec![FIRST]);
        assert!(in_flight.is_setting_aside());
        in_flight.settled();
        assert!(!in_flight.is_setting_aside());
    }

    #[test]
    fn verdicts_that_were_not_taken_go_first() {
        let mut in_flight = InFlight::default();
        in_flight.published(&row(1), true, false);
        in_flight.begin_settle(vec![FIRST]);
        in_flight.published(&row(2), true, false);
        in_flight.not_settled(&[FIRST]);
        in_flight.forget();
        assert_eq!(to_settle(&mut in_flight), [1, 2]);
        assert_eq!(in_flight.begin_fetch().1, [1, 2]);
    }

    /// The lease is lost while the verdicts wait, or while they are on their way, and is acquired again at once.
    #[test]
    fn of_a_lost_lease_only_confirmations_are_settled_later() {
        for is_on_its_way in [false, true] {
            let mut in_flight = InFlight::default();
            in_flight.published(&row(1), true, false);
            in_flight.close(Key::of(&row(2)), &row(2), blocked(), None);
            in_flight.wait(&row(3));
            in_flight.set_aside(vec![settlement(&row(4), Verdict::Waits)]);
            if is_on_its_way {
                in_flight.begin_settle(vec![FIRST]);
            }
            in_flight.lose(&[0]);
            in_flight.forget();
            let (meanwhile, left_out) = in_flight.begin_fetch();
            assert_eq!(left_out.contains(&2), is_on_its_way, "{left_out:?}");
            if is_on_its_way {
                in_flight.not_settled(&[SECOND]);
            }
            assert!(!in_flight.is_setting_aside());
            assert_eq!(
                in_flight.take(meanwhile, &row(3)),
                !is_on_its_way,
                "it may have left out the one before"
            );
            let (later, left_out) = in_flight.begin_fetch();
            assert!(!left_out.contains(&2), "{left_out:?}");
            assert!(in_flight.take(later, &row(2)), "the lane is open again");
            let mut to_settle = to_settle(&mut in_flight);
            to_settle.retain(|row_id| *row_id != 3);
            assert_eq!(to_settle, [1]);
        }
    }

    #[test]
    fn a_lease_that_lasts_keeps_its_verdicts() {
        let mut in_flight = InFlight::default();
        in_flight.close(Key::of(&row(1)), &row(1), blocked(), None);
        in_flight.lose(&[1]);
        in_flight.begin_settle(vec![FIRST]);
        in_flight.lose(&[1]);
        in_flight.not_settled(&[FIRST]);
        assert_eq!(to_settle(&mut in_flight), [1]);
    }
}
