//! What the processes of a consumer have asked for: written to the durable by whoever subscribes, read by whoever is given a message that he does not know.

use outbox_core::{ConsumerSpec, Delivery as _, EventDescriptor, Publisher as _, Subscription as _};
use outbox_nats::async_nats::jetstream::consumer::{AckPolicy, Config, pull};

use crate::environment::{CANCELLED, Nats, PLACED, SHIPPED, consumer, message, on_both_servers, receive};

on_both_servers! {
    what_a_durable_made_by_hand_filters_is_asked_for,
    programs_that_subscribe_at_once_overwrite_nothing,
    what_an_operator_takes_off_the_list_is_not_asked_for,
}

async fn publish(nats: &Nats, event: &EventDescriptor) {
    nats.publisher().publish(&message(event, "1", 1)).await.unwrap();
}

async fn config(nats: &Nats, spec: &ConsumerSpec) -> Config {
    let stream = nats.jetstream().get_stream(&nats.name).await.unwrap();
    stream.consumer_info(&spec.name).await.unwrap().config
}

async fn change(nats: &Nats, config: pull::Config) {
    let stream = nats.jetstream().get_stream(&nats.name).await.unwrap();
    stream.create_consumer(config).await.unwrap();
}

async fn what_a_durable_made_by_hand_filters_is_asked_for(nats: &Nats) {
    nats.provision().await;
    let by_hand = pull::Config {
        durable_name: Some("billing".to_owned()),
        ack_policy: AckPolicy::Explicit,
        filter_subject: nats.prefix.filter(&SHIPPED),
        ..pull::Config::default()
    };
    change(nats, by_hand).await;
    let spec = consumer(&[&PLACED]);
    let mut subscription = nats.subscribe(&spec).await;
    publish(nats, &SHIPPED).await;
    assert!(receive(&mut subscription).await.is_asked_for().await.unwrap());
    if !nats.client.is_server_compatible(2, 10, 0) {
        // One filter covers both, and more.
        publish(nats, &CANCELLED).await;
        assert!(!receive(&mut subscription).await.is_asked_for().await.unwrap());
    }
}

async fn programs_that_subscribe_at_once_overwrite_nothing(nats: &Nats) {
    nats.provision().await;
    let specs = [&PLACED, &SHIPPED, &CANCELLED].map(|event| consumer(&[event]));
    futures_util::future::join_all(specs.iter().map(|spec| nats.subscribe(spec))).await;
    let description = config(nats, &specs[0]).await.description;
    assert_eq!(
        description.as_deref(),
        Some("Reads events for an inbox. [asked for: order.cancelled, order.placed, order.shipped]")
    );
    let mut subscription = nats.subscribe(&specs[0]).await;
    for event in [&SHIPPED, &CANCELLED, &PLACED] {
        publish(nats, event).await;
        assert!(receive(&mut subscription).await.is_asked_for().await.unwrap());
    }
}

async fn what_an_operator_takes_off_the_list_is_not_asked_for(nats: &Nats) {
    nats.provision().await;
    drop(nats.subscribe(&consumer(&[&PLACED, &SHIPPED])).await);
    let spec = consumer(&[&PLACED]);
    let mut subscription = nats.subscribe(&spec).await;
    let seen = config(nats, &spec).await;
    let shorter = pull::Config {
        durable_name: Some(spec.name.clone()),
        description: Some("Reads events for an inbox. [asked for: order.placed]".to_owned()),
        ack_policy: AckPolicy::Explicit,
        ack_wait: seen.ack_wait,
        max_ack_pending: seen.max_ack_pending,
        filter_subject: seen.filter_subject,
        filter_subjects: seen.filter_subjects,
        ..pull::Config::default()
    };
    change(nats, shorter).await;
    publish(nats, &SHIPPED).await;
    let delivery = receive(&mut subscription).await;
    assert!(!delivery.is_asked_for().await.unwrap());
    delivery.ack().await.unwrap();
    subscription.flush().await.unwrap();
}
