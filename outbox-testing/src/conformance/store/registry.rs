//! Rules for the relay registry, and for clocks set back.

use std::sync::Arc;

use outbox_core::publisher::{Destination, FailureClass};
use outbox_core::relay::Retention;

use super::StoreFixture;
use super::support::*;

fn destination(stream: &str, source: &str) -> Destination {
    Destination {
        stream: stream.to_owned(),
        instance: None,
        subjects: "events.{aggregate}.{id}.{event}".to_owned(),
        source: source.to_owned(),
    }
}

fn created(instance: &str, destination: Destination) -> Destination {
    Destination {
        instance: Some(instance.to_owned()),
        ..destination
    }
}

fn at(destination: Destination) -> Announcement {
    Announcement {
        registration: Arc::new(Registration::new(RelayMode::Polling, Some(destination), None)),
        ..Announcement::default()
    }
}

fn failing() -> Announcement {
    let retention = Some(Retention::KeepFor(Duration::from_secs(3600)));
    Announcement {
        health: RelayHealth::Unhealthy,
        registration: Arc::new(Registration::new(
            RelayMode::Log,
            Some(created("today", destination("ORDERS", "shöp\u{0}"))),
            retention,
        )),
        trouble: Some(RelayTrouble {
            class: TroubleClass::Broker(FailureClass::Configuration),
            error: "no stream captures `events.order.1.placed`".to_owned(),
            failing_for: Duration::from_secs(90),
        }),
    }
}

async fn listed<F: StoreFixture>(fixture: &F, owner: OwnerId) -> LiveRelay {
    let relays = store(fixture).relays().await;
    let listed = relays.into_iter().find(|relay| relay.owner == owner);
    listed.expect("an announced relay is listed")
}

/// The registry lists the last announcement of a relay, with its reported trouble. A source is
/// arbitrary text.
pub async fn registrations_are_listed<F: StoreFixture>(fixture: &F) {
    let owner = OwnerId::fresh();
    let announcement = failing();
    store(fixture).announce(owner, TTL, &announcement).await;
    let found = listed(fixture, owner).await;
    assert_eq!(found.health, RelayHealth::Unhealthy);
    assert!(is_left_of(TTL, Some(found.expires_in)), "{found:?}");
    let (registered, stated) = (&found.registration, &announcement.registration);
    assert_eq!(
        (registered.mode, registered.retention),
        (stated.mode, stated.retention)
    );
    assert_eq!(registered.version, stated.version);
    let destination = registered.destination.as_ref().expect("a destination is listed");
    assert_eq!(destination.stream, "ORDERS");
    assert_eq!(destination.instance.as_deref(), Some("today"));
    assert_eq!(destination.subjects, "events.{aggregate}.{id}.{event}");
    assert!(!destination.source.is_empty());
    let (trouble, stated) = (
        found.trouble.expect("a trouble"),
        announcement.trouble.expect("a trouble"),
    );
    assert_eq!((trouble.class, trouble.error), (stated.class, stated.error));
    let since = stated.failing_for..stated.failing_for + Duration::from_secs(60);
    assert!(since.contains(&trouble.failing_for), "{:?}", trouble.failing_for);

    store(fixture)
        .announce(owner, TTL, &RelayHealth::Healthy.into())
        .await;
    let found = listed(fixture, owner).await;
    assert_eq!((found.trouble, found.registration.destination), (None, None));
    for retention in [Retention::Keep, Retention::Delete] {
        let registration = Registration::new(RelayMode::Polling, None, Some(retention));
        let announcement = Announcement {
            registration: Arc::new(registration.clone()),
            ..Announcement::default()
        };
        store(fixture).announce(owner, TTL, &announcement).await;
        assert_eq!(listed(fixture, owner).await.registration, registration);
    }
}

