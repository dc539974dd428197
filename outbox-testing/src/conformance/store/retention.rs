//! Rules for published messages: retention, reading and replay.

use std::collections::BTreeSet;
use std::sync::Arc;

use outbox_core::message::Events;
use tokio::time::Instant;

use super::StoreFixture;
use super::support::*;

fn older_than(older_than: Duration) -> PurgeRequest {
    PurgeRequest {
        older_than: Some(older_than),
        keys_older_than: LONG,
        after: None,
        limit: NonZeroU32::MAX,
    }
}

async fn with_published<F: StoreFixture>(fixture: &F, count: u64) -> Vec<FetchedRow> {
    commit_all(fixture, (0..count).map(|n| Probe::noted(format!("p{n}"), n))).await;
    let (owner, leases) = lease_all(fixture).await;
    let rows = fetch(fixture, &leases, ALL).await;
    settled(fixture, &leases, &rows, published()).await;
    store(fixture).leave(owner).await;
    rows
}

/// The retention starts when a message is published.
pub async fn a_recently_published_message_is_not_purged<F: StoreFixture>(fixture: &F) {
    for kept in [2, 4, 8, 16, 32].map(Duration::from_secs) {
        commit_each(fixture, &["a"]).await;
        tokio::time::sleep(kept + Duration::from_millis(1100)).await;
        store(fixture).purge(older_than(Duration::ZERO)).await;
        let (owner, leases) = lease_all(fixture).await;
        let rows = fetch(fixture, &leases, ALL).await;
        let start = Instant::now();
        settled(fixture, &leases, &rows, published()).await;
        let purged = store(fixture).purge(older_than(kept)).await;
        store(fixture).leave(owner).await;
        if start.elapsed() < kept / 4 {
            assert_eq!(purged.deleted, 0);
            assert_eq!(status_of(fixture, &rows[0]).await, MessageStatus::Published);
            return;
        }
    }
    panic!("this machine is too busy to settle and purge within eight seconds");
}

/// A deduplication key is rejected for its full retention, even after its message is deleted.
pub async fn a_deduplication_key_outlives_its_message<F: StoreFixture>(fixture: &F) {
    let keyed = || Events::new().with(Probe::noted("a", 1).with_dedup_key("k"));
    commit(fixture, keyed()).await;
    let (leases, rows) = take_all(fixture).await;
    settled(fixture, &leases, &rows, Verdict::Published { keep: false }).await;
    assert_eq!(stored(fixture).await, []);
    let refused = "a save that is repeated would take effect twice";
    assert!(fixture.commit(keyed()).await.is_err(), "{refused}");

    let kept = || Events::new().with(Probe::noted("a", 2).with_dedup_key("kept"));
    commit(fixture, kept()).await;
    let rows = fetch(fixture, &leases, ALL).await;
    settled(fixture, &leases, &rows, published()).await;
    assert!(fixture.commit(kept()).await.is_err(), "{refused}");
    tokio::time::sleep(Duration::from_millis(2100)).await;
    assert_eq!(store(fixture).purge(older_than(Duration::ZERO)).await.deleted, 1);
    assert_eq!(stored(fixture).await, []);
    assert!(fixture.commit(kept()).await.is_err(), "{refused}");

    let keys = |keys_older_than| PurgeRequest {
        older_than: None,
        keys_older_than,
        after: None,
        limit: NonZeroU32::MAX,
    };
    store(fixture).purge(keys(LONG)).await;
    assert!(fixture.commit(keyed()).await.is_err(), "{refused}");
    tokio::time::sleep(Duration::from_millis(20)).await;
    store(fixture).purge(keys(Duration::ZERO)).await;
    commit(fixture, keyed()).await;
    commit(fixture, kept()).await;
}

