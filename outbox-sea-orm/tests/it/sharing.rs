//! A relay that shares the partitions gets exactly its own messages, in order.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use outbox_core::store::RowKey;
use outbox_core::{
    FetchRequest, Fetched, FetchedRow, Lease, MessageId, NewMessage, OutboxStore, Verdict, WaitingRequest,
};
use outbox_testing::conformance::probe::{Probe, aggregate};
use time::OffsetDateTime;

use crate::support::TestDb;

crate::on_every_backend!(
    sharing_relay_fetches_all_its_messages_in_order,
    backlog_in_one_partition_makes_progress,
    sharing_relay_finds_its_due_messages,
    largest_batch_may_be_in_flight,
);

async fn half(test: &TestDb) -> Vec<Lease> {
    let (_, leases) = test.lease_all().await;
    leases
        .into_iter()
        .filter(|lease| lease.partition % 2 == 0)
        .collect()
}

fn owns(leases: &[Lease], row: &FetchedRow) -> bool {
    leases.iter().any(|lease| lease.partition == row.partition)
}

async fn scan(test: &TestDb, leases: &[Lease], limit: u32, in_flight: &[FetchedRow]) -> Fetched {
    let in_flight: Vec<RowKey> = in_flight.iter().map(FetchedRow::key).collect();
    let request = FetchRequest {
        leases,
        limit: limit.try_into().unwrap(),
        bytes: usize::MAX,
        in_flight: &in_flight,
    };
    test.store().fetch(request).await.unwrap()
}

async fn fetch_all_in_flight(test: &TestDb, leases: &[Lease], limit: u32) -> Vec<FetchedRow> {
    let mut in_flight: Vec<FetchedRow> = Vec::new();
    loop {
        let fetched = scan(test, leases, limit, &in_flight).await;
        assert!(
            !fetched.due.is_empty() || !fetched.more,
            "there is more, and nothing of it comes"
        );
        if fetched.due.is_empty() {
            return in_flight;
        }
        assert!(fetched.due.is_sorted_by_key(|row| row.row_id));
        in_flight.extend(fetched.due);
    }
}

async fn sharing_relay_fetches_all_its_messages_in_order(test: TestDb) {
    let events: Vec<_> = (0..300_u64)
        .map(|n| Probe::noted(format!("a{}", n % 40), n))
        .collect();
    for events in events.chunks(100) {
        test.record(events.to_vec()).await.unwrap();
    }
    let leases = half(&test).await;
    let everything = test.fetch_all().await;
    let expected: HashSet<i64> = everything
        .iter()
        .filter(|row| owns(&leases, row))
        .map(|row| row.row_id)
        .collect();
    assert!(!expected.is_empty() && expected.len() < everything.len());
    for limit in [1, 50, 1_000] {
        let rows = fetch_all_in_flight(&test, &leases, limit).await;
        let row_ids: HashSet<i64> = rows.iter().map(|row| row.row_id).collect();
        assert_eq!(
            (rows.len(), &row_ids),
            (expected.len(), &expected),
            "limit {limit}"
        );
        let mut last = BTreeMap::new();
        for row in &rows {
            let sequence = row.message.as_ref().unwrap().sequence;
            let before = last.insert(row.aggregate.id.clone(), sequence);
            assert!(
                before < Some(sequence),
                "{:?} comes after {before:?}",
                row.aggregate
            );
        }
    }
}

async fn backlog_in_one_partition_makes_progress(test: TestDb) {
    let events: Vec<_> = (0..400).map(|n| Probe::noted("a", n)).collect();
    test.record(events).await.unwrap();
    let (_, mut leases) = test.lease_all().await;
    let partition = aggregate("a").partition();
    leases.retain(|lease| lease.partition == partition || lease.partition < 20);
    let rows = fetch_all_in_flight(&test, &leases, 100).await;
    assert_eq!(rows.len(), 400);
    assert!(rows.is_sorted_by_key(|row| row.row_id));
}

async fn sharing_relay_finds_its_due_messages(test: TestDb) {
    let events: Vec<_> = (0..40).map(|n| Probe::noted(format!("a{n}"), n)).collect();
    test.record(events).await.unwrap();
    let soon = OffsetDateTime::now_utc() + time::Duration::milliseconds(300);
    let alone = (0..40).map(|n| {
        let event = Probe::sampled(format!("s{n}"), n);
        NewMessage::from_event(&event).unwrap().available_at(soon)
    });
    test.record(alone.collect::<Vec<_>>()).await.unwrap();
    let (_, all) = test.lease_all().await;
    let fetched = test.scan(&all, 1_000).await;
    test.store().settle(&all, &fetched.waits).await.unwrap();
    let blocked = Verdict::Blocked {
        delay: Duration::ZERO,
        error: None,
        attempt: false,
    };
    test.settle(&all, &fetched.due, blocked).await;
    let mine: Vec<Lease> = all
        .iter()
        .copied()
        .filter(|lease| lease.partition % 2 == 0)
        .collect();
    let theirs: Vec<Lease> = all
        .iter()
        .copied()
        .filter(|lease| lease.partition % 2 == 1)
        .collect();
    let everything = until_due(&test, &all, 80).await;
    let expected: HashSet<RowKey> = everything
        .iter()
        .filter(|row| owns(&mine, row))
        .map(FetchedRow::key)
        .collect();
    let own: HashSet<RowKey> = look_waiting(&test, &mine, &[])
        .await
        .iter()
        .map(FetchedRow::key)
        .collect();
    assert_eq!(own, expected);
    assert_eq!(
        look_waiting(&test, &theirs, &[]).await.len() + own.len(),
        everything.len()
    );
    let in_flight: Vec<RowKey> = own.iter().copied().take(own.len() / 2).collect();
    let rest: HashSet<RowKey> = look_waiting(&test, &mine, &in_flight)
        .await
        .iter()
        .map(FetchedRow::key)
        .collect();
    assert_eq!(rest.len() + in_flight.len(), own.len());
    assert!(rest.is_disjoint(&in_flight.into_iter().collect()));
}

/// MySQL allows 65,535 values per statement.
async fn largest_batch_may_be_in_flight(test: TestDb) {
    test.record([Probe::noted("a", 1)]).await.unwrap();
    let (_, all) = test.lease_all().await;
    let other = |row_id| RowKey {
        row_id,
        id: Some(MessageId::fresh()),
    };
    let in_flight: Vec<RowKey> = (1_000..56_000).map(other).collect();
    for leases in [&all[..], &all[..63]] {
        let request = outbox_core::FetchRequest {
            leases,
            limit: 10.try_into().unwrap(),
            bytes: usize::MAX,
            in_flight: &in_flight,
        };
        assert_eq!(test.store().fetch(request).await.unwrap().due.len(), 1);
    }
}

async fn look_waiting(test: &TestDb, leases: &[Lease], in_flight: &[RowKey]) -> Vec<FetchedRow> {
    let request = WaitingRequest {
        leases,
        limit: 1_000.try_into().unwrap(),
        per_aggregate: 10.try_into().unwrap(),
        bytes: usize::MAX,
        in_flight,
        excluding: &[],
    };
    test.store().fetch_waiting(request).await.unwrap().due
}

async fn until_due(test: &TestDb, leases: &[Lease], count: usize) -> Vec<FetchedRow> {
    let wait = async {
        loop {
            let due = look_waiting(test, leases, &[]).await;
            if due.len() == count {
                return due;
            }
            tokio::task::yield_now().await;
        }
    };
    let outcome = tokio::time::timeout(Duration::from_secs(60), wait).await;
    outcome.expect("everything is due in time")
}
