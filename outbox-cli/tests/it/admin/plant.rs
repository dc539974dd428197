//! Brings an in-memory outbox into a state that relays and services would cause.

use std::num::NonZeroU32;
use std::time::Duration;

use outbox::core::{
    Aggregate, FetchRequest, IntoEvents, Lease, MessageId, OutboxStore, OwnerId, RelayHealth, Verdict,
    WaitingRequest,
};
use outbox_testing::MemoryStore;
use outbox_testing::conformance::probe::Probe;

pub(crate) const LONG: Duration = Duration::from_secs(600);

const ALL: NonZeroU32 = NonZeroU32::new(1_000).unwrap();

pub(crate) fn aggregate(id: &str) -> Aggregate {
    Aggregate::new("probe", id)
}

pub(crate) fn record(store: &MemoryStore, event: impl IntoEvents) -> MessageId {
    store.record(event).expect("it is recorded");
    store.rows().last().expect("there is a row").message.id
}

pub(crate) fn noted(store: &MemoryStore, id: &str) -> MessageId {
    record(store, [Probe::noted(id, 1)])
}

pub(crate) async fn relay(store: &MemoryStore, health: RelayHealth) -> Vec<Lease> {
    let owner = OwnerId::fresh();
    store
        .announce(owner, LONG, &health.into())
        .await
        .expect("announced");
    store.acquire(owner, LONG, 64).await.expect("acquired")
}

async fn fetch(store: &MemoryStore, leases: &[Lease]) -> Vec<outbox::core::FetchedRow> {
    let request = FetchRequest {
        leases,
        limit: ALL,
        bytes: usize::MAX,
        in_flight: &[],
    };
    let mut fetched = store.fetch(request).await.expect("fetched");
    store.settle(leases, &fetched.waits).await.expect("settled");
    let waiting = WaitingRequest {
        leases,
        limit: ALL,
        per_aggregate: ALL,
        bytes: usize::MAX,
        in_flight: &[],
        excluding: &[],
    };
    fetched
        .due
        .extend(store.fetch_waiting(waiting).await.expect("fetched").due);
    fetched.due
}

pub(crate) async fn settle(store: &MemoryStore, leases: &[Lease], id: MessageId, verdict: Verdict) {
    let rows = fetch(store, leases).await;
    let row = rows
        .iter()
        .find(|row| row.message.as_ref().is_ok_and(|message| message.id == id));
    let row = row.expect("the message is due");
    let settlement = row.with_verdict(verdict);
    assert_eq!(store.settle(leases, &[settlement]).await.expect("settled"), 1);
    fetch(store, leases).await;
}

pub(crate) fn dead(halt: bool) -> Verdict {
    Verdict::Dead {
        error: "maximum payload exceeded".to_owned(),
        halt,
    }
}

pub(crate) fn published(keep: bool) -> Verdict {
    Verdict::Published { keep }
}
