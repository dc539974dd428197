//! Tests: relays of one outbox publish to one destination under one source.

use std::sync::{Arc, Mutex};

use outbox_core::{
    Destination, FailureClass, Message, OutboxStore, PublishError, Publisher, Receipt, RelayError,
    TroubleClass,
};
use tokio::task::JoinHandle;

use super::*;

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

fn spawn(
    store: &MemoryStore,
    broker: &MemoryBroker,
    destination: Destination,
    config: RelayConfig,
) -> JoinHandle<Result<RelayReport, RelayError>> {
    let publisher = broker.publisher().with_destination(destination);
    let relay = Relay::new(store.clone(), publisher).with_config(config);
    tokio::spawn(async move { relay.run(CancellationToken::new()).await })
}

async fn sleep_leases(times: u32) {
    tokio::time::sleep(quick().lease_ttl * times).await;
}

#[tokio::test(start_paused = true)]
async fn relay_with_another_destination_does_not_start() {
    let store = MemoryStore::new();
    let (here, there) = (MemoryBroker::new(), MemoryBroker::new());
    let registered = created("today", destination("ORDERS", "shop"));
    let first = spawn(&store, &here, registered.clone(), quick());
    sleep_leases(1).await;
    let others = [
        destination("STAGING", "shop"),
        destination("ORDERS", "outbox"),
        created("tomorrow", destination("ORDERS", "shop")),
    ];
    for other in others {
        let refused = spawn(&store, &there, other.clone(), quick()).await.unwrap();
        let Err(RelayError::OtherDestination(disagreement)) = refused else {
            panic!("the second relay was not refused: {refused:?}");
        };
        assert_eq!(disagreement.destination, other);
        assert_eq!(disagreement.other_destination, registered);
        assert_ne!(disagreement.owner, disagreement.other_owner);
        credit(&store, 20, 1);
        store.until_drained().await;
    }
    assert_eq!((here.log().len(), there.log().len()), (60, 0));
    first.abort();
    sleep_leases(2).await;
    let second = spawn(&store, &there, destination("STAGING", "shop"), quick());
    credit(&store, 20, 1);
    store.until_drained().await;
    assert_eq!((here.log().len(), there.log().len()), (60, 20));
    second.abort();
}

struct Learner {
    publisher: MemoryPublisher,
    stream: Arc<Mutex<&'static str>>,
    known: Mutex<Option<&'static str>>,
}

impl Publisher for Learner {
    fn destination(&self) -> Option<Destination> {
        let destination = destination("ORDERS", "shop");
        Some(match *self.known.lock().unwrap() {
            Some(instance) => created(instance, destination),
            None => destination,
        })
    }

    async fn publish(&self, message: &Message) -> Result<Receipt, PublishError> {
        self.publisher.publish(message).await
    }

    async fn preflight(&self) -> Result<Vec<String>, PublishError> {
        *self.known.lock().unwrap() = Some(*self.stream.lock().unwrap());
        Ok(Vec::new())
    }
}

/// The live relay publishes nothing, so no error reveals the recreated stream.
#[tokio::test(start_paused = true)]
async fn recreated_stream_prevents_no_relay_start() {
    let (store, broker) = (MemoryStore::new(), MemoryBroker::new());
    let stream = Arc::new(Mutex::new("yesterday"));
    let start = || {
        let publisher = Learner {
            publisher: broker.publisher(),
            stream: Arc::clone(&stream),
            known: Mutex::default(),
        };
        let relay = Relay::new(store.clone(), publisher).with_config(quick());
        tokio::spawn(async move { relay.run(CancellationToken::new()).await })
    };
    let first = start();
    sleep_leases(1).await;
    *stream.lock().unwrap() = "today";
    let second = start();
    sleep_leases(4).await;
    assert!(!first.is_finished() && !second.is_finished());
    let relays = store.relays().await.unwrap();
    let instances = relays.iter().map(|relay| {
        relay
            .registration
            .destination
            .as_ref()
            .unwrap()
            .instance
            .as_deref()
    });
    assert_eq!(instances.collect::<Vec<_>>(), [Some("today"); 2]);
    credit(&store, 200, 1);
    store.until_drained().await;
    assert_eq!(broker.log().len(), 200);
    first.abort();
    second.abort();
}

#[tokio::test(start_paused = true)]
async fn relays_started_together_publish_to_one_destination() {
    let store = MemoryStore::new();
    let brokers = [MemoryBroker::new(), MemoryBroker::new()];
    credit(&store, 200, 1);
    let relays = ["ORDERS", "STAGING"]
        .into_iter()
        .zip(&brokers)
        .map(|(stream, broker)| spawn(&store, broker, destination(stream, "shop"), quick()));
    let relays: Vec<_> = relays.collect();
    sleep_leases(2).await;
    let published = brokers.each_ref().map(|broker| broker.log().len());
    assert!(published.contains(&0), "both have published: {published:?}");
    relays.iter().for_each(JoinHandle::abort);
}

#[tokio::test(start_paused = true)]
async fn move_to_another_destination_can_be_allowed() {
    let store = MemoryStore::new();
    let (here, there) = (MemoryBroker::new(), MemoryBroker::new());
    let old = spawn(&store, &here, destination("ORDERS", "shop"), quick());
    sleep_leases(1).await;
    let moves = quick().allow_other_destination(true);
    let new = spawn(&store, &there, destination("NEW", "shop"), moves);
    sleep_leases(3).await;
    credit(&store, 200, 1);
    store.until_drained().await;
    assert!(!here.log().is_empty() && !there.log().is_empty());
    assert_eq!(here.log().len() + there.log().len(), 200);
    old.abort();
    sleep_leases(3).await;
    credit(&store, 200, 1);
    store.until_drained().await;
    assert_eq!(here.log().len() + there.log().len(), 400);
    new.abort();
}

#[tokio::test(start_paused = true)]
async fn relay_stays_idle_while_another_destination_is_live() {
    let store = MemoryStore::new();
    let (here, there) = (MemoryBroker::new(), MemoryBroker::new());
    let first = spawn(&store, &here, destination("ORDERS", "shop"), quick());
    tokio::time::sleep(quick().lease_ttl * 11 / 10).await;
    store.age_leases(quick().lease_ttl * 2);
    let mut second = spawn(&store, &there, destination("NEW", "shop"), quick());
    let ended = tokio::select! {
        ended = first => ended.unwrap(),
        ended = &mut second => panic!("the second relay ended: {ended:?}"),
    };
    assert!(matches!(ended, Err(RelayError::OtherDestination(_))), "{ended:?}");
    credit(&store, 20, 1);
    store.until_drained().await;
    assert_eq!((here.log().len(), there.log().len()), (0, 20));
    second.abort();
}

#[tokio::test(start_paused = true)]
async fn failure_is_announced_until_the_broker_confirms() {
    let (store, broker) = (MemoryStore::new(), MemoryBroker::new());
    let relay = spawn(&store, &broker, destination("ORDERS", "shop"), quick());
    sleep_leases(1).await;
    broker.fail_matching(|_| true, FailureClass::Configuration);
    credit(&store, 1, 1);
    sleep_leases(2).await;
    let relays = store.relays().await.unwrap();
    let trouble = relays[0].trouble.as_ref().expect("a trouble is registered");
    assert_eq!(trouble.class, TroubleClass::Broker(FailureClass::Configuration));
    assert!(trouble.failing_for >= quick().lease_ttl, "{trouble:?}");
    broker.clear_faults();
    store.until_drained().await;
    sleep_leases(1).await;
    assert_eq!(store.relays().await.unwrap()[0].trouble, None);
    relay.abort();
}
