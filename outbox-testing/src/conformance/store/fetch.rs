//! Rules for fetches: a fetch returns all due messages in order, and nothing else.

use std::collections::BTreeMap;

use outbox_core::context::MessageContext;
use outbox_core::message::{Events, NewMessage};

use super::support::*;
use super::{OpenTransaction, StoreFixture};
use crate::not_applicable;

/// A fetched message equals the recorded one.
pub async fn fetch_returns_recorded_messages<F: StoreFixture>(fixture: &F) {
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
    let tick = Duration::from_secs(1);
    let recorded_at = message.created_at;
    assert!(
        (before - tick..=after + tick).contains(&recorded_at),
        "recorded at {recorded_at}"
    );
    assert_eq!(recorded_at.offset(), time::UtcOffset::UTC);
    let expected = recorded.into_message(Some(1), message.created_at);
    assert_eq!(*message, expected);
    assert_eq!(row.aggregate, expected.aggregate);
    assert_eq!(row.partition, expected.aggregate.partition());
    assert_eq!((row.attempts, row.failures), (0, 0));
    assert!(row.sequenced && !row.waited);
    assert!(row.age < LONG, "recorded {:?} ago", row.age);
}

/// `limit` bounds a fetch, and the next fetch continues.
pub async fn a_limited_fetch_continues_where_it_stopped<F: StoreFixture>(fixture: &F) {
    for n in 0..10 {
        commit_all(fixture, ["a", "b", "c"].map(|id| Probe::noted(id, n))).await;
    }
    let (_, leases) = lease_all(fixture).await;
    let mut next: BTreeMap<String, u64> = BTreeMap::new();
    for _ in 0..30 {
        let request = FetchRequest {
            limit: limit(7),
            ..pending(&leases)
        };
        let fetched = store(fixture).fetch(request).await;
        let rows = fetched.due;
        if rows.len() < 7 {
            assert!(!fetched.more, "no bound ended the fetch");
        }
        assert!(rows.len() <= 7, "asked for 7 messages, got {}", rows.len());
        let again = keys(&fetch(fixture, &leases, 7).await);
        assert_eq!(keys(&rows), again, "a fetch changes nothing");
        for (id, sequence) in rows.iter().map(key) {
            let expected = next.entry(id.to_owned()).or_insert(1);
            assert_eq!(sequence, Some(*expected), "of {id}");
            *expected += 1;
        }
        settle(fixture, &leases, &rows, published()).await;
        if rows.is_empty() {
            break;
        }
    }
    assert_eq!(next.into_values().collect::<Vec<_>>(), [11, 11, 11]);
}

/// A fetch skips partitions without a lease.
pub async fn only_leased_partitions_are_fetched<F: StoreFixture>(fixture: &F) {
    commit_all(fixture, (0..200).map(|n| Probe::noted(format!("a{n}"), n))).await;
    let (_, leases) = lease_all(fixture).await;
    let (some, rest) = leases.split_at(leases.len() / 2);
    let mut fetched = 0;
    for leases in [some, rest] {
        let rows = fetch(fixture, leases, ALL).await;
        for row in &rows {
            let is_leased = leases.iter().any(|lease| lease.partition == row.partition);
            assert!(is_leased, "{} is not leased", row.partition);
            assert_eq!(row.partition, row.aggregate.partition());
        }
        fetched += rows.len();
    }
    assert_eq!(fetched, 200);
    assert_eq!(fetch(fixture, &[], ALL).await, []);
}

/// A fetch returns a message that commits late. A relay with a stored table position would lose it.
pub async fn a_late_commit_is_not_skipped<F: StoreFixture>(fixture: &F) {
    if !fixture.overlapping_transactions() {
        return not_applicable("this store has one writer at a time");
    }
    let (_, leases) = lease_all(fixture).await;
    let begin = async |id: &str| {
        let begun = fixture.begin(Events::new().with(Probe::noted(id, 1))).await;
        begun.expect("events are recorded")
    };
    let (late, never) = (begin("late").await, begin("never").await);
    commit_each(fixture, &["early"]).await;
    let rows = fetch(fixture, &leases, ALL).await;
    assert_eq!(
        keys(&rows),
        "early1",
        "an uncommitted message is visible or delays others"
    );
    settle(fixture, &leases, &rows, published()).await;

    late.commit().await;
    never.roll_back().await;
    assert_eq!(keys(&fetch(fixture, &leases, ALL).await), "late1");
}

/// A fetch skips rows that are in flight.
pub async fn rows_in_flight_are_skipped<F: StoreFixture>(fixture: &F) {
    let (leases, rows) = with_rows(fixture, &["a", "b", "a", "c", "a"]).await;
    let in_flight = [first(&rows, "a")[0].key(), only(&rows, "c")[0].key()];
    let request = FetchRequest {
        in_flight: &in_flight,
        ..pending(&leases)
    };
    let rest = store(fixture).fetch(request).await;
    assert_eq!(sorted_keys(&rest.due), "a2 a3 b1");
    let all: Vec<RowKey> = rows.iter().map(FetchedRow::key).collect();
    commit_each(fixture, &["d"]).await;
    let request = FetchRequest {
        in_flight: &all,
        limit: limit(1),
        ..pending(&leases)
    };
    assert_eq!(keys(&store(fixture).fetch(request).await.due), "d1");
}

