//! Rules for diagnosis.

use std::sync::Arc;

use outbox_core::message::PARTITIONS;

use super::StoreFixture;
use super::support::*;

/// A lookup returns a message with its payload, and an unreadable message with the reason.
pub async fn a_message_is_found_with_its_payload<F: StoreFixture>(fixture: &F) {
    let (_, rows) = with_rows(fixture, &["a", "b"]).await;
    for row in &rows {
        let expected = FoundMessage {
            stored: shown(fixture, row).await,
            delayed_for: None,
            message: row.message.clone().map(Arc::unwrap_or_clone),
        };
        assert_eq!(store(fixture).find(id_of(row)).await, Some(expected));
    }
    assert_eq!(store(fixture).find(MessageId::fresh()).await, None);
    let damaged = id_of(&only(&rows, "b")[0]);
    fixture.corrupt(damaged).await;
    let found = store(fixture)
        .find(damaged)
        .await
        .expect("a damaged message is found");
    assert_eq!(found.stored.id, damaged);
    found.message.expect_err("a damaged message has a reason");
}

/// Pages of recorded messages are in id order and include every status.
pub async fn recorded_messages_are_read_in_pages<F: StoreFixture>(fixture: &F) {
    let (leases, rows) = with_rows(fixture, &["a", "b", "c", "d", "e", "f", "g"]).await;
    settled(fixture, &leases, &rows[..2], published()).await;
    settled(fixture, &leases, &rows[2..3], dead(false)).await;
    fixture.corrupt(id_of(&rows[3])).await;
    let mut expected = Vec::new();
    for row in &rows {
        expected.push(shown(fixture, row).await);
    }
    expected.sort_by_key(|message| message.id);
    let now = fixture.now().await;
    let page = async |from, until, after| {
        store(fixture)
            .recorded_between(from, until, after, limit(3))
            .await
    };
    let (mut read, mut after) = (Vec::new(), None);
    loop {
        let page = page(now - LONG, now + LONG, after).await;
        after = page.last().map(|last| last.id);
        read.extend(page.iter().cloned());
        assert!(read.len() <= expected.len(), "pages repeat messages");
        if page.len() < 3 {
            break;
        }
    }
    assert_eq!(read, expected);
    assert_eq!(page(now + LONG, now + LONG * 2, None).await, []);
    assert_eq!(page(now - LONG * 2, now - LONG, None).await, []);
    let (first, last) = (expected[0].created_at, expected[6].created_at);
    for (from, until) in [(first, last), (last, now + LONG)] {
        let within = expected
            .iter()
            .filter(|message| (from..until).contains(&message.created_at));
        let within: Vec<_> = within.take(3).cloned().collect();
        assert_eq!(page(from, until, None).await, within);
    }
}

/// A search among published messages returns the newest first. At its row limit, the search returns
/// its position.
pub async fn a_search_among_published_messages_is_bounded<F: StoreFixture>(fixture: &F) {
    let (leases, rows) = with_rows(fixture, &["a", "b", "a", "b", "a", "b"]).await;
    let (of_a, of_b) = (of(&rows, "a"), of(&rows, "b"));
    settled(fixture, &leases, &of_a, published()).await;
    settled(fixture, &leases, &of_b[..2], published()).await;
    let mut ids: Vec<MessageId> = of_a.iter().map(id_of).collect();
    ids.sort_unstable_by(|one, other| other.cmp(one));
    let now = fixture.now().await;
    let search = async |search: PublishedSearch| {
        let found = store(fixture).search_published(&search).await;
        let ids: Vec<MessageId> = found.messages.iter().map(|found| found.stored.id).collect();
        (ids, found.looked_from)
    };
    let of_a = PublishedSearch {
        aggregate: Some(aggregate("a")),
        from: Some(now - LONG),
        until: Some(now + LONG),
        looked_at_max: limit(6),
        limit: limit(100),
    };
    assert_eq!(search(of_a.clone()).await, (ids.clone(), None));
    let of_all = PublishedSearch {
        aggregate: None,
        from: None,
        until: None,
        ..of_a.clone()
    };
    assert_eq!(
        search(of_all).await.0.len(),
        5,
        "unpublished messages are left out"
    );
    let one = PublishedSearch {
        limit: limit(1),
        ..of_a.clone()
    };
    assert_eq!(search(one).await, (ids[..1].to_vec(), None));
    let (found, looked_from) = search(PublishedSearch {
        looked_at_max: limit(2),
        ..of_a.clone()
    })
    .await;
    assert!(found.len() <= 2 && ids.starts_with(&found), "{found:?}");
    let looked_from = looked_from.expect("four messages were not examined");
    assert!((looked_from - now).abs() < LONG, "{looked_from}");
    let later = PublishedSearch {
        from: Some(now + LONG),
        until: None,
        ..of_a.clone()
    };
    assert_eq!(search(later).await, (Vec::new(), None));
    let earlier = PublishedSearch {
        from: None,
        until: Some(now - LONG),
        ..of_a
    };
    assert_eq!(search(earlier).await, (Vec::new(), None));
}

/// `head` returns the last sequence of an aggregate and its recording time.
pub async fn the_head_of_an_aggregate_is_found<F: StoreFixture>(fixture: &F) {
    assert_eq!(store(fixture).head(&aggregate("a")).await, None);
    commit_each(fixture, &["a", "b", "a"]).await;
    for (id, last_sequence) in [("a", 2), ("b", 1)] {
        let found = store(fixture)
            .head(&aggregate(id))
            .await
            .expect("the head is found");
        assert_eq!(found.last_sequence, last_sequence);
        let ago = fixture.now().await - found.recorded_at;
        assert!(ago.abs() < LONG, "{ago}");
    }
}

/// The list of partitions includes an expired lease, with its last owner.
pub async fn partitions_are_listed_with_their_owners<F: StoreFixture>(fixture: &F) {
    let free = store(fixture).partitions().await;
    let numbers: Vec<u16> = free.iter().map(|partition| partition.partition).collect();
    assert_eq!(numbers, (0..PARTITIONS).collect::<Vec<_>>());
    let has_none = |partition: &PartitionOwner| partition.owner.is_none() && partition.last_owner.is_none();
    assert!(free.iter().all(has_none), "{free:?}");
    let (owner, leases) = lease_all(fixture).await;
    let owned = store(fixture).partitions().await;
    for (partition, lease) in owned.iter().zip(&leases) {
        assert_eq!(
            (partition.partition, partition.epoch),
            (lease.partition, lease.epoch)
        );
        assert_eq!((partition.owner, partition.last_owner), (Some(owner), None));
        assert!(partition.expires_in > TTL / 2 && partition.expires_in <= TTL);
    }
    fixture.expire_leases().await;
    let expired = store(fixture).partitions().await;
    for partition in &expired {
        assert_eq!((partition.owner, partition.last_owner), (None, Some(owner)));
        assert!(partition.expires_in.is_zero(), "{partition:?}");
    }
    let (other, leases) = lease_all(fixture).await;
    let taken = store(fixture).partitions().await;
    assert!(
        taken.iter().all(|partition| partition.last_owner.is_none()),
        "{taken:?}"
    );
    store(fixture).release(other, &leases).await;
    let given_back = store(fixture).partitions().await;
    assert!(given_back.iter().all(has_none), "{given_back:?}");
}
