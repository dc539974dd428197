//! The server is killed and restarted.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use outbox_core::retry::Backoff;
use outbox_core::shutdown::CancellationToken;
use outbox_core::{
    AggregateId, Delivery as _, DomainEvent, EventDescriptor, FailureClass, Health, Publisher as _, Relay,
    RelayConfig, StreamLog as _, SubscriberError, Subscription as _,
};
use outbox_nats::async_nats::connection::State;
use outbox_nats::{JetStreamPublisher, PublisherConfig};
use outbox_testing::{MemoryStore, eventually};
use time::OffsetDateTime;

use crate::environment::{
    LONG, Nats, PLACED, SOON, answered, consumer, event, message, publish, receive, receive_and_ack,
};
use crate::private_server::PrivateServer;

async fn reconnected(nats: &Nats) {
    eventually("the reconnection", || async {
        nats.client.connection_state() == State::Connected
    })
    .await;
}

async fn publishing(publisher: &JetStreamPublisher, up: bool) {
    eventually("the publisher's connection", || async {
        publisher.is_connected() == up
    })
    .await;
}

async fn disconnected(nats: &Nats) {
    eventually("the disconnection", || async {
        nats.client.connection_state() != State::Connected
    })
    .await;
}

#[derive(serde::Serialize)]
struct Placed {
    order: u32,
    n: u32,
}

impl DomainEvent for Placed {
    const DESCRIPTORS: &'static [EventDescriptor] = &[event("placed", None)];

    fn descriptor(&self) -> &'static EventDescriptor {
        &Self::DESCRIPTORS[0]
    }

    fn aggregate_id(&self) -> AggregateId {
        AggregateId::new(self.order.to_string())
    }

    fn dedup_key(&self) -> Option<String> {
        None
    }
}

/// An outage uses no attempt. `reconcile` must publish the messages of the deleted stream again.
#[tokio::test]
async fn recreated_stream_receives_the_waiting_messages() {
    let _alone = outbox_core::wake::isolate();
    let Some(nats) = Nats::from_variable("OUTBOX_TEST_NATS_URL").await else {
        return;
    };
    nats.provision().await;
    let store = MemoryStore::new();
    let record = |n| {
        let placed: Vec<_> = (0..10).map(|order| Placed { order, n }).collect();
        store.record(placed).unwrap();
    };
    let backoff = Backoff {
        min: Duration::from_millis(10),
        max: Duration::from_millis(200),
    };
    let config = RelayConfig::default().backoff(backoff);
    let relay = Relay::new(store.clone(), nats.publisher()).with_config(config);
    let (health, shutdown) = (relay.health(), CancellationToken::new());
    let scenario = async {
        record(1);
        store.until_drained().await;
        nats.jetstream().delete_stream(&nats.name).await.unwrap();
        record(2);
        record(3);
        eventually("trouble that is seen", || async {
            matches!(health.now(), Health::Degraded { .. })
        })
        .await;
        nats.provision().await;
        store.until_drained().await;
        shutdown.cancel();
    };
    let (report, ()) = tokio::join!(relay.run(shutdown.clone()), scenario);
    assert_eq!(report.unwrap().dead_letters, 0);
    assert!(store.rows().iter().all(|row| row.attempts == 0));
    let publisher = nats.publisher();
    let ids = answered(async || publisher.message_ids(OffsetDateTime::UNIX_EPOCH).await).await;
    let recorded = store.rows();
    let expected = recorded[10..].iter().map(|row| row.message.id).collect();
    assert_eq!(ids, expected);
}

#[tokio::test]
async fn a_backlog_behind_a_full_stream_drains_in_order() {
    let _alone = outbox_core::wake::isolate();
    let Some(nats) = Nats::from_variable("OUTBOX_TEST_NATS_URL").await else {
        return;
    };
    nats.provision().await;
    let with_room_for = async |messages| {
        let mut config = nats.stream_config().await;
        config.max_messages = messages;
        nats.jetstream().update_stream(config).await.unwrap();
    };
    with_room_for(7).await;
    let store = MemoryStore::new();
    for n in 0..5 {
        store
            .record((0..10).map(|order| Placed { order, n }).collect::<Vec<_>>())
            .unwrap();
    }
    let backoff = Backoff {
        min: Duration::from_millis(10),
        max: Duration::from_millis(100),
    };
    let config = RelayConfig::default().backoff(backoff);
    let relay = Relay::new(store.clone(), nats.publisher()).with_config(config);
    let (health, shutdown) = (relay.health(), CancellationToken::new());
    let scenario = async {
        eventually("a full stream", async || nats.last_stream_sequence().await == 7).await;
        eventually("trouble that is seen", async || {
            matches!(health.now(), Health::Degraded { .. })
        })
        .await;
        with_room_for(-1).await;
        store.until_drained().await;
        shutdown.cancel();
    };
    let (report, ()) = tokio::join!(relay.run(shutdown.clone()), scenario);
    assert_eq!(report.unwrap().dead_letters, 0);
    assert!(store.rows().iter().all(|row| row.attempts == 0));
    let mut numbers = BTreeMap::<String, Vec<Option<u64>>>::new();
    for entry in nats.log().await {
        let message = entry.message.unwrap();
        numbers
            .entry(message.aggregate.id)
            .or_default()
            .push(message.sequence);
    }
    let expected: Vec<_> = (1..=5).map(Some).collect();
    assert!(
        numbers.len() == 10 && numbers.values().all(|order| *order == expected),
        "{numbers:?}"
    );
}

