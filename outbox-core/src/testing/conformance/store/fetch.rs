//! Promises on what a relay is handed: everything that is due, in order, and nothing else.

use std::collections::BTreeMap;
use std::time::Duration;

use super::support::{
    ALL, commit, commit_each, fetch, fetch_excluding, first, id_of, keys, lease_all, of, only, parked,
    settle, sorted_keys,
};
use super::{HeldTransaction, StoreFixture};
use crate::context::MessageContext;
use crate::message::{Events, NewMessage};
use crate::store::Verdict;
use crate::testing::conformance::probe::{Probe, aggregate};
use crate::testing::conformance::skip;

/// A message comes out as it went in, with its number, its time and what the relay needs to settle it.
pub async fn fetch_returns_what_was_recorded<F: StoreFixture>(fixture: &F) {
    let context = MessageContext {
        correlation_id: Some("c-1".to_owned()),
        causation_id: Some("request 17".to_owned()),
        traceparent: Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".to_owned()),
        tracestate: Some("vendor=x".to_owned()),
    };
    let recorded = context
        .scope(async {
            NewMessage::from_event(&Probe::noted("ü", 1).with_filler("NUL \0, ü, 😀, \\u0000, 1.10"))
        })
        .await
        .and_then(|message| message.with_header("tenant", "Müller & Söhne \"100%\" 😀"))
        .expect("the probe can be encoded");
    let before = fixture.now().await;
    commit(fixture, Events::new().with(recorded.clone())).await;
    let after = fixture.now().await;

    let (_, leases) = lease_all(fixture).await;
    let row = only(&fetch(fixture, &leases, 10).await, "ü").remove(0);
    let message = row.message.expect("the row is readable");
    // Clocks of databases tick in whole milliseconds at worst, and may stand for the statement or for the transaction.
    let tick = Duration::from_secs(1);
    assert!(
        (before - tick..=after + tick).contains(&message.created_at),
        "recorded at {}",
        message.created_at
    );
    assert_eq!(message.created_at.offset(), time::UtcOffset::UTC);
    let expected = recorded.into_message(Some(1), message.created_at);
    assert_eq!(message, expected);
    assert_eq!(row.aggregate, expected.aggregate);
    assert_eq!(row.partition, expected.aggregate.partition());
    assert_eq!(row.attempts, 0);
}

/// Messages of one aggregate come in the order of their numbers, 1, 2, 3 … without holes.
pub async fn fetch_keeps_the_order_of_each_aggregate<F: StoreFixture>(fixture: &F) {
    for n in 0..20 {
        for id in ["a", "b", "c", "d", "e"] {
            commit(fixture, Events::new().with(Probe::noted(id, n))).await;
        }
    }
    let (_, leases) = lease_all(fixture).await;
    let rows = fetch(fixture, &leases, ALL).await;
    let mut sequences: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
    for (id, sequence) in keys(&rows) {
        sequences.entry(id).or_default().extend(sequence);
    }
    assert_eq!(sequences.len(), 5);
    for (id, sequences) in sequences {
        assert_eq!(sequences, (1..=20).collect::<Vec<_>>(), "messages of {id}");
    }
}

/// `limit` bounds a fetch, and the next one goes on behind it without leaving anything out.
pub async fn a_limited_fetch_continues_where_it_stopped<F: StoreFixture>(fixture: &F) {
    for n in 0..10 {
        commit(
            fixture,
            Events::new()
                .with(Probe::noted("a", n))
                .with(Probe::noted("b", n))
                .with(Probe::noted("c", n)),
        )
        .await;
    }
    let (_, leases) = lease_all(fixture).await;
    let mut next: BTreeMap<String, u64> = BTreeMap::new();
    for _ in 0..30 {
        let rows = fetch(fixture, &leases, 7).await;
        assert!(rows.len() <= 7, "asked for 7 messages, got {}", rows.len());
        assert_eq!(
            keys(&rows),
            keys(&fetch(fixture, &leases, 7).await),
            "fetching alone changes nothing"
        );
        for (id, sequence) in keys(&rows) {
            let expected = next.entry(id.to_owned()).or_insert(1);
            assert_eq!(sequence, Some(*expected), "of {id}");
            *expected += 1;
        }
        settle(fixture, &leases, &rows, Verdict::Published).await;
        if rows.is_empty() {
            break;
        }
    }
    assert_eq!(next.into_values().collect::<Vec<_>>(), [11, 11, 11]);
}

