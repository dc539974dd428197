//! Rules for recording.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::future::join_all;
use outbox_core::message::{Events, IntoEvents as _};

use super::StoreFixture;
use super::support::*;

/// The sequences of a rolled-back transaction are used by the next transaction.
pub async fn a_rollback_leaves_no_trace_and_no_hole<F: StoreFixture>(fixture: &F) {
    commit_each(fixture, &["a"]).await;
    let discarded = [("a", 7), ("a", 8), ("b", 9)].map(|(id, n)| Probe::noted(id, n));
    let rolled_back = fixture.roll_back(discarded.into_events()).await;
    rolled_back.expect("events are recorded before the rollback");
    commit_each(fixture, &["a", "b"]).await;

    let (_, leases) = lease_all(fixture).await;
    let rows = fetch(fixture, &leases, 100).await;
    assert_eq!(sorted_keys(&rows), "a1 a2 b1");
    assert_eq!(stored(fixture).await.len(), 3, "a rolled back message is left");
}

/// Concurrent writers get sequences without gaps or duplicates.
pub async fn concurrent_writers_leave_no_hole<F: StoreFixture>(fixture: &F) {
    let writers = (0..60_u64).map(|n| async move {
        let events = Events::new().with(Probe::noted(format!("a{}", n % 4), n));
        let rolls_back = n % 5 == 0;
        let written = if rolls_back {
            fixture.roll_back(events).await
        } else {
            fixture.commit(events).await
        };
        written.expect("events are recorded");
    });
    join_all(writers).await;
    let mut numbers: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for row in stored(fixture).await {
        numbers.entry(row.aggregate.id).or_default().extend(row.sequence);
    }
    for (id, mut numbers) in numbers {
        numbers.sort_unstable();
        assert_eq!(numbers, (1..=12).collect::<Vec<u64>>(), "numbers of {id}");
    }
}

/// A repeated deduplication key fails the transaction.
pub async fn a_repeated_deduplication_key_is_rejected<F: StoreFixture>(fixture: &F) {
    let keyed = |key: &str, n| Probe::noted("a", n).with_dedup_key(key);
    commit(fixture, Events::new().with(keyed("k", 1))).await;
    let again = Events::new().with(Probe::noted("a", 2)).with(keyed("k", 3));
    assert!(
        fixture.commit(again).await.is_err(),
        "a deduplication key was taken twice"
    );
    let twice = Events::new().with(keyed("l", 4)).with(keyed("l", 5));
    let refused = fixture.commit(twice).await.is_err();
    assert!(refused, "a deduplication key was taken twice in one transaction");
    commit_all(fixture, [keyed("K", 6), keyed("k ", 7)]).await;
    let rolled_back = fixture.roll_back(Events::new().with(keyed("m", 8))).await;
    rolled_back.expect("events are recorded before the rollback");
    commit(fixture, Events::new().with(keyed("m", 9))).await;

    let (_, leases) = lease_all(fixture).await;
    let rows = fetch(fixture, &leases, 100).await;
    assert_eq!(keys(&rows), "a1 a2 a3 a4");
}

/// Unsequenced messages use no sequence.
pub async fn unsequenced_messages_use_no_sequence<F: StoreFixture>(fixture: &F) {
    commit_all(fixture, [Probe::noted("a", 1), Probe::sampled("a", 2)]).await;
    commit_all(fixture, [Probe::noted("a", 3), Probe::sampled("b", 4)]).await;
    let (leases, rows) = take_all(fixture).await;
    assert_eq!(sorted_keys(&rows), "a- a1 a2 b-");
    assert_eq!(settle(fixture, &leases, &rows, published()).await, 4);
    assert_eq!(fetch(fixture, &leases, 100).await, []);
}

