//! Contents of messages and relays.

use outbox::core::{Events, NewMessage, OutboxStore, OwnerId, RelayHealth, SensitiveFields};
use outbox_cli::admin::{RelayRow, relays, show};
use outbox_testing::MemoryStore;
use outbox_testing::conformance::probe::Probe;
use std::time::Duration;

use crate::admin::plant::{LONG, noted, record};

#[tokio::test(start_paused = true)]
async fn payloads_and_unknown_headers_are_masked() {
    let store = MemoryStore::new();
    let message = NewMessage::from_event(&Probe::noted("a", 1).with_filler("secret")).expect("encoded");
    let message = message.with_header("customer", "Ada").expect("a header");
    let id = record(&store, Events::new().with(message));
    let without = show(&store, id, None).await.expect("shown").expect("found");
    let content = without.content.expect("readable");
    assert_eq!(content.payload, None);
    assert_eq!(content.headers["customer"], "***");
    let known = SensitiveFields::new().with_event("probe.noted", 1, &["filler"]);
    let with = show(&store, id, Some(&known))
        .await
        .expect("shown")
        .expect("found");
    let payload = with
        .content
        .and_then(|content| content.payload)
        .expect("a payload");
    assert!(
        payload.contains(r#""filler":"***""#) && !payload.contains("secret"),
        "{payload}"
    );
    let unknown = show(&store, id, Some(&SensitiveFields::new()))
        .await
        .expect("shown")
        .expect("found");
    let payload = unknown
        .content
        .and_then(|content| content.payload)
        .expect("a text");
    assert!(
        payload.starts_with("*** (") && !payload.contains("secret"),
        "{payload}"
    );
}

#[tokio::test(start_paused = true)]
async fn damaged_row_is_shown_with_its_error() {
    let store = MemoryStore::new();
    let id = noted(&store, "a");
    assert!(store.corrupt(id));
    let detail = show(&store, id, None).await.expect("shown").expect("found");
    assert_eq!(detail.content, None);
    assert!(detail.damage.is_some_and(|damage| !damage.is_empty()));
}

#[tokio::test(start_paused = true)]
async fn dead_relay_is_listed_until_its_partitions_move() {
    const SHORT: Duration = Duration::from_secs(15);
    let store = MemoryStore::new();
    let (died, lives) = (OwnerId::fresh(), OwnerId::fresh());
    for (owner, ttl, max) in [(died, SHORT, 3), (lives, LONG, 60)] {
        store
            .announce(owner, ttl, &RelayHealth::Healthy.into())
            .await
            .expect("announced");
        store.acquire(owner, ttl, max).await.expect("acquired");
    }
    let listed = async || {
        let listed = relays(&store).await.expect("listed");
        let row = |relay: &RelayRow| (relay.owner, relay.is_alive, relay.health_text(), relay.partitions);
        listed.iter().map(row).collect::<Vec<_>>()
    };
    let both = [(died, true, "healthy", 3), (lives, true, "healthy", 60)];
    assert_eq!(listed().await, both);
    tokio::time::advance(SHORT).await;
    let one_died = [(lives, true, "healthy", 60), (died, false, "dead", 3)];
    assert_eq!(listed().await, one_died);
    store
        .announce(died, LONG, &RelayHealth::Healthy.into())
        .await
        .expect("announced");
    assert_eq!(listed().await[0], (died, true, "healthy", 0));
    store.leave(died).await.expect("left");
    assert_eq!(listed().await, [(lives, true, "healthy", 60)]);
}
