//! Rules for delayed messages.

use super::StoreFixture;
use super::support::*;

/// A delayed message is not due early, and later messages of its aggregate wait.
pub async fn a_delayed_message_holds_back_its_aggregate<F: StoreFixture>(fixture: &F) {
    commit_each(fixture, &["a", "b"]).await;
    commit_delayed(fixture, Probe::noted("a", 2), LONG).await;
    commit_delayed(fixture, Probe::noted("past", 1), Duration::ZERO).await;
    commit_each(fixture, &["a", "b", "past"]).await;
    let (_, leases) = lease_all(fixture).await;
    let rows = fetch(fixture, &leases, ALL).await;
    assert_eq!(sorted_keys(&rows), "a1 b1 b2 past1 past2");
    settled(fixture, &leases, &rows, published()).await;
    assert_eq!(fetch(fixture, &leases, ALL).await, []);
    assert_eq!(fetch_waiting(fixture, &leases).await, []);
    let blocked = blocked(fixture).await;
    assert_eq!((blocked.len(), &blocked[0].aggregate), (1, &aggregate("a")));
    assert!(is_left_of(LONG, blocked[0].blocked_for));
    assert_eq!(store(fixture).backlog().await.waiting, 2);
}

/// Several delayed messages keep their order.
pub async fn several_delayed_messages_keep_their_order<F: StoreFixture>(fixture: &F) {
    commit_delayed(fixture, Probe::noted("a", 1), SHORT).await;
    commit_each(fixture, &["a"]).await;
    commit_delayed(fixture, Probe::noted("a", 3), SHORT / 10).await;
    commit_delayed(fixture, Probe::noted("a", 4), SHORT * 3).await;
    commit_each(fixture, &["a"]).await;
    commit_delayed(fixture, Probe::noted("a", 6), LONG).await;
    commit_each(fixture, &["a"]).await;
    let (_, leases) = lease_all(fixture).await;
    let mut arrived = Vec::new();
    while arrived.len() < 5 {
        let rows = until_something_is_due(fixture, &leases).await;
        settled(fixture, &leases, &rows, published()).await;
        arrived.extend(sequences(&rows));
    }
    assert_eq!(arrived, [1, 2, 3, 4, 5]);
    for _ in 0..2 {
        assert_eq!(fetch(fixture, &leases, ALL).await, []);
        assert_eq!(fetch_waiting(fixture, &leases).await, []);
    }
    assert_eq!(store(fixture).backlog().await.waiting, 2);
}

/// A delayed message behind a block waits for its own time; older messages are not delayed.
pub async fn a_delayed_message_behind_a_block_waits_for_its_own_time<F: StoreFixture>(fixture: &F) {
    let leases = with_blocked(fixture, &["a"], LONG).await;
    commit_delayed(fixture, Probe::noted("a", 2), LONG * 2).await;
    commit_each(fixture, &["a"]).await;
    assert_eq!(fetch(fixture, &leases, ALL).await, []);
    let block = blocked(fixture).await[0].blocked_for;
    assert!(is_left_of(LONG, block), "a later message prolonged the block");

    assert!(store(fixture).resume(&aggregate("a")).await);
    let rows = fetch_waiting(fixture, &leases).await;
    assert_eq!(keys(&rows), "a1", "the message came before its time");
    settled(fixture, &leases, &rows, published()).await;
    assert_eq!(fetch_waiting(fixture, &leases).await, []);
    let blocked = blocked(fixture).await;
    let lasts = blocked[0].blocked_for;
    assert!(
        is_left_of(LONG * 2, lasts),
        "the block lasts until the time of its oldest message"
    );
    assert_eq!(fetch(fixture, &leases, ALL).await, []);
}

/// An older message is due although a later message is delayed, even if a crash left the older
/// message pending.
pub async fn an_older_message_ignores_the_delay_of_a_later_message<F: StoreFixture>(fixture: &F) {
    commit_each(fixture, &["a"]).await;
    commit_delayed(fixture, Probe::noted("a", 2), LONG).await;
    let (_, leases) = lease_all(fixture).await;
    let lost = fetch(fixture, &leases, ALL).await;
    assert_eq!(keys(&lost), "a1");
    assert_eq!(
        fetch(fixture, &leases, ALL).await,
        [],
        "the message's aggregate is blocked"
    );
    let rows = until_blocks_have_ended(fixture, &leases).await;
    assert_eq!(keys(&rows), "a1");
    settled(fixture, &leases, &rows, published()).await;
    assert_eq!(fetch_waiting(fixture, &leases).await, []);
    let blocked = blocked(fixture).await;
    assert!(
        is_left_of(LONG, blocked[0].blocked_for),
        "the other message still waits for its time"
    );
}

/// After a crash, waiting messages do not overtake pending messages, whether `fetch` or
/// `fetch_waiting` runs first.
pub async fn waiting_messages_do_not_overtake_pending_messages<F: StoreFixture>(fixture: &F) {
    commit_each(fixture, &["a"]).await;
    commit_delayed(fixture, Probe::noted("a", 2), SHORT).await;
    let (_, leases) = lease_all(fixture).await;
    let lost = fetch(fixture, &leases, ALL).await;
    assert_eq!(key(&lost[0]), ("a", Some(1)));
    let is_over = |blocked: &BlockedAggregate| blocked.blocked_for == Some(Duration::ZERO);
    for _ in 0..200 {
        if blocked(fixture).await.iter().all(is_over) {
            break;
        }
        tokio::time::sleep(SHORT / 6).await;
    }
    let mut arrived = Vec::new();
    for _ in 0..4 {
        let waited = fetch_waiting(fixture, &leases).await;
        let rows = [waited, fetch(fixture, &leases, ALL).await].concat();
        settled(fixture, &leases, &rows, published()).await;
        arrived.extend(sequences(&rows));
    }
    assert_eq!(arrived, [1, 2]);
}

/// Other messages of the aggregate do not wait for a delayed unsequenced message.
pub async fn a_delayed_unsequenced_message_waits_alone<F: StoreFixture>(fixture: &F) {
    commit_delayed(fixture, Probe::sampled("a", 1), LONG).await;
    commit_delayed(fixture, Probe::sampled("b", 1), SHORT).await;
    commit_all(fixture, [Probe::noted("a", 2), Probe::sampled("a", 3)]).await;
    let (leases, mut rows) = take_all(fixture).await;
    assert_eq!(of(&rows, "a").len(), 2, "{:?}", keys(&rows));
    assert_eq!(blocked(fixture).await, [], "no aggregate is blocked");
    settled(fixture, &leases, &of(&rows, "a"), published()).await;

    if of(&rows, "b").is_empty() {
        rows = until_something_is_due(fixture, &leases).await;
    }
    let due = only(&rows, "b");
    settled(fixture, &leases, &due, published()).await;
    assert_eq!(status_of(fixture, &due[0]).await, MessageStatus::Published);
    assert_eq!(fetch_waiting(fixture, &leases).await, []);
    assert_eq!(fetch(fixture, &leases, ALL).await, []);
    let backlog = store(fixture).backlog().await;
    assert_eq!((backlog.pending, backlog.waiting), (1, 1));
}