/// Messages are fetched in sequence after the row id counter was set back.
pub async fn a_row_id_counter_set_back_keeps_the_order<F: StoreFixture>(fixture: &F) {
    for _ in 0..3 {
        commit_each(fixture, &["a", "b", "a", "b", "a", "c"]).await;
        fixture.set_back_row_ids().await;
        commit_each(fixture, &["a", "b", "c", "a", "d"]).await;
    }
    let (_, leases) = lease_all(fixture).await;
    let (mut order, mut flying) = (BTreeMap::<String, Vec<u64>>::new(), Vec::new());
    for step in 0.. {
        let mut in_flight: Vec<RowKey> = flying.iter().map(FetchedRow::key).collect();
        in_flight.sort_unstable();
        let request = FetchRequest {
            limit: limit(1 + step % 5),
            in_flight: &in_flight,
            ..pending(&leases)
        };
        let fetched = store(fixture).fetch(request).await;
        assert_eq!(fetched.waits, []);
        for row in &fetched.due {
            let sequence = row.message.as_ref().expect("the row is readable").sequence;
            let numbers = order.entry(row.aggregate.id.clone()).or_default();
            numbers.push(sequence.expect("probes are sequenced"));
        }
        let has_ended = fetched.due.is_empty();
        flying.extend(fetched.due);
        let done = flying.split_off(if has_ended { 0 } else { flying.len() / 2 });
        settled(fixture, &leases, &done, published()).await;
        if has_ended {
            break;
        }
    }
    for (id, numbers) in order {
        let all: Vec<u64> = (1..=numbers.len() as u64).collect();
        assert_eq!(numbers, all, "of {id}");
    }
}

/// A new owner fetches messages in flight of the former owner first.
pub async fn messages_in_flight_of_a_former_owner_come_first<F: StoreFixture>(fixture: &F) {
    let (_, rows) = with_rows(fixture, &["a", "a"]).await;
    assert_eq!(rows.len(), 2);
    fixture.set_back_row_ids().await;
    commit_each(fixture, &["a"]).await;
    fixture.expire_leases().await;
    let (_, leases) = lease_all(fixture).await;
    let (mut numbers, mut in_flight) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        let request = FetchRequest {
            limit: limit(1),
            in_flight: &in_flight,
            ..pending(&leases)
        };
        let due = store(fixture).fetch(request).await.due;
        for row in &due {
            numbers.push(row.message.as_ref().expect("the row is readable").sequence);
        }
        in_flight.extend(due.iter().map(FetchedRow::key));
        in_flight.sort_unstable();
    }
    assert_eq!(numbers, [Some(1), Some(2), Some(3)]);
}

/// A byte bound ends a fetch. The result includes the row that exceeds the bound.
pub async fn a_byte_bound_ends_a_fetch<F: StoreFixture>(fixture: &F) {
    let large = |n| Probe::noted("a", n).with_filler("x".repeat(1000));
    for n in 0..4 {
        commit(fixture, Events::new().with(large(n))).await;
    }
    let (_, leases) = lease_all(fixture).await;
    for (bytes, expected) in [(0, 1), (1, 1), (1500, 2), (2500, 3)] {
        let request = FetchRequest {
            bytes,
            ..pending(&leases)
        };
        let fetched = store(fixture).fetch(request).await;
        assert_eq!(
            (fetched.due.len(), fetched.more),
            (expected, true),
            "{bytes} bytes"
        );
    }
    let fetched = store(fixture).fetch(pending(&leases)).await;
    assert_eq!((fetched.due.len(), fetched.more), (4, false));
}

/// A fetch returns an unreadable row as an error, and other rows unchanged.
pub async fn an_unreadable_row_is_returned_as_an_error<F: StoreFixture>(fixture: &F) {
    commit_each(fixture, &["a", "a", "b"]).await;
    let (_, leases) = lease_all(fixture).await;
    let broken = id_of(&first(&fetch(fixture, &leases, ALL).await, "a")[0]);
    fixture.corrupt(broken).await;

    let rows = fetch(fixture, &leases, ALL).await;
    let of_a = of(&rows, "a");
    assert!(
        of_a[0].message.is_err(),
        "the unreadable row comes first: {of_a:?}"
    );
    assert!(
        only(&rows, "b")[0].message.is_ok(),
        "readable rows are unaffected"
    );
    assert_eq!(settle(fixture, &leases, &first(&rows, "a"), dead(false)).await, 1);
    let rest = fetch(fixture, &leases, ALL).await;
    assert_eq!(sorted_keys(&rest), "a2 b1");
}
