//! A relay that lost its leases drops its queued messages before the next owner publishes.

use std::time::Duration;

use futures_util::future::join_all;
use outbox_core::{FailureClass, Message, Publisher as _};
use outbox_nats::{EventStream, JetStreamPublisher, connect_options};
use outbox_testing::{backend_url, eventually};

use crate::environment::{Nats, PLACED, answered, connected, message, on_both_servers, publish};
use crate::proxy::Proxy;

on_both_servers! {
    ghost_arrives_without_abandoning,
    an_abandoned_ghost_never_arrives,
    publishing_while_abandoning_is_unknown_or_done,
}

/// A publisher with an unsent message: earlier bytes fill every buffer of the operating system.
async fn publisher_with_unsent_message(nats: &Nats) -> (Proxy, JetStreamPublisher, Message) {
    nats.provision().await;
    let proxy = Proxy::in_front_of(nats.url()).await;
    let client = connected(proxy.url(), connect_options().ignore_discovered_servers()).await;
    let config = nats.publisher_config().ack_timeout(Duration::from_secs(8));
    let publisher = nats.stream().publisher(client).with_config(config);
    let first = message(&PLACED, "first", 1);
    answered(async || publisher.publish(&first).await).await;

    proxy.hold();
    let ghost = message(&PLACED, "ghost", 1);
    let large: Vec<_> = (0..16)
        .map(|n| Message {
            payload: vec![b'x'; 900_000].into(),
            ..message(&PLACED, &format!("large-{n}"), 1)
        })
        .collect();
    let (_, result) = tokio::join!(
        join_all(large.iter().map(|large| publisher.publish(large))),
        async {
            tokio::task::yield_now().await;
            publisher.publish(&ghost).await
        }
    );
    assert_eq!(result.unwrap_err().class(), FailureClass::Unknown);
    (proxy, publisher, ghost)
}

async fn is_stored(nats: &Nats, message: &Message) -> bool {
    nats.stored()
        .await
        .iter()
        .any(|(_, payload)| *payload == message.payload)
}

async fn ghost_arrives_without_abandoning(nats: &Nats) {
    let (proxy, _publisher, ghost) = publisher_with_unsent_message(nats).await;
    proxy.release();
    eventually("the ghost", || is_stored(nats, &ghost)).await;
}

async fn an_abandoned_ghost_never_arrives(nats: &Nats) {
    let (proxy, publisher, ghost) = publisher_with_unsent_message(nats).await;
    publisher.abandon().await;
    let next = message(&PLACED, "next", 1);
    publish(&publisher, &next).await;
    proxy.release();
    proxy.drained(1).await;
    assert!(is_stored(nats, &next).await);
    assert!(!is_stored(nats, &ghost).await, "the ghost was stored");
    answered(async || publisher.publish(&ghost).await).await;
}

async fn publishing_while_abandoning_is_unknown_or_done(nats: &Nats) {
    nats.provision().await;
    let publisher = nats.publisher();
    let messages: Vec<_> = (0..500).map(|n| message(&PLACED, &n.to_string(), 1)).collect();
    let (results, ()) = tokio::join!(
        join_all(messages.iter().map(|message| publisher.publish(message))),
        async {
            for _ in 0..5 {
                publisher.abandon().await;
            }
        }
    );
    for error in results.into_iter().filter_map(Result::err) {
        assert_eq!(error.class(), FailureClass::Unknown, "{error}");
    }
    for message in &messages {
        publish(&publisher, message).await;
    }
    assert_eq!(nats.stored().await.len(), messages.len());
}

#[tokio::test]
async fn abandoning_an_unreachable_server_is_bounded() {
    let Some(url) = backend_url("OUTBOX_TEST_NATS_URL") else {
        return;
    };
    let proxy = Proxy::in_front_of(&url).await;
    let client = connected(proxy.url(), connect_options().ignore_discovered_servers()).await;
    let publisher = EventStream::default().publisher(client);
    proxy.set_available(false);
    tokio::time::timeout(crate::environment::SOON, publisher.abandon())
        .await
        .unwrap();
    let error = publisher.publish(&message(&PLACED, "1", 1)).await.unwrap_err();
    assert_eq!(error.class(), FailureClass::Unknown);
}
