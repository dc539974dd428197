//! Rules for leases and announcements.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::future::join_all;
use outbox_core::message::PARTITIONS;

use super::StoreFixture;
use super::support::*;

fn partitions(leases: &[Lease]) -> BTreeSet<u16> {
    leases.iter().map(|lease| lease.partition).collect()
}

fn epochs(leases: &[Lease]) -> BTreeMap<u16, i64> {
    leases
        .iter()
        .map(|lease| (lease.partition, lease.epoch))
        .collect()
}

fn all_partitions() -> BTreeSet<u16> {
    (0..PARTITIONS).collect()
}

/// Live leases never share a partition, even under concurrent calls.
pub async fn leases_are_exclusive<F: StoreFixture>(fixture: &F) {
    let owners: Vec<OwnerId> = (0..4).map(|_| OwnerId::fresh()).collect();
    let mut owned = BTreeSet::new();
    for _ in 0..PARTITIONS {
        let rounds = join_all(owners.iter().map(|owner| acquire(fixture, *owner))).await;
        for lease in rounds.into_iter().flatten() {
            assert!(owned.insert(lease.partition), "{lease:?} was leased twice");
        }
        if owned.len() == usize::from(PARTITIONS) {
            break;
        }
    }
    assert_eq!(owned, all_partitions(), "some free partitions were never leased");
    for owner in [owners[0], OwnerId::fresh()] {
        assert_eq!(
            acquire(fixture, owner).await,
            [],
            "owned partitions were leased again"
        );
    }
}

/// `max` bounds the number of partitions that one call acquires.
pub async fn acquire_takes_at_most_the_requested_number<F: StoreFixture>(fixture: &F) {
    let owner = OwnerId::fresh();
    let leases = store(fixture).acquire(owner, TTL, 10).await;
    assert!(
        (1..=10).contains(&leases.len()),
        "asked for 10, got {}",
        leases.len()
    );
    let none = store(fixture).acquire(owner, TTL, 0).await;
    assert_eq!(none, []);
}

/// Each new owner of a partition gets a higher epoch.
pub async fn each_acquisition_raises_the_epoch<F: StoreFixture>(fixture: &F) {
    let (owner, first) = lease_all(fixture).await;
    store(fixture).release(owner, &first).await;
    let (_, second) = lease_all(fixture).await;
    fixture.expire_leases().await;
    let (_, third) = lease_all(fixture).await;
    for (earlier, later) in [(first, second.clone()), (second, third)] {
        let (earlier, later) = (epochs(&earlier), epochs(&later));
        for (partition, epoch) in earlier {
            let later = later[&partition];
            assert!(
                later > epoch,
                "epoch of partition {partition} went from {epoch} to {later}"
            );
        }
    }
}

/// A renewal does not revive an expired lease.
pub async fn leases_are_renewed_only_while_owned<F: StoreFixture>(fixture: &F) {
    let (owner, leases) = lease_all(fixture).await;
    let renewed = store(fixture).renew(owner, &leases, TTL).await;
    assert_eq!(
        epochs(&renewed),
        epochs(&leases),
        "a renewed lease keeps its epoch"
    );
    let stolen = store(fixture).renew(OwnerId::fresh(), &leases, TTL).await;
    assert_eq!(stolen, [], "another owner renewed the leases");

    fixture.expire_leases().await;
    let revived = store(fixture).renew(owner, &leases, TTL).await;
    assert_eq!(revived, [], "expired leases were revived");

    let (successor, taken) = lease_all(fixture).await;
    let revived = store(fixture).renew(owner, &leases, TTL).await;
    assert_eq!(revived, [], "the former owner renewed leases of its successor");
    let renewed = store(fixture).renew(successor, &taken, TTL).await;
    assert_eq!(
        partitions(&renewed),
        all_partitions(),
        "the successor lost leases"
    );
}