/// Large transactions are recorded in order.
pub async fn a_large_batch_keeps_its_order<F: StoreFixture>(fixture: &F) {
    const MESSAGES: u64 = 3_000;
    const AGGREGATES: u64 = 30;
    let probe = |n| Probe::noted(format!("a{}", n % AGGREGATES), n);
    commit_all(fixture, (0..MESSAGES).map(probe)).await;

    let (_, leases) = lease_all(fixture).await;
    let mut next: BTreeMap<String, u64> = BTreeMap::new();
    let mut fetched = 0;
    while fetched < MESSAGES {
        let rows = fetch(fixture, &leases, 1_000).await;
        assert!(
            !rows.is_empty(),
            "only {fetched} of {MESSAGES} messages were fetched"
        );
        for row in &rows {
            let message = row.message.as_ref().expect("the row is readable");
            let probe: Probe = serde_json::from_slice(&message.payload).expect("the payload is a probe");
            let sequence = next.entry(row.aggregate.id.clone()).or_insert(1);
            assert_eq!(message.sequence, Some(*sequence), "of {}", row.aggregate);
            let place = probe.n() / AGGREGATES + 1;
            assert_eq!(place, *sequence, "events of {} are out of order", row.aggregate);
            *sequence += 1;
        }
        fetched += rows.len() as u64;
        assert_eq!(settle(fixture, &leases, &rows, published()).await, rows.len());
    }
    assert_eq!(fetched, MESSAGES);
}

/// Aggregate ids are compared bytewise.
pub async fn odd_aggregate_ids_stay_distinct<F: StoreFixture>(fixture: &F) {
    let ids = odd_aggregate_ids();
    for round in 1..=2 {
        for id in &ids {
            commit_all(fixture, [Probe::noted(id.clone(), round)]).await;
        }
    }
    let (_, leases) = lease_all(fixture).await;
    let rows = fetch(fixture, &leases, 1_000).await;
    let expected: BTreeSet<_> = ids
        .iter()
        .flat_map(|id| [(id.as_str(), Some(1)), (id.as_str(), Some(2))])
        .collect();
    assert_eq!(rows.len(), expected.len());
    assert_eq!(rows.iter().map(key).collect::<BTreeSet<_>>(), expected);

    // Aggregates with similar ids do not affect each other.
    let is_a = |key: &(&str, Option<u64>)| key.0 == "a";
    let first = first(&rows, "a");
    let others: BTreeSet<_> = expected.iter().copied().filter(|key| !is_a(key)).collect();
    settled(fixture, &leases, &first, hindered(Duration::ZERO)).await;
    let rest = fetch(fixture, &leases, 1_000).await;
    assert_eq!(rest.iter().map(key).collect::<BTreeSet<_>>(), others);
    assert_eq!(keys(&fetch_waiting(fixture, &leases).await), "a1 a2");
    let look_alike = [aggregate("A"), aggregate("a "), aggregate("a\u{308}")];
    let request = WaitingRequest {
        excluding: &look_alike,
        ..waiting(&leases)
    };
    assert_eq!(store(fixture).fetch_waiting(request).await.due.len(), 2);
    settled(fixture, &leases, &first, dead(true)).await;
    assert_eq!(blocked(fixture).await.len(), 1);
    let rest = fetch(fixture, &leases, 1_000).await;
    assert_eq!(rest.iter().map(key).collect::<BTreeSet<_>>(), others);
}

/// One invalid event rejects all events of the call.
pub async fn an_invalid_event_is_rejected<F: StoreFixture>(fixture: &F) {
    let impossible = [
        Probe::noted("", 1),
        Probe::noted("a\0b", 1),
        Probe::noted("x".repeat(256), 1),
        Probe::noted("a", 1).with_dedup_key(""),
        Probe::noted("a", 1).with_dedup_key("ü".repeat(256)),
        Probe::noted("a", 1).with_filler("x".repeat(1024 * 1024)),
    ];
    for probe in impossible {
        let events = Events::new().with(Probe::noted("a", 0)).with(probe.clone());
        let refused = fixture.commit(events).await.is_err();
        assert!(refused, "was recorded: {:.200}", format!("{probe:?}"));
    }
    assert_eq!(stored(fixture).await, []);
    commit_each(fixture, &["a"]).await;
    let rows = stored(fixture).await;
    assert_eq!(
        (rows[0].sequence, rows[0].status),
        (Some(1), MessageStatus::Pending)
    );
}
