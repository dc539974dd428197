//! Checks for earlier messages of an aggregate.

use outbox_core::Delivery as _;
use outbox_nats::{EventStream, JetStreamSubscription};

use crate::environment::{
    self, Nats, PLACED, answered, consumer, message, on_both_servers, receive, subscribe,
};

on_both_servers! {
    enabled_shards_hide_no_earlier_messages,
    disabled_shards_hide_no_earlier_messages,
}

async fn publish(nats: &Nats, stream: &EventStream, number: u64) {
    let publisher = stream
        .publisher(nats.client.clone())
        .with_config(nats.publisher_config());
    environment::publish(&publisher, &message(&PLACED, "1", number)).await;
}

async fn has_predecessors(subscription: &mut JetStreamSubscription) -> bool {
    let delivery = receive(subscription).await;
    let found = answered(async || delivery.has_predecessors().await).await;
    delivery.ack().await.unwrap();
    found
}

async fn enabled_shards_hide_no_earlier_messages(nats: &Nats) {
    nats.provision().await;
    publish(nats, &nats.stream(), 1).await;
    publish(nats, &nats.stream().with_subject_shards(8), 2).await;
    let mut subscription = nats.subscribe(&consumer(&[&PLACED])).await;
    assert!(!has_predecessors(&mut subscription).await);
    assert!(has_predecessors(&mut subscription).await);
}

async fn disabled_shards_hide_no_earlier_messages(nats: &Nats) {
    let with_shards = nats.stream().with_subject_shards(8);
    nats.provision().await;
    publish(nats, &with_shards, 1).await;
    publish(nats, &nats.stream(), 2).await;
    let subscriber = with_shards.subscriber(nats.client.clone());
    let mut subscription = subscribe(&subscriber, &consumer(&[&PLACED])).await;
    assert!(has_predecessors(&mut subscription).await);
    assert!(has_predecessors(&mut subscription).await);
}