/// A released partition is free immediately.
pub async fn released_partitions_are_free_immediately<F: StoreFixture>(fixture: &F) {
    let (owner, leases) = lease_all(fixture).await;
    let (back, kept) = leases.split_at(10);
    store(fixture).release(owner, back).await;
    let mut taken = BTreeSet::new();
    for _ in 0..back.len() {
        taken.extend(partitions(&acquire(fixture, OwnerId::fresh()).await));
    }
    assert_eq!(taken, partitions(back), "exactly what was released is free");
    let renewed = store(fixture).renew(owner, kept, TTL).await;
    assert_eq!(
        partitions(&renewed),
        partitions(kept),
        "unreleased partitions are still owned"
    );
}

/// A release under a stale epoch frees no partition.
pub async fn a_stale_release_frees_nothing<F: StoreFixture>(fixture: &F) {
    let (owner, stale) = lease_all(fixture).await;
    fixture.expire_leases().await;
    lease_all(fixture).await;
    store(fixture).release(owner, &stale).await;
    let freed = acquire(fixture, OwnerId::fresh()).await;
    assert_eq!(freed, [], "partitions of the successor were freed");
}

async fn announce<F: StoreFixture>(fixture: &F, owner: OwnerId, ttl: Duration) -> u32 {
    store(fixture)
        .announce(owner, ttl, &RelayHealth::Unknown.into())
        .await
        .alive()
}

/// A healthy store passes its preflight.
pub async fn a_healthy_store_passes_its_preflight<F: StoreFixture>(fixture: &F) {
    store(fixture).preflight(true).await;
}

/// Each live relay counts once, until its announcement expires.
pub async fn relays_are_counted_until_their_announcement_expires<F: StoreFixture>(fixture: &F) {
    let (first, second) = (OwnerId::fresh(), OwnerId::fresh());
    assert_eq!(announce(fixture, first, TTL).await, 1);
    assert_eq!(announce(fixture, first, TTL).await, 1);
    assert_eq!(announce(fixture, second, Duration::from_secs(6)).await, 2);
    assert_eq!(announce(fixture, first, TTL).await, 2);
    for _ in 0..600 {
        tokio::time::sleep(Duration::from_millis(50)).await;
        if announce(fixture, first, TTL).await == 1 {
            assert_eq!(
                announce(fixture, second, TTL).await,
                2,
                "it may announce itself again"
            );
            return;
        }
    }
    panic!("a silent relay is counted forever");
}

/// The last announcement of a relay replaces its earlier announcement.
pub async fn relays_are_counted_by_their_last_announcement<F: StoreFixture>(fixture: &F) {
    let (first, second) = (OwnerId::fresh(), OwnerId::fresh());
    for own in RelayHealth::ALL {
        for other in RelayHealth::ALL {
            store(fixture).announce(first, TTL, &own.into()).await;
            let relays = store(fixture).announce(second, TTL, &other.into()).await;
            let mut expected = Relays::default();
            expected.count(own, 1);
            expected.count(other, 1);
            assert_eq!(relays, expected, "{own:?}, {other:?}");
        }
    }
}

/// A relay that leaves loses its leases and its announcement; other relays keep theirs.
pub async fn leaving_releases_leases_and_announcement<F: StoreFixture>(fixture: &F) {
    let (stays, leaves) = (OwnerId::fresh(), OwnerId::fresh());
    let kept = store(fixture).acquire(stays, TTL, 10).await;
    announce(fixture, stays, TTL).await;
    let given = acquire(fixture, leaves).await;
    assert_eq!(announce(fixture, leaves, TTL).await, 2);

    store(fixture).leave(leaves).await;
    assert_eq!(announce(fixture, stays, TTL).await, 1);
    let renewed = store(fixture).renew(stays, &kept, TTL).await;
    assert_eq!(partitions(&renewed), partitions(&kept));
    let revived = store(fixture).renew(leaves, &given, TTL).await;
    assert_eq!(revived, [], "a released lease was renewed");
    let mut taken = BTreeSet::new();
    for _ in 0..given.len() {
        taken.extend(partitions(&acquire(fixture, OwnerId::fresh()).await));
    }
    assert_eq!(&taken | &partitions(&kept), all_partitions());
    store(fixture).leave(leaves).await;
}
