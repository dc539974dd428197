//! Deliveries of durable consumers: recipients and delivery counts.

use std::time::Duration;

use outbox_core::{ConsumerSpec, Delivery as _, Subscriber as _, SubscriberError, Subscription as _};
use outbox_nats::JetStreamDelivery;
use outbox_testing::eventually;

use crate::environment::{
    CANCELLED, LONG, Nats, PLACED, SHIPPED, answered, consumer, message, on_both_servers, receive,
    receive_and_ack, subscribe,
};

on_both_servers! {
    one_event_is_filtered_by_its_subject,
    every_requested_event_arrives_on_every_server,
    whole_aggregates_arrive_with_all_their_event_types,
    unacknowledged_messages_are_redelivered_and_counted,
    process_leaves_messages_to_other_processes,
    a_deleted_consumer_is_gone_and_can_be_subscribed_again,
    consumer_deleted_between_requests_is_gone,
    late_caller_gets_no_silence_error,
    a_deleted_stream_is_gone,
    foreign_messages_are_delivered_raw,
    client_of_an_ended_runtime_is_refused,
}

async fn publish_one_of_each(nats: &Nats) {
    for event in [&PLACED, &SHIPPED, &CANCELLED] {
        nats.publish(&message(event, "a.b", 1)).await;
    }
}

async fn one_event_is_filtered_by_its_subject(nats: &Nats) {
    nats.provision().await;
    publish_one_of_each(nats).await;
    let mut subscription = nats.subscribe(&consumer(&[&SHIPPED])).await;
    let delivery = receive(&mut subscription).await;
    let incoming = delivery.incoming();
    assert_eq!(incoming.subject, format!("{}.order.a%2Eb.shipped", nats.prefix));
    assert_eq!((incoming.stream_sequence, incoming.delivery_count), (2, 1));
    delivery.ack().await.unwrap();
    eventually("an empty backlog", async || {
        subscription_backlog(nats, &consumer(&[&SHIPPED])).await == 0
    })
    .await;
}

async fn subscription_backlog(nats: &Nats, spec: &ConsumerSpec) -> u64 {
    let mut subscription = nats.subscribe(spec).await;
    answered(async || subscription.backlog().await).await
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
        // One filter covers both event types, and other event types.
        assert_eq!(config.filter_subject, format!("{}.order.*.*", nats.prefix));
        let all = ["a.b/placed/1", "a.b/shipped/1", "a.b/cancelled/1"];
        assert_eq!(receive_and_ack(&mut subscription, 3).await, all);
    }
}

async fn whole_aggregates_arrive_with_all_their_event_types(nats: &Nats) {
    nats.provision().await;
    publish_one_of_each(nats).await;
    let spec = ConsumerSpec {
        whole_aggregates: true,
        ..consumer(&[&PLACED])
    };
    let mut subscription = nats.subscribe(&spec).await;
    assert_eq!(
        receive_and_ack(&mut subscription, 3).await,
        ["a.b/placed/1", "a.b/shipped/1", "a.b/cancelled/1"]
    );
}

/// nats-server before 2.10.16 miscounts: a delivery for an expiring pull request gets a number and
/// is not sent. The message is redelivered after `ack_wait` with the next number, and then once
/// more with number 1.
async fn unacknowledged_messages_are_redelivered_and_counted(nats: &Nats) {
    nats.provision().await;
    let spec = ConsumerSpec {
        ack_wait: Duration::from_millis(500),
        ..consumer(&[&PLACED])
    };
    nats.publish(&message(&PLACED, "1", 1)).await;
    let mut subscription = nats.subscribe(&spec).await;
    let can_count = nats.client.is_server_compatible(2, 10, 16);
    let counted = |delivery: &JetStreamDelivery, highest: u64| {
        let count = delivery.incoming().delivery_count;
        let miscounted = !can_count && (count == 1 || count > highest);
        assert!(count == highest + 1 || miscounted, "{count} after {highest}");
        count.max(highest)
    };
    let (mut arrived, mut highest) = (0, 0);
    while highest < 3 {
        highest = counted(&receive(&mut subscription).await, highest);
        arrived += 1;
    }
    for delivery in subscription.stop().await {
        highest = counted(&delivery, highest);
        arrived += 1;
    }
    // No pull request is open, so the server's count of deliveries is stable.
    let sent = nats.consumer_info(&spec).await.delivered.consumer_sequence;
    assert_eq!(arrived, sent, "arrived, and sent by the server");

    let mut silent = nats.subscribe(&spec).await;
    highest = counted(&receive(&mut silent).await, highest);
    drop(silent);
    let mut other = nats.subscribe(&spec).await;
    loop {
        let delivery = receive(&mut other).await;
        delivery.ack().await.unwrap();
        if delivery.incoming().delivery_count > highest {
            break;
        }
        assert!(!can_count, "{delivery:?} after {highest}");
    }
    eventually("the acknowledgement", async || {
        let again = tokio::time::timeout(Duration::from_millis(20), other.next()).await;
        if let Ok(Ok(delivery)) = again {
            delivery.ack().await.unwrap();
        }
        subscription_backlog(nats, &spec).await == 0
    })
    .await;
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

    // Deleting the consumer deletes its position too.
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
    // The pause exceeds the server's allowed silence of 4 s.
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

async fn foreign_messages_are_delivered_raw(nats: &Nats) {
    nats.provision().await;
    let subject = format!("{}.order.1.placed", nats.prefix);
    nats.jetstream()
        .publish(subject.clone(), "raw".into())
        .await
        .unwrap()
        .await
        .unwrap();
    let mut subscription = nats.subscribe(&consumer(&[&PLACED])).await;
    let delivery = receive(&mut subscription).await;
    let incoming = delivery.incoming();
    assert_eq!(
        (incoming.subject.as_str(), incoming.payload.as_ref()),
        (subject.as_str(), &b"raw"[..])
    );
    assert_eq!(incoming.headers, []);
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
