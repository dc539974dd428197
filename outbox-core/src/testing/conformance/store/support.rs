//! What the promises of the store have in common.

use std::num::NonZeroU32;
use std::time::Duration;

use super::{RowState, RowStatus, StoreFixture};
use crate::message::{Aggregate, Events, MessageId, PARTITIONS};
use crate::store::{FetchRequest, FetchedRow, Lease, OutboxStore, OwnerId, Settlement, Verdict};
use crate::testing::conformance::probe::Probe;

/// Longer than any promise takes, so that leases run out only when the fixture makes them.
pub(super) const TTL: Duration = Duration::from_secs(300);

/// More than any promise but the one on large batches records.
pub(super) const ALL: u32 = 1_000;

/// Leases of all partitions, taken by a fresh owner.
pub(super) async fn lease_all<F: StoreFixture>(fixture: &F) -> (OwnerId, Vec<Lease>) {
    let owner = OwnerId::fresh();
    let mut leases = Vec::new();
    // A store may give less than asked for at a time, but must come to an end.
    for _ in 0..PARTITIONS {
        leases.extend(acquire(fixture, owner).await);
        if leases.len() == usize::from(PARTITIONS) {
            return (owner, leases);
        }
    }
    panic!(
        "only {} of {PARTITIONS} free partitions could be leased",
        leases.len()
    );
}

/// What a relay gets when it asks for all partitions.
pub(super) async fn acquire<F: StoreFixture>(fixture: &F, owner: OwnerId) -> Vec<Lease> {
    fixture
        .store()
        .acquire(owner, TTL, PARTITIONS)
        .await
        .expect("acquire answers")
}

pub(super) async fn fetch<F: StoreFixture>(fixture: &F, leases: &[Lease], limit: u32) -> Vec<FetchedRow> {
    fetch_excluding(fixture, leases, limit, &[]).await
}

pub(super) async fn fetch_excluding<F: StoreFixture>(
    fixture: &F,
    leases: &[Lease],
    limit: u32,
    excluding: &[Aggregate],
) -> Vec<FetchedRow> {
    let limit = NonZeroU32::new(limit).expect("limits of the suite are positive");
    fixture
        .store()
        .fetch(FetchRequest {
            leases,
            limit,
            excluding,
        })
        .await
        .expect("fetch answers")
}

/// Settles rows with one verdict and returns how many were accepted.
pub(super) async fn settle<F: StoreFixture>(
    fixture: &F,
    leases: &[Lease],
    rows: &[FetchedRow],
    verdict: Verdict,
) -> usize {
    let settlements: Vec<Settlement> = rows
        .iter()
        .map(|row| Settlement {
            seq: row.seq,
            partition: row.partition,
            verdict: verdict.clone(),
        })
        .collect();
    fixture
        .store()
        .settle(leases, &settlements)
        .await
        .expect("settle answers")
}

pub(super) fn failed() -> Verdict {
    Verdict::Failed {
        error: "refused".to_owned(),
    }
}

pub(super) fn parked(halt: bool) -> Verdict {
    Verdict::Parked {
        error: "refused for good".to_owned(),
        halt,
    }
}

/// Commits one transaction per aggregate id, each with one event, in this order; `n` counts from 1.
pub(super) async fn commit_each<F: StoreFixture>(fixture: &F, ids: &[&str]) {
    for (n, id) in (1..).zip(ids) {
        commit(fixture, Events::new().with(Probe::noted(*id, n))).await;
    }
}

pub(super) async fn commit<F: StoreFixture>(fixture: &F, events: Events) {
    fixture.commit(events).await.expect("events are recorded");
}

/// Aggregate ids and sequences, in the order of the rows.
pub(super) fn keys(rows: &[FetchedRow]) -> Vec<(&str, Option<u64>)> {
    rows.iter()
        .map(|row| {
            (
                row.aggregate.id.as_str(),
                row.message.as_ref().ok().and_then(|message| message.sequence),
            )
        })
        .collect()
}

/// As [`keys`], sorted: for rows of different aggregates, whose order is free.
pub(super) fn sorted_keys(rows: &[FetchedRow]) -> Vec<(&str, Option<u64>)> {
    let mut keys = keys(rows);
    keys.sort_unstable();
    keys
}

/// The rows of one aggregate.
pub(super) fn of<'a>(rows: &'a [FetchedRow], id: &str) -> Vec<&'a FetchedRow> {
    rows.iter().filter(|row| row.aggregate.id == id).collect()
}

/// The only row of an aggregate among those fetched.
pub(super) fn only(rows: &[FetchedRow], id: &str) -> Vec<FetchedRow> {
    let rows: Vec<FetchedRow> = of(rows, id).into_iter().cloned().collect();
    assert_eq!(
        rows.len(),
        1,
        "expected one message of {id}, fetched {:?}",
        keys(&rows)
    );
    rows
}

/// The first row of an aggregate among those fetched.
pub(super) fn first(rows: &[FetchedRow], id: &str) -> Vec<FetchedRow> {
    let row = of(rows, id).into_iter().next().cloned();
    vec![row.unwrap_or_else(|| panic!("no message of {id} was fetched: {:?}", keys(rows)))]
}

pub(super) fn id_of(row: &FetchedRow) -> MessageId {
    row.message.as_ref().expect("the row is readable").id
}

/// Where a message stands; `None` if it is gone, as published ones may be.
pub(super) async fn state_of<F: StoreFixture>(fixture: &F, id: MessageId) -> Option<RowState> {
    fixture.rows().await.into_iter().find(|row| row.id == id)
}

/// Checks that a message is published: kept as such, or gone if the store deletes what it settles.
pub(super) async fn assert_published<F: StoreFixture>(fixture: &F, id: MessageId) {
    let status = state_of(fixture, id).await.map(|row| row.status);
    let expected = fixture
        .capabilities()
        .keeps_published
        .then_some(RowStatus::Published);
    assert_eq!(status, expected, "message {id}");
}