/// Messages of partitions that are not among the leases are left alone.
pub async fn only_leased_partitions_are_fetched<F: StoreFixture>(fixture: &F) {
    let mut events = Events::new();
    for n in 0..200 {
        events.push(Probe::noted(format!("a{n}"), n));
    }
    commit(fixture, events).await;
    let (_, leases) = lease_all(fixture).await;
    let (some, rest) = leases.split_at(leases.len() / 2);
    let mut fetched = 0;
    for leases in [some, rest] {
        let rows = fetch(fixture, leases, ALL).await;
        for row in &rows {
            assert!(
                leases.iter().any(|lease| lease.partition == row.partition),
                "{} is not leased",
                row.partition
            );
            assert_eq!(row.partition, row.aggregate.partition());
        }
        fetched += rows.len();
    }
    assert_eq!(fetched, 200);
    assert_eq!(fetch(fixture, &[], ALL).await, []);
}

/// A transaction that wrote first and commits last is published all the same, although newer messages are settled already. Relays that
/// remember a position in the table lose such messages.
pub async fn a_late_commit_is_not_skipped<F: StoreFixture>(fixture: &F) {
    if !fixture.capabilities().overlapping_transactions {
        return skip(
            "a_late_commit_is_not_skipped",
            "this store has one writer at a time",
        );
    }
    let (_, leases) = lease_all(fixture).await;
    let late = fixture
        .hold(Events::new().with(Probe::noted("late", 1)))
        .await
        .expect("events are recorded");
    let never = fixture
        .hold(Events::new().with(Probe::noted("never", 1)))
        .await
        .expect("events are recorded");
    commit_each(fixture, &["early"]).await;
    let rows = fetch(fixture, &leases, ALL).await;
    assert_eq!(
        keys(&rows),
        [("early", Some(1))],
        "uncommitted messages are invisible and hold nobody up"
    );
    settle(fixture, &leases, &rows, Verdict::Published).await;

    late.commit().await;
    never.roll_back().await;
    assert_eq!(keys(&fetch(fixture, &leases, ALL).await), [("late", Some(1))]);
}

/// What is settled as published is not handed out again.
pub async fn published_messages_are_not_fetched_again<F: StoreFixture>(fixture: &F) {
    commit_each(fixture, &["a", "a", "b"]).await;
    let (_, leases) = lease_all(fixture).await;
    let rows = fetch(fixture, &leases, ALL).await;
    let done = first(&rows, "a");
    assert_eq!(settle(fixture, &leases, &done, Verdict::Published).await, 1);
    let rest = fetch(fixture, &leases, ALL).await;
    assert_eq!(sorted_keys(&rest), [("a", Some(2)), ("b", Some(1))]);
    assert_eq!(settle(fixture, &leases, &rest, Verdict::Published).await, 2);
    assert_eq!(fetch(fixture, &leases, ALL).await, []);
}

/// Behind a message that was parked with `halt`, its aggregate waits, also with what is recorded later; others go on.
pub async fn a_halted_aggregate_waits_and_others_flow<F: StoreFixture>(fixture: &F) {
    commit_each(fixture, &["a", "a", "b", "a", "b"]).await;
    let (_, leases) = lease_all(fixture).await;
    let rows = fetch(fixture, &leases, ALL).await;
    assert_eq!(
        settle(fixture, &leases, &first(&rows, "a"), parked(true)).await,
        1
    );
    commit_each(fixture, &["a", "c"]).await;
    let rest = fetch(fixture, &leases, ALL).await;
    assert_eq!(
        sorted_keys(&rest),
        [("b", Some(1)), ("b", Some(2)), ("c", Some(1))]
    );
}

/// Without `halt`, only the parked message itself is held back.
pub async fn a_parked_message_without_halt_lets_its_aggregate_flow<F: StoreFixture>(fixture: &F) {
    commit_each(fixture, &["a", "a", "b", "a"]).await;
    let (_, leases) = lease_all(fixture).await;
    let rows = fetch(fixture, &leases, ALL).await;
    assert_eq!(
        settle(fixture, &leases, &first(&rows, "a"), parked(false)).await,
        1
    );
    let rest = fetch(fixture, &leases, ALL).await;
    assert_eq!(
        sorted_keys(&rest),
        [("a", Some(2)), ("a", Some(3)), ("b", Some(1))]
    );
}

