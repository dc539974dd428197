//! A relay that owns only some partitions gets exactly its own messages, in order.

use std::collections::{BTreeMap, HashSet};

use outbox_core::store::RowKey;
use outbox_core::{FetchRequest, Fetched, FetchedRow, Lease, MessageId, OutboxStore};
use outbox_testing::conformance::probe::{Probe, aggregate};

use crate::support::TestDb;

crate::on_every_backend!(
    sharing_relay_fetches_all_its_messages_in_order,
    backlog_in_one_partition_makes_progress,
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

/// The list of rows in flight must fit into MySQL's 65,535 values per statement.
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