/// Publishes messages before, during and after a `kill -9`, then all messages again.
#[tokio::test]
async fn messages_survive_a_killed_server_exactly_once() {
    let Some(mut server) = PrivateServer::start(&[]).await else {
        return;
    };
    let nats = Nats::at(&server.url()).await;
    nats.provision().await;
    let config = nats.publisher_config().ack_timeout(LONG);
    let publisher = nats.publisher().with_config(config);
    let messages: Vec<_> = (0..100).map(|n| message(&PLACED, &n.to_string(), 1)).collect();
    for message in &messages[..50] {
        publish(&publisher, message).await;
    }

    server.kill();
    publishing(&publisher, false).await;
    let started = Instant::now();
    for message in &messages[50..] {
        assert_eq!(
            publisher.publish(message).await.unwrap_err().class(),
            FailureClass::Unknown
        );
    }
    assert!(
        started.elapsed() < SOON,
        "no waiting while disconnected: {:?}",
        started.elapsed()
    );

    server.restart().await;
    reconnected(&nats).await;
    publishing(&publisher, true).await;
    assert_eq!(
        nats.stored().await.len(),
        50,
        "no failed message is delivered afterwards"
    );
    for (n, message) in messages.iter().enumerate() {
        let receipt = publish(&publisher, message).await;
        assert_eq!(receipt.duplicate, n < 50, "message {n}");
        assert_eq!(receipt.stream_sequence, u64::try_from(n).unwrap() + 1);
    }
    assert_eq!(nats.stored().await.len(), 100);
}

#[tokio::test]
async fn a_message_to_a_paused_server_is_unknown_and_stored_once() {
    let Some(server) = PrivateServer::start(&[]).await else {
        return;
    };
    let nats = Nats::at(&server.url()).await;
    nats.provision().await;
    let config = nats.publisher_config().ack_timeout(Duration::from_secs(1));
    let publisher = nats.publisher().with_config(config);
    let first = message(&PLACED, "0", 1);
    answered(async || publisher.publish(&first).await).await;
    server.pause();
    let mut sequence = 0;
    let (ghost, error, mut elapsed) = loop {
        sequence += 1;
        assert!(sequence < 1_000, "the server is not paused");
        let (message, started) = (message(&PLACED, "1", sequence), Instant::now());
        if let Err(error) = publisher.publish(&message).await {
            break (message, error, started.elapsed());
        }
    };
    assert_eq!(error.class(), FailureClass::Unknown);
    let usual = PublisherConfig::default().ack_timeout;
    for _ in 0..5 {
        if elapsed < usual {
            break;
        }
        let started = Instant::now();
        let error = publisher.publish(&ghost).await.unwrap_err();
        assert_eq!(error.class(), FailureClass::Unknown);
        elapsed = started.elapsed();
    }
    assert!(
        elapsed < usual,
        "bounded by the publish timeout, not by the usual bound: {elapsed:?}"
    );
    server.resume();
    let expected = usize::try_from(sequence).unwrap() + 1;
    eventually("the ghost", || async { nats.stored().await.len() == expected }).await;
    assert!(answered(async || publisher.publish(&ghost).await).await.duplicate);
    assert_eq!(nats.stored().await.len(), expected);
}

#[tokio::test]
async fn subscription_continues_after_the_server_was_paused() {
    let Some(server) = PrivateServer::start(&[]).await else {
        return;
    };
    let nats = Nats::at(&server.url()).await;
    nats.provision().await;
    let mut subscription = nats.subscribe_impatiently(&consumer(&[&PLACED])).await;
    nats.publish(&message(&PLACED, "1", 1)).await;
    receive_and_ack(&mut subscription, 1).await;
    server.pause();
    let silent = tokio::time::timeout(SOON, subscription.next())
        .await
        .expect("a missed heartbeat");
    assert!(
        matches!(silent, Err(SubscriberError::Interrupted { .. })),
        "{silent:?}"
    );
    server.resume();
    nats.publish(&message(&PLACED, "1", 2)).await;
    while receive_and_ack(&mut subscription, 1).await != ["1/placed/2"] {}
}

