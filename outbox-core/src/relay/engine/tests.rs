//! Tests of the engine's parts, without store and broker.

use super::fetch::FetchDone;
use super::settle::SettleDone;
use super::*;
use crate::health::HealthCheck;
use crate::log::source::{Part, SecondSource};
use crate::message::{Aggregate, PARTITIONS};
use crate::publisher::{FailureClass, PublishError, Receipt};
use crate::relay::in_flight::Queued;
use crate::relay::suspension::Clocks;
use crate::relay::{RelayConfig, Retention};
use crate::store::{Fetched, FetchedRow, Registration, RelayMode, Verdict};

struct Owned(RelayConfig, Part, HealthCheck);

impl Owned {
    fn new(part: Part) -> Self {
        let config = RelayConfig::default().seed(Some(1));
        let health = HealthCheck::of(&config);
        Self(config, part, health)
    }

    fn shared(&self) -> Shared<'_> {
        let mut shared = Shared::new(&self.0, &self.1, &self.2, Clocks::default(), Mode::Run);
        let renewal = shared.ownership.take(0..PARTITIONS);
        shared.ownership.apply(renewal);
        shared
    }
}

fn row(row_id: i64, aggregate: &str) -> FetchedRow {
    FetchedRow {
        row_id,
        id: None,
        partition: 0,
        aggregate: Aggregate::new("order", aggregate),
        sequenced: true,
        attempts: 0,
        failures: 0,
        waited: false,
        age: Duration::ZERO,
        message: Err("damaged".to_owned().into()),
    }
}

fn fetched(rows: impl IntoIterator<Item = FetchedRow>) -> Fetched {
    Fetched {
        due: rows.into_iter().collect(),
        ..Fetched::default()
    }
}

fn accept(shared: &mut Shared<'_>, row: FetchedRow) {
    let (fetch, _) = shared.in_flight.begin_fetch();
    assert!(shared.in_flight.accept(fetch, row));
}

fn send_nothing(_: Queued) {
    panic!("the row cannot be read");
}

fn database_down() -> StoreError {
    StoreError::Database {
        context: "no answer",
        source: "down".into(),
    }
}

fn settled(result: Result<usize, StoreError>) -> SettleDone {
    SettleDone {
        took: Duration::ZERO,
        result,
    }
}

#[tokio::test(start_paused = true)]
async fn fetch_from_before_a_reset_is_dropped() {
    let owned = Owned::new(Part::Whole);
    for forgets in [false, true] {
        let (mut shared, mut fetch) = (owned.shared(), Fetch::default());
        let asked = fetch.step(&mut shared).unwrap();
        if forgets {
            fetch.forget();
        }
        let done = FetchDone {
            asked,
            took: Duration::ZERO,
            result: Ok(fetched([row(1, "a"), row(2, "b")])),
        };
        fetch.done(&mut shared, done).unwrap();
        assert_eq!(shared.in_flight.queued(), if forgets { 0 } else { 2 });
    }
}

#[tokio::test(start_paused = true)]
async fn fetching_needs_a_lease_and_recorded_verdicts() {
    let owned = Owned::new(Part::Whole);
    let mut shared = owned.shared();
    assert!(Fetch::may_begin(&shared));
    shared.store.settle_after = Some(Instant::now());
    assert!(!Fetch::may_begin(&shared));
    let mut shared = owned.shared();
    tokio::time::advance(owned.0.lease_ttl / 2).await;
    assert!(!Fetch::may_begin(&shared), "the leases may expire");
    assert!(Fetch::default().step(&mut shared).is_none());
}

#[tokio::test(start_paused = true)]
async fn unreadable_message_is_dead_or_left_to_the_table() {
    for (part, is_dead) in [
        (Part::Whole, true),
        (Part::Table(SecondSource::default()), true),
        (Part::Source(SecondSource::default()), false),
    ] {
        let owned = Owned::new(part);
        let mut shared = owned.shared();
        accept(&mut shared, row(1, "a"));
        assert_eq!(Publish::step(&mut shared, 0, send_nothing), Some(true));
        let settlements = shared.in_flight.begin_settle(Vec::new());
        let verdict = &settlements[0].verdict;
        assert_eq!(
            matches!(verdict, Verdict::Dead { halt: true, .. }),
            is_dead,
            "{verdict:?}"
        );
        assert_eq!(*verdict == Verdict::Waits, !is_dead);
    }
}

