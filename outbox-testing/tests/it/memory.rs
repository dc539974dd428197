//! Faults of the in-memory store, and helpers for users' tests, which the suites do not cover.

use std::sync::Arc;
use std::time::Duration;

use outbox_core::{
    EventError, Events, FetchRequest, Lease, Message, MessageStatus, OutboxStore, OwnerId, Publisher,
    Selection, Settlement, StoreError, Verdict,
};
use outbox_testing::Operator as _;
use outbox_testing::conformance::probe::Probe;
use outbox_testing::{Ledger, MemoryBroker, MemoryStore, RecordError};

const MINUTE: Duration = Duration::from_secs(60);

#[test]
fn recorded_events_can_be_read_back() {
    let store = MemoryStore::new();
    store
        .record(
            Events::new()
                .with(Probe::noted("a", 1))
                .with(Probe::observed("b", 2)),
        )
        .unwrap();
    drop(store.begin());
    let mut open = store.begin();
    open.record([Probe::noted("a", 3)]).unwrap();
    assert_eq!(
        store.recorded::<Probe>().iter().map(Probe::n).collect::<Vec<_>>(),
        [1, 2]
    );
    open.commit().unwrap();
    assert_eq!(store.recorded::<Probe>().len(), 3);
    assert!(
        store
            .rows()
            .iter()
            .all(|row| row.status == MessageStatus::Pending)
    );
}

#[test]
fn a_rejected_call_records_nothing() {
    let store = MemoryStore::new();
    let mut transaction = store.begin();
    let mixed = Events::new().with(Probe::noted("a", 1)).with(Probe::noted("", 2));
    assert!(matches!(transaction.record(mixed), Err(EventError::Key { .. })));
    transaction.record([Probe::noted("a", 3)]).unwrap();
    transaction.commit().unwrap();
    assert_eq!(
        store.recorded::<Probe>().iter().map(Probe::n).collect::<Vec<_>>(),
        [3]
    );

    let keyed = || [Probe::noted("a", 4).with_dedup_key("k")];
    store.record(keyed()).unwrap();
    assert!(matches!(store.record(keyed()), Err(RecordError::Duplicate(error)) if error.key == "k"));
}

#[tokio::test]
async fn store_faults_state_whether_the_call_had_an_effect() {
    let store = MemoryStore::new();
    let acquire = || store.acquire(OwnerId::fresh(), MINUTE, 1);
    store.fail_next(1);
    assert!(matches!(acquire().await, Err(StoreError::Database { .. })));
    assert_eq!(
        acquire().await.unwrap()[0].partition,
        0,
        "a failed call had no effect"
    );
    store.lose_answers(1);
    assert!(matches!(acquire().await, Err(StoreError::Database { .. })));
    assert_eq!(
        acquire().await.unwrap()[0].partition,
        2,
        "a lost answer did its work"
    );
    store.set_down(true);
    assert!(store.backlog().await.is_err());
    store.set_down(false);
    store.backlog().await.unwrap();
}

async fn settle_all(store: &MemoryStore, leases: &[Lease], verdict: Verdict) -> Vec<Message> {
    let request = FetchRequest {
        leases,
        limit: 100.try_into().unwrap(),
        bytes: usize::MAX,
        in_flight: &[],
    };
    let due = store.fetch(request).await.unwrap().due;
    let settlements: Vec<Settlement> = due.iter().map(|row| row.with_verdict(verdict.clone())).collect();
    store.settle(leases, &settlements).await.unwrap();
    due.into_iter()
        .map(|row| Arc::unwrap_or_clone(row.message.unwrap()))
        .collect()
}

#[tokio::test(start_paused = true)]
async fn an_outbox_with_waiting_messages_is_not_drained() {
    let store = MemoryStore::new();
    store.record([Probe::noted("a", 1)]).unwrap();
    let leases = store.acquire(OwnerId::fresh(), MINUTE * 9, 64).await.unwrap();
    let blocked = Verdict::Blocked {
        delay: MINUTE,
        error: None,
        attempt: false,
    };
    settle_all(&store, &leases, blocked).await;
    assert_eq!(store.rows()[0].status, MessageStatus::Waiting);
    tokio::time::timeout(MINUTE, store.until_drained())
        .await
        .unwrap_err();
}

#[tokio::test(start_paused = true)]
async fn a_replayed_copy_balances_a_lost_message() {
    let (store, broker) = (MemoryStore::new(), MemoryBroker::new());
    let events = Events::new()
        .with(Probe::noted("a", 1))
        .with(Probe::noted("a", 2));
    store.record(events).unwrap();
    let leases = store.acquire(OwnerId::fresh(), MINUTE * 9, 64).await.unwrap();
    let publish_all = async || {
        for message in settle_all(&store, &leases, Verdict::Published { keep: true }).await {
            broker.publisher().publish(&message).await.unwrap();
        }
    };
    publish_all().await;
    Ledger::of(&store, &broker).assert_balanced();
    broker.lose_tail(1);
    assert_eq!(Ledger::of(&store, &broker).check().len(), 1);
    let lost = store.rows()[1].message.id;
    assert_eq!(store.replay(&Selection::id(lost)).await.unwrap(), 1);
    publish_all().await;
    Ledger::of(&store, &broker).assert_balanced();
    assert_eq!(Ledger::of(&store, &broker).copies(), 0);
}
