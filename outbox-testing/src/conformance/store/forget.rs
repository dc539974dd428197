//! Rules for forgetting aggregates.

use outbox_core::message::Events;

use super::StoreFixture;
use super::support::*;

async fn forget<F: StoreFixture>(fixture: &F, ids: &[&str]) -> Forgotten {
    let aggregates: Vec<_> = ids.iter().copied().map(aggregate).collect();
    store(fixture).forget(&aggregates).await
}

async fn forget_idle<F: StoreFixture>(fixture: &F, idle_for: Duration) -> u64 {
    let aggregate_type = aggregate("a").aggregate_type;
    store(fixture).forget_idle(&aggregate_type, idle_for).await
}

/// Forgetting an aggregate removes its messages, its deduplication keys and its last sequence.
pub async fn nothing_is_left_of_a_forgotten_aggregate<F: StoreFixture>(fixture: &F) {
    let of_a = || {
        Events::new()
            .with(Probe::noted("a", 1).with_dedup_key("k"))
            .with(Probe::noted("a", 2))
            .with(Probe::sampled("a", 3))
    };
    commit(fixture, of_a()).await;
    let (leases, rows) = with_rows(fixture, &["b", "c"]).await;
    let rows_of_a = of(&rows, "a");
    settled(fixture, &leases, &rows_of_a[..1], published()).await;
    settled(fixture, &leases, &rows_of_a[1..], dead(false)).await;
    settled(fixture, &leases, &only(&rows, "b"), published()).await;
    settled(fixture, &leases, &only(&rows, "c"), dead(true)).await;
    let of_c = Selection::dead_letters().aggregate(&aggregate("c"));
    store(fixture).skip(&of_c).await;

    let forgotten = forget(fixture, &["a", "c", "unknown"]).await;
    assert_eq!((forgotten.messages, forgotten.left), (4, Vec::new()));
    let left = stored(fixture).await;
    assert_eq!(ids(left.iter().map(|row| &row.aggregate)), ["b"]);
    commit(fixture, of_a()).await;
    commit_each(fixture, &["b", "c"]).await;
    let rows = fetch(fixture, &leases, ALL).await;
    assert_eq!(sorted_keys(&rows), "a- a1 a2 b2 c1");
}

/// An aggregate with unpublished messages is not forgotten.
pub async fn unpublished_messages_are_not_forgotten<F: StoreFixture>(fixture: &F) {
    let (leases, rows) = with_rows(fixture, &["pending", "waiting", "halted", "free"]).await;
    settled(fixture, &leases, &only(&rows, "waiting"), hindered(LONG)).await;
    settled(fixture, &leases, &only(&rows, "halted"), dead(true)).await;
    settled(fixture, &leases, &only(&rows, "free"), published()).await;
    let forgotten = forget(fixture, &["pending", "free", "waiting", "halted"]).await;
    assert_eq!(forgotten.messages, 1);
    assert_eq!(forgotten.left, ["pending", "waiting", "halted"].map(aggregate));
    assert_eq!(stored(fixture).await.len(), 3);
    commit_each(fixture, &["pending"]).await;
    let rows = fetch(fixture, &leases, ALL).await;
    assert_eq!(keys(&rows), "pending1 pending2");
}

/// `forget_idle` skips aggregates with recent or unpublished messages.
pub async fn only_idle_aggregates_are_forgotten<F: StoreFixture>(fixture: &F) {
    let (leases, rows) = with_rows(fixture, &["published", "pending", "waiting", "dead"]).await;
    settled(fixture, &leases, &only(&rows, "published"), published()).await;
    settled(fixture, &leases, &only(&rows, "waiting"), hindered(LONG)).await;
    settled(fixture, &leases, &only(&rows, "dead"), dead(false)).await;
    assert_eq!(forget_idle(fixture, LONG).await, 0);
    let other = store(fixture).forget_idle("other", Duration::ZERO).await;
    assert_eq!(other, 0);
    // Some database clocks have millisecond resolution.
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert_eq!(forget_idle(fixture, Duration::ZERO).await, 1);
    assert_eq!(stored(fixture).await.len(), 4, "published messages stay");
    commit_each(fixture, &["published", "pending", "dead"]).await;
    let rows = fetch(fixture, &leases, ALL).await;
    assert_eq!(sorted_keys(&rows), "dead2 pending1 pending2 published1");
}
