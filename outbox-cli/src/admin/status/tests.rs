//! Tests of the status judgement.

use outbox::core::{OutboxStore, OwnerId};
use outbox_testing::MemoryStore;

use super::*;

pub(super) const TTL: Duration = Duration::from_secs(60);

pub(super) fn backlog(pending: u64) -> BacklogCounts {
    BacklogCounts {
        pending,
        pending_is_exact: true,
        pending_estimate: pending,
        deferred: 0,
        dead_letters: 0,
        halted_aggregates: 0,
        blocked_aggregates: 0,
        oldest_unpublished: None,
    }
}

#[track_caller]
pub(super) fn check(reasons: &[Reason], expected: &[(State, &str)]) {
    assert_eq!(reasons.len(), expected.len(), "{reasons:?}");
    for (reason, (state, text)) in reasons.iter().zip(expected) {
        assert!(reason.state == *state && reason.what.contains(text), "{reason:?}");
        assert!(reason.next.command.is_some());
    }
}

#[test]
fn dead_letters_have_one_reason() {
    let mut dead = backlog(0);
    dead.dead_letters = 1;
    check(
        &of_messages(&dead),
        &[(State::Degraded, "1 dead letter halts no aggregate")],
    );
    dead.halted_aggregates = 1;
    check(&of_messages(&dead), &[(State::Degraded, "1 aggregate is halted")]);
    dead.dead_letters = 3;
    let expected = [
        (State::Degraded, "1 aggregate is halted"),
        (State::Degraded, "2 dead letters"),
    ];
    check(&of_messages(&dead), &expected);
}

#[tokio::test(start_paused = true)]
async fn worst_reason_is_first_and_sets_the_state() {
    let store = MemoryStore::new();
    let owner = OwnerId::fresh();
    store
        .announce(owner, TTL, &RelayHealth::Unhealthy.into())
        .await
        .expect("announced");
    store.acquire(owner, TTL, 64).await.expect("acquired");
    let warned = BrokerCheck::Checked(vec!["the duplicate window is short".to_owned()]);
    let status = status(&store, &warned).await.expect("status");
    assert_eq!(status.state, State::Stuck);
    let expected = [
        (State::Stuck, "the only live relay"),
        (State::Degraded, "duplicate window"),
    ];
    check(&status.reasons, &expected);
    assert_eq!((status.partitions.owned, status.partitions.all), (64, 64));
}

#[tokio::test(start_paused = true)]
async fn unhealthy_consumer_degrades_the_status() {
    let store = MemoryStore::new();
    let owner = OwnerId::fresh();
    store
        .announce(owner, TTL, &RelayHealth::Healthy.into())
        .await
        .expect("announced");
    store.acquire(owner, TTL, 64).await.expect("acquired");
    let mut status = status(&store, &BrokerCheck::NotAsked).await.expect("status");
    assert_eq!((status.state, status.consumers), (State::Healthy, None));
    status.see_consumers(&[
        crate::admin::consumers::dead("billing", 3),
        crate::admin::consumers::dead("mail", 0),
    ]);
    let expected = (State::Degraded, "consumer billing: 3 dead letters are open");
    check(&status.reasons, &[expected]);
    assert_eq!(status.state, State::Degraded);
    let expected = ConsumerCounts {
        all: 2,
        healthy: 1,
        paused: Some(0),
        dead_letters_open: Some(3),
    };
    assert_eq!(status.consumers, Some(expected));
    let mut unknown = crate::admin::consumers::dead("mail", 0);
    unknown.dead_letters_open = None;
    status.see_consumers(&[unknown]);
    let counts = status.consumers.expect("they were checked");
    assert_eq!((counts.paused, counts.dead_letters_open), (None, None));
}

#[tokio::test(start_paused = true)]
async fn an_outbox_without_problems_is_healthy() {
    let store = MemoryStore::new();
    let owner = OwnerId::fresh();
    store
        .announce(owner, TTL, &RelayHealth::Healthy.into())
        .await
        .expect("announced");
    store.acquire(owner, TTL, 64).await.expect("acquired");
    let status = status(&store, &BrokerCheck::Checked(Vec::new()))
        .await
        .expect("status");
    assert_eq!((status.state, status.reasons), (State::Healthy, Vec::new()));
}
