//! Helpers of the store suite.

use std::collections::HashSet;

use outbox_core::message::{Events, NewMessage, PARTITIONS};

pub(crate) use crate::conformance::probe::{AGGREGATE, Probe, aggregate, odd_aggregate_ids};
pub(crate) use crate::conformance::store;
pub(crate) use crate::store_types::*;

use super::StoreFixture;

/// A lease time that outlasts every test, so that leases expire only through the fixture.
pub(crate) const TTL: Duration = Duration::from_secs(300);

pub(crate) const ALL: u32 = 1_000;

pub(crate) const LONG: Duration = Duration::from_secs(3600);

pub(crate) const SHORT: Duration = Duration::from_millis(300);

pub(crate) async fn lease_all<F: StoreFixture>(fixture: &F) -> (OwnerId, Vec<Lease>) {
    let owner = OwnerId::fresh();
    let mut leases = Vec::new();
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

pub(crate) async fn take_all<F: StoreFixture>(fixture: &F) -> (Vec<Lease>, Vec<FetchedRow>) {
    let (_, leases) = lease_all(fixture).await;
    let rows = fetch(fixture, &leases, ALL).await;
    (leases, rows)
}

pub(crate) async fn with_rows<F: StoreFixture>(fixture: &F, ids: &[&str]) -> (Vec<Lease>, Vec<FetchedRow>) {
    commit_each(fixture, ids).await;
    take_all(fixture).await
}

pub(crate) async fn acquire<F: StoreFixture>(fixture: &F, owner: OwnerId) -> Vec<Lease> {
    store(fixture).acquire(owner, TTL, PARTITIONS).await
}

pub(crate) fn pending(leases: &[Lease]) -> FetchRequest<'_> {
    FetchRequest {
        leases,
        limit: limit(ALL),
        bytes: usize::MAX,
        in_flight: &[],
    }
}

pub(crate) fn waiting(leases: &[Lease]) -> WaitingRequest<'_> {
    WaitingRequest {
        leases,
        limit: limit(ALL),
        per_aggregate: limit(ALL),
        bytes: usize::MAX,
        in_flight: &[],
        excluding: &[],
    }
}

pub(crate) fn limit(limit: u32) -> NonZeroU32 {
    NonZeroU32::new(limit).expect("limits of the suite are positive")
}

/// Settles waiting rows as a relay does, and returns the due rows.
pub(crate) async fn fetch<F: StoreFixture>(fixture: &F, leases: &[Lease], rows: u32) -> Vec<FetchedRow> {
    let request = FetchRequest {
        limit: limit(rows),
        ..pending(leases)
    };
    let fetched = store(fixture).fetch(request).await;
    apply(fixture, leases, &fetched.waits).await;
    fetched.due
}

pub(crate) async fn fetch_waiting<F: StoreFixture>(fixture: &F, leases: &[Lease]) -> Vec<FetchedRow> {
    let fetched = store(fixture).fetch_waiting(waiting(leases)).await;
    apply(fixture, leases, &fetched.waits).await;
    fetched.due
}

const STEPS_MAX: usize = 200;
const STEP: Duration = Duration::from_millis(50);

pub(crate) async fn until_blocks_have_ended<F: StoreFixture>(
    fixture: &F,
    leases: &[Lease],
) -> Vec<FetchedRow> {
    for _ in 0..STEPS_MAX {
        let rows = fetch_waiting(fixture, leases).await;
        if !rows.is_empty() {
            return rows;
        }
        tokio::time::sleep(STEP).await;
    }
    panic!("no block ended: {:?}", blocked(fixture).await);
}

/// Alternates the fetches of pending and waiting messages until a message is due. Waiting messages
/// must not overtake a delayed message that becomes due.
pub(crate) async fn until_something_is_due<F: StoreFixture>(
    fixture: &F,
    leases: &[Lease],
) -> Vec<FetchedRow> {
    for _ in 0..STEPS_MAX {
        let mut rows = fetch(fixture, leases, ALL).await;
        if rows.is_empty() {
            rows = fetch_waiting(fixture, leases).await;
        }
        if !rows.is_empty() {
            return rows;
        }
        tokio::time::sleep(STEP).await;
    }
    panic!("nothing became due: {:?}", blocked(fixture).await);
}

