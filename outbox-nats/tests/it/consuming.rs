//! Deliveries of durable consumers: recipients and delivery counts.

use std::time::Duration;

use outbox_core::{ConsumerSpec, Delivery as _, Subscriber as _, SubscriberError, Subscription as _};

use crate::environment::{
    CANCELLED, LONG, Nats, PLACED, SHIPPED, consumer, message, on_both_servers, receive, receive_and_ack,
    subscribe,
};

on_both_servers! {
    every_requested_event_arrives_on_every_server,
    process_leaves_messages_to_other_processes,
    a_deleted_consumer_is_gone_and_can_be_subscribed_again,
    consumer_deleted_between_requests_is_gone,
    late_caller_gets_no_silence_error,
    a_deleted_stream_is_gone,
    client_of_an_ended_runtime_is_refused,
}

async fn publish_one_of_each(nats: &Nats) {
    for event in [&PLACED, &SHIPPED, &CANCELLED] {
        nats.publish(&message(event, "a.b", 1)).await;
    }
}

async fn every_requested_event_arrives_on_every_server(nats: &Nats) {
    nats.provision().await;
    publish_one_of_each(nats).await;
    let spec = consumer(&[&PLACED, &SHIPPED]);
    let mut subscription = nats.subscribe(&spec).await;
    let config = nats.consumer_info(&spec).await.config;
    let placed_and_shipped = [nats.prefix.filter(&PLACED), nats.prefix.filter(&SHIPPED)];
    if nats.client.is_server_compatible(2, 10, 0) {
        assert_eq!(config.filter_subjects, placed_and_shipped);
        assert_eq!(
            receive_and_ack(&mut subscription, 2).await,
            ["a.b/placed/1", "a.b/shipped/1"]
        );
    } else {
        // One filter covers all event types of the aggregate, including unrequested ones.
        assert_eq!(config.filter_subject, format!("{}.order.*.*", nats.prefix));
        let all = ["a.b/placed/1", "a.b/shipped/1", "a.b/cancelled/1"];
        assert_eq!(receive_and_ack(&mut subscription, 3).await, all);
    }
}

/// The limit on unacknowledged messages applies to all processes together, the prefetch to each
/// process.
async fn process_leaves_messages_to_other_processes(nats: &Nats) {
    nats.provision().await;
    for n in 1..=10 {
        nats.publish(&message(&PLACED, "1", n)).await;
    }
    let spec = ConsumerSpec {
        in_flight_max: 6,
        prefetch: 2,
        ..consumer(&[&PLACED])
    };
    let mut first = nats.subscribe(&spec).await;
    receive(&mut first).await;
    let mut second = nats.subscribe(&spec).await;
    for _ in 0..3 {
        assert_eq!(receive(&mut second).await.incoming().delivery_count, 1);
    }
}

async fn until_gone(subscription: &mut outbox_nats::JetStreamSubscription) {
    let gone = async {
        loop {
            match tokio::time::timeout(Duration::from_millis(700), subscription.next()).await {
                Ok(Err(SubscriberError::Gone { .. })) => return,
                Ok(Err(SubscriberError::Interrupted { .. })) | Err(_) => {}
                Ok(other) => panic!("{other:?}"),
            }
        }
    };
    tokio::time::timeout(LONG, gone)
        .await
        .expect("the end of the subscription");
}

async fn a_deleted_consumer_is_gone_and_can_be_subscribed_again(nats: &Nats) {
    nats.provision().await;
    let spec = consumer(&[&PLACED]);
    let mut subscription = nats.subscribe_impatiently(&spec).await;
    nats.publish(&message(&PLACED, "1", 1)).await;
    receive_and_ack(&mut subscription, 1).await;
    nats.jetstream()
        .delete_consumer_from_stream("billing", &nats.name)
        .await
        .unwrap();
    until_gone(&mut subscription).await;
    until_gone(&mut subscription).await;

    let mut subscription = nats.subscribe(&spec).await;
    assert_eq!(receive_and_ack(&mut subscription, 1).await, ["1/placed/1"]);
}

async fn late_caller_gets_no_silence_error(nats: &Nats) {
    nats.provision().await;
    let subscriber = nats.subscriber().idle_heartbeat(Duration::from_secs(1));
    let spec = ConsumerSpec {
        prefetch: 1,
        ..consumer(&[&PLACED])
    };
    let mut subscription = subscribe(&subscriber, &spec).await;
    nats.publish(&message(&PLACED, "1", 1)).await;
    receive_and_ack(&mut subscription, 1).await;
    // The test awaits `next` only after 5 s, longer than the allowed silence of 4 s.
    tokio::time::sleep(Duration::from_secs(5)).await;
    let idle = tokio::time::timeout(Duration::from_secs(4), subscription.next()).await;
    assert!(idle.is_err(), "{idle:?}");
}

/// The server reports the deletion only to open pull requests; a server before 2.10.26 does not
/// answer later requests.
async fn consumer_deleted_between_requests_is_gone(nats: &Nats) {
    nats.provision().await;
    let subscriber = nats.subscriber().idle_heartbeat(Duration::from_secs(1));
    let spec = consumer(&[&PLACED]);
    let mut subscription = subscribe(&subscriber, &spec).await;
    nats.publish(&message(&PLACED, "1", 1)).await;
    receive_and_ack(&mut subscription, 1).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    nats.jetstream()
        .delete_consumer_from_stream("billing", &nats.name)
        .await
        .unwrap();
    until_gone(&mut subscription).await;
}

async fn a_deleted_stream_is_gone(nats: &Nats) {
    nats.provision().await;
    let mut subscription = nats.subscribe_impatiently(&consumer(&[&PLACED])).await;
    nats.publish(&message(&PLACED, "1", 1)).await;
    receive_and_ack(&mut subscription, 1).await;
    nats.delete_stream().await;
    until_gone(&mut subscription).await;
}

async fn client_of_an_ended_runtime_is_refused(nats: &Nats) {
    nats.provision().await;
    let url = nats.url().to_owned();
    let elsewhere = std::thread::spawn(move || {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(outbox_nats::connect(url, outbox_nats::connect_options()))
    });
    let client = tokio::task::spawn_blocking(|| elsewhere.join().unwrap());
    let subscriber = nats.stream().subscriber(client.await.unwrap().unwrap());
    for refused in [
        subscriber.facts().await.err(),
        subscriber.subscribe(&consumer(&[&PLACED])).await.err(),
    ] {
        assert!(
            matches!(refused, Some(SubscriberError::Configuration { .. })),
            "{refused:?}"
        );
    }
}