/// The relay can ask for everything but the aggregates that back off.
pub async fn excluded_aggregates_are_left_out<F: StoreFixture>(fixture: &F) {
    commit_each(fixture, &["a", "b", "a", "c", "b"]).await;
    let (_, leases) = lease_all(fixture).await;
    let rows = fetch_excluding(
        fixture,
        &leases,
        ALL,
        &[aggregate("a"), aggregate("b"), aggregate("x")],
    )
    .await;
    assert_eq!(keys(&rows), [("c", Some(1))]);
    // As many as a relay may have waiting after an outage.
    let many: Vec<_> = (0..500)
        .map(|n| aggregate(format!("x{n}")))
        .chain([aggregate("a")])
        .collect();
    let rows = fetch_excluding(fixture, &leases, ALL, &many).await;
    assert_eq!(
        sorted_keys(&rows),
        [("b", Some(1)), ("b", Some(2)), ("c", Some(1))]
    );
    assert_eq!(fetch(fixture, &leases, ALL).await.len(), 5);
}

/// A delayed message is not due before its time, and nothing of its aggregate overtakes it.
pub async fn a_delayed_message_holds_back_its_aggregate<F: StoreFixture>(fixture: &F) {
    let now = fixture.now().await;
    let delayed = |id: &str, delay: Duration| {
        NewMessage::from_event(&Probe::noted(id, 0))
            .expect("the probe can be encoded")
            .available_at(now + delay)
    };
    commit_each(fixture, &["a", "b"]).await;
    let hour = Duration::from_secs(3600);
    commit(
        fixture,
        Events::new()
            .with(delayed("a", hour))
            .with(delayed("c", hour))
            .with(delayed("past", Duration::ZERO)),
    )
    .await;
    let moment = Duration::from_secs(3);
    commit(fixture, Events::new().with(delayed("soon", moment))).await;
    commit_each(fixture, &["a", "b", "c", "soon", "past"]).await;
    let (_, leases) = lease_all(fixture).await;
    let due = [
        ("a", Some(1)),
        ("b", Some(1)),
        ("b", Some(2)),
        ("past", Some(1)),
        ("past", Some(2)),
    ];
    assert_eq!(sorted_keys(&fetch(fixture, &leases, ALL).await), due);

    // Some clocks tick in whole seconds, so the moment is awaited rather than computed.
    let mut rows = Vec::new();
    for _ in 0..100 {
        rows = fetch(fixture, &leases, ALL).await;
        if !of(&rows, "soon").is_empty() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let soon: Vec<_> = keys(&rows).into_iter().filter(|(id, _)| *id == "soon").collect();
    assert_eq!(
        soon,
        [("soon", Some(1)), ("soon", Some(2))],
        "a delayed message became due"
    );
    assert_eq!(rows.len(), due.len() + soon.len());
}

/// A row that cannot be read is handed out as such, so that the relay can park it; it neither fails the fetch nor hides others.
pub async fn an_unreadable_row_is_returned_as_such<F: StoreFixture>(fixture: &F) {
    commit_each(fixture, &["a", "a", "b"]).await;
    let (_, leases) = lease_all(fixture).await;
    let broken = id_of(&first(&fetch(fixture, &leases, ALL).await, "a")[0]);
    fixture.corrupt(broken).await;

    let rows = fetch(fixture, &leases, ALL).await;
    let of_a = of(&rows, "a");
    assert!(
        of_a[0].message.is_err(),
        "the unreadable row comes first and says so: {of_a:?}"
    );
    assert!(
        only(&rows, "b")[0].message.is_ok(),
        "readable rows are unaffected"
    );
    assert_eq!(
        settle(fixture, &leases, &first(&rows, "a"), parked(false)).await,
        1
    );
    let rest = fetch(fixture, &leases, ALL).await;
    assert_eq!(sorted_keys(&rest), [("a", Some(2)), ("b", Some(1))]);
}
