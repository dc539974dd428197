//! Tests of lanes and verdicts together, without a store.

use super::*;

const FIRST: Lease = Lease {
    partition: 0,
    epoch: 1,
};
const SECOND: Lease = Lease {
    partition: 0,
    epoch: 2,
};

fn row_of(row_id: i64, aggregate: &str) -> FetchedRow {
    FetchedRow {
        row_id,
        id: None,
        partition: 0,
        aggregate: Aggregate::new("thing", aggregate.to_owned()),
        sequenced: true,
        attempts: 0,
        failures: 0,
        waited: false,
        age: Duration::ZERO,
        message: Err("not needed".to_owned().into()),
    }
}

fn row(row_id: i64) -> FetchedRow {
    row_of(row_id, "a")
}

fn waits(row_id: i64) -> Vec<Settlement> {
    vec![Given::on(&row(row_id), Verdict::Waits).settlement]
}

fn blocked() -> Verdict {
    Verdict::Blocked {
        delay: Duration::ZERO,
        error: None,
        attempt: false,
    }
}

impl InFlight {
    fn fetched(&mut self, rows: impl IntoIterator<Item = FetchedRow>) {
        let (fetch, _) = self.begin_fetch();
        rows.into_iter().for_each(|row| assert!(self.accept(fetch, row)));
    }

    fn publish(&mut self, row_id: i64) {
        let out = self.next().unwrap();
        assert_eq!(out.row.row_id, row_id);
        self.published(out, true, false);
    }

    fn taken_to_settle(&mut self) -> Vec<i64> {
        let settlements = self.begin_settle(vec![FIRST]);
        settlements.iter().map(|settlement| settlement.row_id).collect()
    }
}

#[test]
fn fetch_from_before_a_settled_block_does_not_overtake() {
    let mut in_flight = InFlight::default();
    in_flight.fetched([row(1)]);
    let (second, left_out) = in_flight.begin_fetch();
    assert_eq!(left_out, [row(1).key()]);
    let out = in_flight.next().unwrap();
    in_flight.block(out, blocked());
    in_flight.begin_settle(vec![FIRST]);
    in_flight.accept(second, row(2));
    assert!(in_flight.is_setting_aside(), "not settled yet");
    in_flight.settled();
    in_flight.accept(second, row(3));
    assert_eq!(in_flight.queued(), 0, "the fetch began before");
    let (third, left_out) = in_flight.begin_fetch();
    assert!(left_out.is_empty(), "what waits is looked at again: {left_out:?}");
    in_flight.accept(third, row(2));
    assert_eq!(in_flight.queued(), 1);
}

#[test]
fn rows_set_aside_stay_so_until_the_next_settlement() {
    let mut in_flight = InFlight::default();
    in_flight.fetched([row(1)]);
    in_flight.publish(1);
    in_flight.begin_settle(vec![FIRST]);
    in_flight.set_aside(waits(2));
    in_flight.settled();
    assert!(in_flight.is_setting_aside());
    in_flight.begin_settle(vec![FIRST]);
    assert!(in_flight.is_setting_aside());
    in_flight.settled();
    assert!(!in_flight.is_setting_aside());
}

#[test]
fn unsettled_verdicts_go_first() {
    let mut in_flight = InFlight::default();
    in_flight.fetched([row(1), row(2)]);
    in_flight.publish(1);
    in_flight.begin_settle(vec![FIRST]);
    in_flight.publish(2);
    in_flight.not_settled(&[FIRST]);
    in_flight.forget(&[]);
    assert_eq!(in_flight.taken_to_settle(), [1, 2]);
    assert_eq!(in_flight.begin_fetch().1, [row(1).key(), row(2).key()]);
}

#[test]
fn lost_lease_keeps_only_confirmations() {
    for is_on_its_way in [false, true] {
        let mut in_flight = InFlight::default();
        in_flight.fetched([row(1), row(2), row(3)]);
        in_flight.publish(1);
        let out = in_flight.next().unwrap();
        in_flight.block(out, blocked());
        in_flight.set_aside(waits(4));
        if is_on_its_way {
            in_flight.begin_settle(vec![FIRST]);
        }
        in_flight.forget(&[0]);
        let (meanwhile, left_out) = in_flight.begin_fetch();
        assert_eq!(left_out.contains(&row(2).key()), is_on_its_way, "{left_out:?}");
        if is_on_its_way {
            in_flight.not_settled(&[SECOND]);
        }
        assert!(!in_flight.is_setting_aside());
        in_flight.accept(meanwhile, row(3));
        assert_eq!(
            in_flight.is_setting_aside(),
            is_on_its_way,
            "the fetch may have left out the message before"
        );
        in_flight.forget(&[]);
        let (later, left_out) = in_flight.begin_fetch();
        assert!(!left_out.contains(&row(2).key()), "{left_out:?}");
        in_flight.accept(later, row(2));
        assert_eq!(in_flight.queued(), 1, "the lane is open again");
        let mut taken_to_settle = in_flight.taken_to_settle();
        taken_to_settle.retain(|row_id| *row_id != 3);
        assert_eq!(taken_to_settle, [1]);
    }
}