#[tokio::test]
async fn subscription_continues_after_the_server_was_killed() {
    let Some(mut server) = PrivateServer::start(&[]).await else {
        return;
    };
    let nats = Nats::at(&server.url()).await;
    nats.provision().await;
    let publisher = nats.publisher();
    let mut subscription = nats.subscribe_impatiently(&consumer(&[&PLACED])).await;
    publish(&publisher, &message(&PLACED, "1", 1)).await;
    assert_eq!(receive_and_ack(&mut subscription, 1).await, ["1/placed/1"]);

    for round in 2..=4 {
        server.kill();
        disconnected(&nats).await;
        let mut interruptions = 0;
        let watching = Instant::now();
        while watching.elapsed() < Duration::from_millis(1_500) {
            match tokio::time::timeout(Duration::from_millis(300), subscription.next()).await {
                Ok(Err(SubscriberError::Interrupted { .. })) => interruptions += 1,
                Ok(Err(error)) => panic!("{error}"),
                Ok(Ok(delivery)) => panic!("{:?}", delivery.incoming()),
                Err(_) => {}
            }
        }
        assert!(interruptions < 20, "{interruptions} interruptions in 1.5 s");

        server.restart().await;
        reconnected(&nats).await;
        publishing(&publisher, true).await;
        publish(&publisher, &message(&PLACED, "1", round)).await;
        // A killed server loses unsynced acknowledgements.
        while receive_and_ack(&mut subscription, 1).await != [format!("1/placed/{round}")] {}
    }
}

/// Each failed message is published again until all messages are confirmed.
#[tokio::test]
async fn killed_server_fails_no_message_permanently() {
    let Some(mut server) = PrivateServer::start(&[]).await else {
        return;
    };
    let nats = Nats::at(&server.url()).await;
    nats.provision().await;
    let config = nats.publisher_config().ack_timeout(Duration::from_secs(1));
    let publisher = nats.publisher().with_config(config);
    let mut pending: Vec<_> = (0..2_000).map(|n| message(&PLACED, &n.to_string(), 1)).collect();
    let mut killed = false;
    let deadline = Instant::now() + LONG;
    while !pending.is_empty() {
        assert!(
            Instant::now() < deadline,
            "{} messages are not confirmed",
            pending.len()
        );
        let publishes =
            futures_util::future::join_all(pending.iter().map(|message| publisher.publish(message)));
        let results = if killed {
            publishes.await
        } else {
            killed = true;
            let (results, ()) = tokio::join!(publishes, async {
                tokio::time::sleep(Duration::from_millis(3)).await;
                server.restart().await;
            });
            results
        };
        let mut failed = Vec::new();
        for (message, result) in pending.drain(..).zip(results) {
            if let Err(error) = result {
                assert!(
                    matches!(error.class(), FailureClass::Unknown | FailureClass::Transient),
                    "{error:?}"
                );
                failed.push(message);
            }
        }
        pending = failed;
        publishing(&publisher, true).await;
    }
    reconnected(&nats).await;
    let mut stored = nats.stored().await;
    stored.sort();
    stored.dedup();
    assert_eq!(stored.len(), 2_000);
    assert_eq!(
        nats.stored().await.len(),
        2_000,
        "copies were dropped by their id"
    );
}

#[tokio::test]
async fn deliveries_of_a_killed_server_can_still_be_acknowledged() {
    let Some(mut server) = PrivateServer::start(&[]).await else {
        return;
    };
    let nats = Nats::at(&server.url()).await;
    nats.provision().await;
    let mut subscription = nats.subscribe_impatiently(&consumer(&[&PLACED])).await;
    nats.publish(&message(&PLACED, "1", 1)).await;
    let delivery = receive(&mut subscription).await;
    server.kill();
    disconnected(&nats).await;
    server.restart().await;
    reconnected(&nats).await;
    delivery.ack().await.unwrap();
    // A server killed before it stored a delivery drops its acknowledgement, and redelivers.
    let acknowledged = async {
        while !matches!(subscription.backlog().await, Ok(0)) {
            if let Ok(Ok(again)) = tokio::time::timeout(Duration::from_millis(200), subscription.next()).await
            {
                again.ack().await.unwrap();
            }
        }
    };
    tokio::time::timeout(LONG, acknowledged)
        .await
        .expect("the acknowledgement");
}
