//! Tests of the engine's parts, without store and broker.

use super::fetch::FetchDone;
use super::*;
use crate::health::HealthCheck;
use crate::log::source::{Part, SecondSource};
use crate::message::{Aggregate, PARTITIONS};
use crate::relay::suspension::Clocks;
use crate::relay::{RelayConfig, Retention};
use crate::store::{Fetched, FetchedRow, Registration, RelayMode};

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
            result: Ok(Fetched {
                due: vec![row(1, "a"), row(2, "b")],
                ..Fetched::default()
            }),
        };
        fetch.done(&mut shared, done).unwrap();
        assert_eq!(shared.in_flight.queued(), if forgets { 0 } else { 2 });
    }
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