#[test]
fn renewed_lease_keeps_its_verdicts() {
    let mut in_flight = InFlight::default();
    in_flight.fetched([row(1)]);
    let out = in_flight.next().unwrap();
    in_flight.block(out, blocked());
    in_flight.forget(&[1]);
    in_flight.begin_settle(vec![FIRST]);
    in_flight.forget(&[1]);
    in_flight.not_settled(&[FIRST]);
    assert_eq!(in_flight.taken_to_settle(), [1]);
}

fn settle_but(in_flight: &mut InFlight, refused: i64) -> Vec<Vec<i64>> {
    let mut taken = Vec::new();
    while in_flight.unsettled() > 0 {
        let row_ids = in_flight.taken_to_settle();
        if row_ids.contains(&refused) {
            let _alone = in_flight.refused(&[FIRST], false, |_| Duration::from_secs(1));
        } else {
            in_flight.settled();
            taken.push(row_ids);
        }
    }
    taken
}

#[test]
fn rejected_verdict_is_isolated_and_others_are_settled() {
    for refused in 1..=20 {
        let mut in_flight = InFlight::default();
        in_flight.fetched((1..=20).map(|row_id| row_of(row_id, &row_id.to_string())));
        (1..=20).for_each(|row_id| in_flight.publish(row_id));
        let mut taken = settle_but(&mut in_flight, refused).concat();
        taken.sort_unstable();
        let others: Vec<i64> = (1..=20).filter(|row_id| *row_id != refused).collect();
        assert_eq!(taken, others);
        assert!(in_flight.is_empty() && !in_flight.holds(0));
        assert_eq!(
            in_flight.begin_fetch().1,
            [row(refused).key()],
            "it is not sent again meanwhile"
        );
        assert_eq!(in_flight.begin_retry(vec![FIRST]).unwrap()[0].row_id, refused);
        in_flight.settled();
        assert!(in_flight.begin_fetch().1.is_empty());
        assert_eq!(in_flight.refused_count(), 0);
    }
}

#[test]
fn rejected_verdict_keeps_its_lane_closed() {
    let mut in_flight = InFlight::default();
    in_flight.fetched([row(1), row(2), row_of(3, "b")]);
    let out = in_flight.next().unwrap();
    in_flight.block(out, blocked());
    in_flight.publish(3);
    assert_eq!(settle_but(&mut in_flight, 1).concat(), [2, 3]);
    let (fetch, left_out) = in_flight.begin_fetch();
    assert_eq!(left_out, [row(1).key()]);
    assert!(!in_flight.accept(fetch, row(2)), "it stays where it is");
    assert!(in_flight.next().is_none() && !in_flight.is_setting_aside());
    in_flight.drop_partition(0);
    assert_eq!(
        in_flight.refused_count(),
        0,
        "the owner of the partition decides again"
    );
    assert!(
        !in_flight.accept(fetch, row(2)) || in_flight.is_setting_aside(),
        "that fetch left out the first message"
    );
    let (fetch, left_out) = in_flight.begin_fetch();
    assert!(left_out.is_empty());
    assert!(in_flight.accept(fetch, row(1)));
    assert_eq!(in_flight.next().unwrap().row.row_id, 1);
}

#[test]
fn message_that_cannot_be_set_aside_is_retried() {
    let mut in_flight = InFlight::default();
    assert_eq!(in_flight.set_aside(waits(5)), 1);
    assert!(settle_but(&mut in_flight, 5).is_empty());
    assert!(!in_flight.is_setting_aside(), "others are fetched");
    assert_eq!(in_flight.set_aside(waits(5)), 0, "not before the next try");
    assert!(in_flight.begin_retry(vec![FIRST]).is_none());
    assert_eq!(in_flight.set_aside(waits(5)), 1);
}

#[test]
fn rows_with_equal_row_ids_are_tracked_separately() {
    let mut in_flight = InFlight::default();
    let (fetch, _) = in_flight.begin_fetch();
    let later = FetchedRow {
        id: Some(crate::message::MessageId::fresh()),
        ..row_of(1, "b")
    };
    in_flight.accept(fetch, row(1));
    in_flight.accept(fetch, later.clone());
    let out = in_flight.next().unwrap();
    in_flight.published(out, true, false);
    in_flight.begin_settle(vec![FIRST]);
    in_flight.settled();
    assert_eq!(in_flight.begin_fetch().1, [later.key()]);
}