/// A paged purge deletes all old published messages, and no others.
pub async fn purge_continues_until_it_ends<F: StoreFixture>(fixture: &F) {
    with_published(fixture, 20).await;
    let (leases, rows) = with_rows(fixture, &["pending", "waiting", "dead"]).await;
    settled(fixture, &leases, &only(&rows, "waiting"), hindered(LONG)).await;
    settled(fixture, &leases, &only(&rows, "dead"), dead(true)).await;
    // Some clocks have a resolution of one second.
    tokio::time::sleep(Duration::from_millis(2100)).await;
    assert_eq!(store(fixture).purge(older_than(LONG)).await.deleted, 0);
    let (mut deleted, mut after) = (0, None);
    for _ in 0..20 {
        let request = PurgeRequest {
            older_than: Some(Duration::ZERO),
            keys_older_than: LONG,
            after,
            limit: limit(3),
        };
        let purged = store(fixture).purge(request).await;
        assert!(purged.deleted <= 3, "the page deleted more than its limit");
        deleted += purged.deleted;
        after = purged.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(after, None, "the purge never ends");
    assert_eq!(deleted, 20);
    let left = stored(fixture).await;
    let left = BTreeSet::from_iter(ids(left.iter().map(|row| &row.aggregate)));
    assert_eq!(left, BTreeSet::from(["pending", "waiting", "dead"]));
}

async fn page<F: StoreFixture>(
    fixture: &F,
    (from, until): (OffsetDateTime, OffsetDateTime),
    after: Option<MessageId>,
) -> Vec<Message> {
    store(fixture).published(from, until, after, limit(4)).await
}

/// Published messages are read in pages, each once.
pub async fn published_messages_are_read_in_pages<F: StoreFixture>(fixture: &F) {
    let rows = with_published(fixture, 10).await;
    fixture.corrupt(id_of(&rows[3])).await;
    commit_each(fixture, &["pending"]).await;
    let now = fixture.now().await;
    let (from, until) = (now - LONG, now + LONG);
    let (mut read, mut after) = (Vec::new(), None);
    loop {
        let page = page(fixture, (from, until), after).await;
        let Some(last) = page.last() else { break };
        assert!(page.len() <= 4);
        after = Some(last.id);
        read.extend(page);
        assert!(read.len() < 20, "pages repeat messages");
    }
    let mut expected: Vec<Message> = rows
        .into_iter()
        .enumerate()
        .filter(|(n, _)| *n != 3)
        .filter_map(|(_, row)| row.message.ok().map(Arc::unwrap_or_clone))
        .collect();
    expected.sort_by_key(|message| message.id);
    assert_eq!(read, expected);
    assert_eq!(page(fixture, (until, until + LONG), None).await, []);
    assert_eq!(page(fixture, (from - LONG, from), None).await, []);
}

/// Messages recorded after a replay are fetched after the replayed copies.
pub async fn later_messages_stay_behind_replayed_copies<F: StoreFixture>(fixture: &F) {
    commit_each(fixture, &["a", "a"]).await;
    let (_, leases) = lease_all(fixture).await;
    let originals = fetch(fixture, &leases, ALL).await;
    settled(fixture, &leases, &originals, published()).await;
    commit_each(fixture, &["a"]).await;
    assert_eq!(store(fixture).replay(&Selection::all()).await, 2);
    commit_each(fixture, &["a", "a"]).await;
    let expected = "a3 a1 a2 a4 a5";
    let rows = fetch(fixture, &leases, ALL).await;
    assert_eq!(keys(&rows), expected);
    settled(fixture, &leases, &rows[..1], hindered(Duration::ZERO)).await;
    assert_eq!(fetch(fixture, &leases, ALL).await, [], "everything waits");
    assert_eq!(keys(&until_blocks_have_ended(fixture, &leases).await), expected);
    let few = WaitingRequest {
        per_aggregate: limit(3),
        ..waiting(&leases)
    };
    assert_eq!(keys(&store(fixture).fetch_waiting(few).await.due), "a3 a1 a2");
}

/// A replayed copy has a new message id and the original event id, and follows all recorded
/// messages.
pub async fn replay_places_copies_after_all_recorded_messages<F: StoreFixture>(fixture: &F) {
    let keyed = Probe::noted("a", 1).with_dedup_key("k");
    commit_all(fixture, [keyed, Probe::noted("a", 2), Probe::sampled("b", 1)]).await;
    let (_, leases) = lease_all(fixture).await;
    let originals = fetch(fixture, &leases, ALL).await;
    settled(fixture, &leases, &originals[..2], published()).await;
    settled(fixture, &leases, &originals[2..], dead(false)).await;
    commit_each(fixture, &["a"]).await;
    let before = list(fixture, &Selection::all()).await;
    let copied = store(fixture).replay(&Selection::all()).await;
    assert_eq!(copied, 3, "a pending message is not copied");
    let rows = fetch(fixture, &leases, ALL).await;
    assert_eq!(keys(&rows), "a3 a1 a2 b-");
    for (original, copy) in originals.iter().zip(&rows[1..]) {
        let (original, copy) = (readable(original), readable(copy));
        assert_ne!(
            copy.id, original.id,
            "the broker would drop the copy as a duplicate"
        );
        let expected = Message {
            id: copy.id,
            ..original.clone()
        };
        assert_eq!(*copy, expected);
    }
    let after = list(fixture, &Selection::all()).await;
    assert_eq!(after[..before.len()], before, "the originals are unchanged");
}

/// Replay copies the selected messages only.
pub async fn replay_takes_a_selection<F: StoreFixture>(fixture: &F) {
    let early = [
        Probe::noted("a", 1),
        Probe::observed("a", 2),
        Probe::noted("b", 3),
    ];
    commit_all(fixture, early).await;
    commit_all(fixture, [Probe::noted("a", 4), Probe::noted("a", 5)]).await;
    let (leases, rows) = take_all(fixture).await;
    settled(fixture, &leases, &rows, published()).await;
    let originals = list(fixture, &Selection::all()).await;
    let time = originals[3].created_at;
    let noted = Selection::all().event_type("probe.noted");
    let at_time = noted
        .clone()
        .recorded_from(time)
        .recorded_until(time + Duration::from_secs(60));
    let is_late = |n: &usize| originals[*n].created_at >= time;
    let (late, early): (Vec<usize>, Vec<usize>) = [0, 2, 3, 4].into_iter().partition(is_late);
    let mut copies = Vec::new();
    for (selection, wanted) in [
        (noted.clone().aggregate(&aggregate("a")), vec![0, 3, 4]),
        (noted.clone().aggregate_type("other"), vec![]),
        (at_time, late),
        (noted.recorded_until(time), early),
    ] {
        let replayed = store(fixture).replay(&selection).await;
        assert_eq!(replayed, wanted.len() as u64, "{selection:?}");
        copies.extend(wanted.into_iter().map(|n| originals[n].event_id));
        let rows = fetch(fixture, &leases, ALL).await;
        let found: Vec<_> = rows.iter().map(|row| readable(row).event_id).collect();
        assert_eq!(found, copies, "{selection:?}");
    }
}

fn readable(row: &FetchedRow) -> &Message {
    row.message.as_ref().expect("the row is readable")
}

/// A copy starts with zero attempts and can be replayed.
pub async fn a_replayed_copy_is_an_ordinary_message<F: StoreFixture>(fixture: &F) {
    let (leases, rows) = with_rows(fixture, &["a", "b"]).await;
    settled(fixture, &leases, &rows, dead(true)).await;
    let only_a = Selection::all().aggregate(&aggregate("a"));
    assert_eq!(store(fixture).replay(&only_a).await, 1);
    store(fixture).skip(&Selection::dead_letters()).await;
    let copy = fetch(fixture, &leases, ALL).await;
    assert_eq!(keys(&copy), "a1");
    assert_eq!((copy[0].attempts, copy[0].failures), (0, 0));
    settled(fixture, &leases, &copy, published()).await;
    let shown = shown(fixture, &copy[0]).await;
    let original = id_of(&only(&rows, "a")[0]);
    assert_eq!((shown.event_id, shown.sequence), (original.into(), Some(1)));
    assert_eq!(shown.status, MessageStatus::Published);

    assert_eq!(store(fixture).replay(&Selection::id(shown.id)).await, 1);
    let again = fetch(fixture, &leases, ALL).await;
    assert_eq!(readable(&again[0]).event_id, original.into());
}