/// A relay that announces no destination or no source is counted as a relay of the same
/// destination.
pub async fn relays_of_another_destination_are_counted<F: StoreFixture>(fixture: &F) {
    let here = at(destination("ORDERS", "shop"));
    store(fixture).announce(OwnerId::fresh(), TTL, &here).await;
    store(fixture)
        .announce(OwnerId::fresh(), TTL, &RelayHealth::Healthy.into())
        .await;
    let others = [
        (here.clone(), 0),
        (at(destination("orders", "shop")), 1),
        (at(destination("ORDERS", "shop ")), 1),
        (at(destination("ORDERS", "outbox")), 1),
        (at(created("today", destination("ORDERS", "shop"))), 1),
        (RelayHealth::Healthy.into(), 0),
    ];
    for (announcement, expected) in others {
        let owner = OwnerId::fresh();
        let counted = store(fixture).announce(owner, TTL, &announcement).await;
        assert_eq!(counted.disagreeing, expected, "{announcement:?}");
        assert_eq!(counted.alive(), 3, "{announcement:?}");
        store(fixture).leave(owner).await;
    }
    let gone = OwnerId::fresh();
    let elsewhere = at(destination("ELSEWHERE", "shop"));
    store(fixture).announce(gone, Duration::ZERO, &elsewhere).await;
    let counted = store(fixture).announce(OwnerId::fresh(), TTL, &here).await;
    assert_eq!(counted.disagreeing, 0, "an expired announcement does not count");
}

/// A relay without a renewed announcement is listed until another relay announces itself.
pub async fn expired_relays_are_listed<F: StoreFixture>(fixture: &F) {
    let (silent, left) = (OwnerId::fresh(), OwnerId::fresh());
    store(fixture).announce(left, TTL, &failing()).await;
    store(fixture).leave(left).await;
    store(fixture).announce(silent, Duration::ZERO, &failing()).await;
    let expired = store(fixture).expired_relays().await;
    let owners: Vec<OwnerId> = expired.iter().map(|relay| relay.owner).collect();
    assert_eq!(owners, [silent]);
    assert_eq!(expired[0].registration.mode, RelayMode::Log);
    assert!(expired[0].trouble.is_some(), "{expired:?}");
    assert_eq!(store(fixture).relays().await, []);
    store(fixture)
        .announce(OwnerId::fresh(), TTL, &RelayHealth::Healthy.into())
        .await;
    assert_eq!(store(fixture).expired_relays().await, []);
}

/// Leases that end too late after the clock was set back end within [`LEASE_TTL_MAX`] of the next
/// `acquire`. Until then their owner may publish and renew.
pub async fn leases_ahead_of_the_clock_are_shortened<F: StoreFixture>(fixture: &F) {
    let hours = Duration::from_secs(7200);
    let (owner, leases) = lease_all(fixture).await;
    store(fixture)
        .announce(owner, TTL, &RelayHealth::Healthy.into())
        .await;
    fixture.set_clock_back(hours).await;
    let ahead = store(fixture).partitions().await;
    let is_ahead = |partition: &PartitionOwner| partition.is_ahead && partition.owner.is_none();
    assert!(ahead.iter().all(is_ahead), "{ahead:?}");
    assert_eq!(store(fixture).relays().await, []);

    let other = OwnerId::fresh();
    let counted = store(fixture)
        .announce(other, TTL, &RelayHealth::Healthy.into())
        .await;
    assert_eq!(counted.alive(), 1, "an earlier announcement still counts");
    assert_eq!(acquire(fixture, other).await, [], "the owner may still publish");
    let shortened = store(fixture).partitions().await;
    let ends = shortened.iter().map(|partition| partition.expires_in).max();
    assert!(ends.is_some_and(|ends| ends <= LEASE_TTL_MAX), "{ends:?}");
    assert!(
        !shortened.iter().any(|partition| partition.is_ahead),
        "{shortened:?}"
    );

    let renewed = store(fixture).renew(owner, &leases, TTL).await;
    assert_eq!(renewed.len(), leases.len(), "the owner lost its leases");
    fixture.expire_leases().await;
    assert_ne!(acquire(fixture, other).await, []);
}