struct Anything {
    rng: fastrand::Rng,
    in_flight: InFlight,
    pending: Vec<FetchedRow>,
    fetching: Option<(u64, Vec<FetchedRow>)>,
    out: Vec<Queued>,
    is_settling: bool,
}

impl Anything {
    fn new(seed: u64) -> Self {
        let rows = (0..40).map(|row_id| row_of(row_id, ["a", "b", "c"][row_id as usize % 3]));
        Self {
            rng: fastrand::Rng::with_seed(seed),
            in_flight: InFlight::default(),
            pending: rows.collect(),
            fetching: None,
            out: Vec::new(),
            is_settling: false,
        }
    }

    fn step(&mut self, has_faults: bool) {
        let choice = self.rng.u32(0..if has_faults { 13 } else { 7 });
        match choice {
            0 if self.fetching.is_none() && !self.in_flight.is_setting_aside() => {
                let (fetch, left_out) = self.in_flight.begin_fetch();
                let due = self.pending.iter().filter(|row| !left_out.contains(&row.key()));
                self.fetching = Some((fetch, due.take(10).cloned().collect()));
            }
            1 => {
                let (fetch, rows) = self.fetching.take().unwrap_or_default();
                for row in rows {
                    let _is_taken = self.in_flight.accept(fetch, row);
                }
            }
            2 | 3 => self.out.extend(self.in_flight.next()),
            4 => {
                if let Some(out) = self.out.pop() {
                    self.in_flight.published(out, true, false);
                }
            }
            5 if !self.is_settling => {
                if self.in_flight.retry_at().is_none() || self.in_flight.begin_retry(vec![FIRST]).is_none() {
                    self.in_flight.begin_settle(vec![FIRST]);
                }
                self.is_settling = true;
            }
            6 => {
                let settled = self.in_flight.settled();
                let published = |row: &FetchedRow| {
                    let mut verdicts = settled.iter().filter(|given| given.is_published());
                    verdicts.any(|given| given.settlement.row_id == row.row_id)
                };
                self.pending.retain(|row| !published(row));
                self.is_settling = false;
            }
            7 => {
                if let Some(out) = self.out.pop() {
                    match self.rng.u32(0..4) {
                        0 => self.in_flight.retry(out),
                        1 => self.in_flight.give_back(out),
                        2 => self.in_flight.block(out, blocked()),
                        _ => {
                            self.in_flight.shorten(2, 1);
                            self.out.push(out);
                        }
                    }
                }
            }
            8 => {
                let owned = if self.rng.bool() { FIRST } else { SECOND };
                self.in_flight.not_settled(&[owned]);
                self.is_settling = false;
            }
            9 if self.rng.u32(0..4) == 0 => {
                self.fetching = None;
                self.out.clear();
                let lost: &[u16] = if self.rng.bool() { &[0] } else { &[] };
                self.in_flight.forget(lost);
            }
            10 if self.rng.u32(0..4) == 0 => {
                self.fetching = None;
                self.in_flight.drop_partition(0);
            }
            11 if self.rng.u32(0..8) == 0 => {
                self.fetching = None;
                self.out.clear();
                self.is_settling = false;
                self.in_flight.let_go();
            }
            12 if self.is_settling => {
                let owned = if self.rng.u32(0..4) > 0 { FIRST } else { SECOND };
                let nothing_is_taken = self.rng.u32(0..8) == 0;
                let _alone = self
                    .in_flight
                    .refused(&[owned], nothing_is_taken, |_| Duration::ZERO);
                self.is_settling = false;
            }
            _ => {}
        }
    }

    fn check(&self) {
        let in_lanes: Vec<RowKey> = self
            .in_flight
            .lanes
            .row_ids()
            .map(|row_id| row(row_id).key())
            .collect();
        let distinct: QuickSet<RowKey> = in_lanes.iter().copied().collect();
        assert_eq!(distinct.len(), in_lanes.len(), "twice in a lane: {in_lanes:?}");
        assert!(distinct.is_subset(&self.in_flight.rows), "{in_lanes:?}");
    }
}

#[test]
fn every_row_in_a_lane_is_in_flight() {
    for seed in 0..300 {
        let mut world = Anything::new(seed);
        for step in 0..2_000 {
            world.step(step < 1_000);
            world.check();
        }
        let left: Vec<i64> = world.pending.iter().map(|row| row.row_id).collect();
        assert!(left.is_empty(), "seed {seed}: {left:?} stay in flight for ever");
    }
}