#[tokio::test(start_paused = true)]
async fn silent_broker_stops_sending_and_records_nothing() {
    let owned = Owned::new(Part::Whole);
    let (mut shared, mut publish) = (owned.shared(), Publish::default());
    accept(&mut shared, row(1, "a"));
    let queued = shared.in_flight.next().unwrap();
    let done = |queued, result| PublishDone {
        queued,
        sent_at: Instant::now(),
        result,
    };
    let confirmed = Receipt {
        stream_sequence: 1,
        duplicate: false,
    };
    let silent = PublishError::new(FailureClass::Unknown, "no answer");
    publish.done(&mut shared, done(queued, Err(silent))).unwrap();
    assert_eq!((publish.failed, shared.in_flight.unsettled()), (1, 0));
    assert_eq!(
        Publish::step(&mut shared, 0, send_nothing),
        None,
        "the window is 0"
    );
    tokio::time::advance(owned.0.backoff.min).await;
    let queued = shared.in_flight.next().unwrap();
    publish.done(&mut shared, done(queued, Ok(confirmed))).unwrap();
    assert_eq!((publish.failed, shared.in_flight.unsettled()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn unrecorded_verdicts_are_kept_and_stop_sending() {
    let owned = Owned::new(Part::Whole);
    let (mut shared, mut settle) = (owned.shared(), Settle::new(Recorder::new(None)));
    accept(&mut shared, row(1, "a"));
    let queued = shared.in_flight.next().unwrap();
    shared.in_flight.published(queued, true, false);
    assert!(settle.step(&mut shared, true, false).is_some());
    settle.done(&mut shared, settled(Err(database_down()))).unwrap();
    assert!(!shared.may_send());
    assert!(settle.step(&mut shared, true, false).is_none(), "it backs off");
    tokio::time::advance(owned.0.backoff.min).await;
    assert!(settle.step(&mut shared, true, false).is_some());
    settle.done(&mut shared, settled(Ok(1))).unwrap();
    assert!(shared.may_send());
    assert_eq!(settle.recorder.report.published, 1);
}

#[tokio::test(start_paused = true)]
async fn source_interruption_stops_sending_until_a_renewal() {
    let source = SecondSource::default();
    let owned = Owned::new(Part::Source(source.clone()));
    let mut shared = owned.shared();
    let registration = Registration::new(RelayMode::Log, None, Some(Retention::Keep));
    let mut leases = Leases::new(registration, 0);
    tokio::time::advance(Duration::from_secs(1)).await;
    leases.check(&mut shared);
    assert!(Fetch::may_begin(&shared));
    source.interrupt();
    leases.check(&mut shared);
    assert!(!Fetch::may_begin(&shared));
    let renewal = leases.step(&mut shared, || None).unwrap();
    let renewed = leases.done(&mut shared, Ok(renewal)).unwrap();
    assert!(renewed.lost.is_empty());
    assert!(Fetch::may_begin(&shared));
}

#[tokio::test(start_paused = true)]
async fn only_the_owner_of_partition_0_purges_and_counts() {
    let owned = Owned::new(Part::Whole);
    let mut shared = owned.shared();
    let mut upkeep = Upkeep::new(&mut shared);
    tokio::time::sleep_until(upkeep.next_at(&shared).unwrap()).await;
    assert!(upkeep.step(&shared).is_some() && upkeep.counts(&shared));
    assert!(
        upkeep.step(&shared).is_none() && !upkeep.counts(&shared),
        "not again at once"
    );
    shared.ownership.give_back(&[PARTITION]);
    tokio::time::advance(Duration::from_secs(3_600)).await;
    assert!(upkeep.next_at(&shared).is_none());
    assert!(upkeep.step(&shared).is_none() && !upkeep.counts(&shared));
}