pub(crate) async fn apply<F: StoreFixture>(fixture: &F, leases: &[Lease], settlements: &[Settlement]) {
    if settlements.is_empty() {
        return;
    }
    let accepted = store(fixture).settle(leases, settlements).await;
    assert_eq!(
        accepted,
        settlements.len(),
        "settlements of owned partitions are accepted"
    );
}

pub(crate) async fn settle<F: StoreFixture>(
    fixture: &F,
    leases: &[Lease],
    rows: &[FetchedRow],
    verdict: Verdict,
) -> usize {
    let settlements: Vec<Settlement> = rows.iter().map(|row| row.with_verdict(verdict.clone())).collect();
    store(fixture).settle(leases, &settlements).await
}

pub(crate) async fn settled<F: StoreFixture>(
    fixture: &F,
    leases: &[Lease],
    rows: &[FetchedRow],
    verdict: Verdict,
) {
    let accepted = settle(fixture, leases, rows, verdict.clone()).await;
    assert_eq!(accepted, rows.len(), "{verdict:?} was not accepted");
}

pub(crate) fn published() -> Verdict {
    Verdict::Published { keep: true }
}

pub(crate) fn failed(delay: Duration) -> Verdict {
    Verdict::Blocked {
        delay,
        error: Some("refused".to_owned()),
        attempt: true,
    }
}

pub(crate) fn hindered(delay: Duration) -> Verdict {
    Verdict::Blocked {
        delay,
        error: Some("out of reach".to_owned()),
        attempt: false,
    }
}

pub(crate) fn dead(halt: bool) -> Verdict {
    Verdict::Dead {
        error: "refused for good".to_owned(),
        halt,
    }
}

pub(crate) async fn commit_each<F: StoreFixture>(fixture: &F, ids: &[&str]) {
    for (n, id) in (1..).zip(ids) {
        commit_all(fixture, [Probe::noted(*id, n)]).await;
    }
}

pub(crate) async fn commit<F: StoreFixture>(fixture: &F, events: Events) {
    fixture.commit(events).await.expect("events are recorded");
}

pub(crate) async fn commit_all<F: StoreFixture>(fixture: &F, probes: impl IntoIterator<Item = Probe>) {
    let events = probes.into_iter().fold(Events::new(), Events::with);
    commit(fixture, events).await;
}

pub(crate) async fn written<F: StoreFixture>(fixture: &F, id: OperationId) -> Operation {
    let written = store(fixture).operation(id).await;
    written.expect("the operation is written down")
}

pub(crate) async fn commit_delayed<F: StoreFixture>(fixture: &F, event: Probe, delay: Duration) {
    let message = NewMessage::from_event(&event)
        .expect("the probe can be encoded")
        .available_at(fixture.now().await + delay);
    commit(fixture, Events::new().with(message)).await;
}

pub(crate) fn key(row: &FetchedRow) -> (&str, Option<u64>) {
    let message = row.message.as_ref().ok();
    (&row.aggregate.id, message.and_then(|message| message.sequence))
}

/// Keys of the rows, such as `a1 a2 b-`: aggregate id and sequence, `-` if unsequenced.
pub(crate) fn keys(rows: &[FetchedRow]) -> String {
    joined(rows.iter().map(key))
}

pub(crate) fn sorted_keys(rows: &[FetchedRow]) -> String {
    let mut keys: Vec<_> = rows.iter().map(key).collect();
    keys.sort_unstable();
    joined(keys)
}

fn joined<'r>(keys: impl IntoIterator<Item = (&'r str, Option<u64>)>) -> String {
    let shown = |(id, sequence): (&str, Option<u64>)| match sequence {
        Some(sequence) => format!("{id}{sequence}"),
        None => format!("{id}-"),
    };
    keys.into_iter().map(shown).collect::<Vec<_>>().join(" ")
}

pub(crate) fn sequences(rows: &[FetchedRow]) -> impl Iterator<Item = u64> {
    rows.iter().filter_map(|row| key(row).1)
}

pub(crate) fn ids<'a>(aggregates: impl IntoIterator<Item = &'a Aggregate>) -> Vec<&'a str> {
    aggregates
        .into_iter()
        .map(|aggregate| aggregate.id.as_str())
        .collect()
}

