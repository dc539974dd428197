//! Tests of the relay with an in-memory store and broker on a paused clock: one test per failure
//! that the relay must survive.

mod agreement;
mod drain;
mod fairness;
mod observe;
mod outage;
mod pause;
mod poison;
mod reconcile;
mod refused;
mod sharing;
mod shutdown;
mod silent;
mod stale;
mod start;
mod suspended;
mod unhealthy;
mod watched;
mod work;

use std::time::Duration;

use outbox_core::{Aggregate, DomainEvent, Health, MessageStatus, Relay, RelayConfig, RelayReport};
use outbox_testing::{MemoryBroker, MemoryPublisher, MemoryStore};
use tokio_util::sync::CancellationToken;

pub(crate) use MessageStatus::{Dead, Pending, Published, Waiting};

#[derive(DomainEvent, serde::Serialize, serde::Deserialize)]
#[domain_event(aggregate = "account", name = "credited")]
pub(crate) struct Credited {
    #[domain_event(aggregate_id)]
    pub(crate) account: u32,
    pub(crate) cents: u32,
}

fn credit(store: &MemoryStore, accounts: u32, each: u32) {
    for cents in 1..=each {
        for account in 1..=accounts {
            store.record([Credited { account, cents }]).unwrap();
        }
    }
}

fn is_stuck(health: &Health) -> bool {
    matches!(health, Health::Stuck { .. })
}

fn quick() -> RelayConfig {
    RelayConfig::default().seed(Some(7))
}

fn relay_of(
    store: &MemoryStore,
    broker: &MemoryBroker,
    config: RelayConfig,
) -> Relay<MemoryStore, MemoryPublisher> {
    Relay::new(store.clone(), broker.publisher()).with_config(config)
}

async fn run_during(
    relay: &Relay<MemoryStore, MemoryPublisher>,
    scenario: impl Future<Output = ()>,
) -> RelayReport {
    let _alone = outbox_core::wake::isolate();
    let shutdown = CancellationToken::new();
    let scenario = async {
        scenario.await;
        shutdown.cancel();
    };
    let (report, ()) = tokio::join!(relay.run(shutdown.clone()), scenario);
    report.unwrap()
}

fn statuses(store: &MemoryStore, account: u32) -> Vec<MessageStatus> {
    let aggregate = Aggregate::new("account", account.to_string());
    store
        .rows()
        .into_iter()
        .filter(|row| *row.aggregate() == aggregate)
        .map(|row| row.status)
        .collect()
}

async fn until(what: &str, condition: impl Fn() -> bool) {
    let wait = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let bound = Duration::from_secs(24 * 3600);
    assert!(
        tokio::time::timeout(bound, wait).await.is_ok(),
        "{what} never happened"
    );
}