/// Whether `actual` is between half of `expected` and `expected`.
pub(crate) fn is_left_of(expected: Duration, actual: Option<Duration>) -> bool {
    actual.is_some_and(|actual| actual > expected / 2 && actual <= expected)
}

pub(crate) fn of(rows: &[FetchedRow], id: &str) -> Vec<FetchedRow> {
    rows.iter()
        .filter(|row| row.aggregate.id == id)
        .cloned()
        .collect()
}

pub(crate) fn only(rows: &[FetchedRow], id: &str) -> Vec<FetchedRow> {
    let rows = of(rows, id);
    assert_eq!(
        rows.len(),
        1,
        "expected one message of {id}, fetched {}",
        keys(&rows)
    );
    rows
}

pub(crate) fn first(rows: &[FetchedRow], id: &str) -> Vec<FetchedRow> {
    let row = of(rows, id).into_iter().next();
    vec![row.unwrap_or_else(|| panic!("no message of {id} was fetched: {}", keys(rows)))]
}

pub(crate) fn ageless(rows: &[FetchedRow]) -> Vec<FetchedRow> {
    let ageless = |row: &FetchedRow| FetchedRow {
        age: Duration::ZERO,
        ..row.clone()
    };
    rows.iter().map(ageless).collect()
}

pub(crate) fn id_of(row: &FetchedRow) -> MessageId {
    row.message.as_ref().expect("the row is readable").id
}

pub(crate) async fn state_of<F: StoreFixture>(fixture: &F, id: MessageId) -> Option<StoredMessage> {
    list(fixture, &Selection::id(id)).await.pop()
}

pub(crate) async fn status_of<F: StoreFixture>(fixture: &F, row: &FetchedRow) -> MessageStatus {
    let state = state_of(fixture, id_of(row)).await;
    state.expect("the row still exists").status
}

pub(crate) async fn counts<F: StoreFixture>(fixture: &F) -> Backlog {
    Backlog {
        oldest_unpublished: None,
        ..store(fixture).backlog().await
    }
}

pub(crate) async fn stored<F: StoreFixture>(fixture: &F) -> Vec<StoredMessage> {
    list(fixture, &Selection::all()).await
}

pub(crate) async fn list<F: StoreFixture>(fixture: &F, selection: &Selection) -> Vec<StoredMessage> {
    store(fixture).list(selection, NonZeroU32::MAX).await
}

pub(crate) async fn shown<F: StoreFixture>(fixture: &F, row: &FetchedRow) -> StoredMessage {
    let mut listed = list(fixture, &Selection::id(id_of(row))).await;
    assert_eq!(listed.len(), 1, "a message is listed once by its id");
    listed.remove(0)
}

pub(crate) async fn with_blocked<F: StoreFixture>(fixture: &F, ids: &[&str], delay: Duration) -> Vec<Lease> {
    let (leases, rows) = with_rows(fixture, ids).await;
    settled(fixture, &leases, &first(&rows, "a"), hindered(delay)).await;
    fetch(fixture, &leases, ALL).await;
    leases
}

/// Dead-letters the first message of `a`. Its successors do not wait yet.
pub(crate) async fn with_dead<F: StoreFixture>(
    fixture: &F,
    ids: &[&str],
    halt: bool,
) -> (Vec<Lease>, FetchedRow) {
    let (leases, rows) = with_rows(fixture, ids).await;
    let mut rows = first(&rows, "a");
    settled(fixture, &leases, &rows, dead(halt)).await;
    (leases, rows.remove(0))
}

pub(crate) async fn block_each<F: StoreFixture>(fixture: &F, ids: &[&str], delay: Duration) -> Vec<Lease> {
    let (leases, rows) = with_rows(fixture, ids).await;
    let mut blocked = HashSet::new();
    for row in &rows {
        if blocked.insert(&row.aggregate) {
            settled(fixture, &leases, std::slice::from_ref(row), hindered(delay)).await;
        }
    }
    assert_eq!(fetch(fixture, &leases, ALL).await, [], "everything is blocked");
    leases
}

pub(crate) async fn blocked<F: StoreFixture>(fixture: &F) -> Vec<BlockedAggregate> {
    store(fixture).blocked(NonZeroU32::MAX).await
}
