//! Faults of the in-memory broker, which the suites do not cover.

use std::time::Duration;

use outbox_core::{
    ConsumerSpec, Delivery, FailureClass, Message, Publisher, Subscriber, SubscriberError, Subscription,
};
use outbox_testing::conformance::probe::{self, NOTED, OBSERVED};
use outbox_testing::{LogEntry, MemoryBroker};

const MINUTE: Duration = Duration::from_secs(60);

fn spec(name: &str) -> ConsumerSpec {
    ConsumerSpec {
        name: name.to_owned(),
        events: vec![NOTED],
        ack_wait: MINUTE,
        whole_aggregates: false,
        siblings: Vec::new(),
        in_flight_max: 10,
        prefetch: 10,
        start_at: outbox_core::StartAt::Beginning,
    }
}

#[tokio::test(start_paused = true)]
async fn an_outage_interrupts_subscriptions_and_loses_acks() {
    let broker = MemoryBroker::new();
    broker
        .publisher()
        .publish(&probe::message(NOTED, "a", 1))
        .await
        .unwrap();
    let mut subscription = broker.subscriber().subscribe(&spec("c")).await.unwrap();
    let delivery = subscription.next().await.unwrap();
    broker.set_down(true);
    assert!(matches!(
        delivery.ack().await,
        Err(SubscriberError::Interrupted { .. })
    ));
    assert!(matches!(
        subscription.next().await,
        Err(SubscriberError::Interrupted { .. })
    ));
    assert!(matches!(
        broker.subscriber().subscribe(&spec("d")).await,
        Err(SubscriberError::Interrupted { .. })
    ));
    broker.set_down(false);
    let delivery = subscription.next().await.unwrap();
    assert_eq!(delivery.incoming().delivery_count, 2);
    assert!(!broker.is_idle("c"));
    delivery.ack().await.unwrap();
    broker.until_idle("c").await;
    assert_eq!(broker.deliveries("c"), 2);
}

#[tokio::test(start_paused = true)]
async fn foreign_messages_reach_consumers_unchanged() {
    let broker = MemoryBroker::new();
    let headers = vec![("X-Foreign".to_owned(), "yes".to_owned())];
    let stream_sequence = broker.inject("events.probe.1.noted", headers.clone(), &b"\xff"[..]);
    let other = vec![("ce-type".to_owned(), OBSERVED.event_type())];
    broker.inject("events.probe.1.observed", other, &b""[..]);
    let mut subscription = broker.subscriber().subscribe(&spec("c")).await.unwrap();
    let delivery = subscription.next().await.unwrap();
    assert_eq!(delivery.incoming().headers, headers);
    assert_eq!(delivery.incoming().stream_sequence, stream_sequence);
    delivery.ack().await.unwrap();
    assert!(
        broker.is_idle("c"),
        "a foreign message of another type is not for this consumer"
    );
    assert!(matches!(broker.log()[0], LogEntry { message: Err(_), .. }));
    assert_eq!(broker.messages(), []);
}

#[tokio::test]
async fn a_deleted_consumer_is_gone() {
    let broker = MemoryBroker::new();
    let mut old = broker.subscriber().subscribe(&spec("c")).await.unwrap();
    broker.delete_consumer("c");
    assert!(matches!(old.next().await, Err(SubscriberError::Gone { .. })));
    broker.subscriber().subscribe(&spec("c")).await.unwrap();
    assert!(matches!(old.next().await, Err(SubscriberError::Gone { .. })));
}

#[tokio::test(start_paused = true)]
async fn lost_messages_are_gone_with_their_ids() {
    let broker = MemoryBroker::new();
    let messages: Vec<Message> = (1..=4).map(|n| probe::message(NOTED, "a", n)).collect();
    for message in &messages {
        broker.publisher().publish(message).await.unwrap();
    }
    let mut subscription = broker.subscriber().subscribe(&spec("c")).await.unwrap();
    subscription.next().await.unwrap().ack().await.unwrap();
    let unacked = subscription.next().await.unwrap();
    broker.lose_tail(1);
    broker.forget(&[messages[1].id]);
    let stream_sequences: Vec<u64> = broker.log().iter().map(|entry| entry.stream_sequence).collect();
    assert_eq!(stream_sequences, [1, 3]);
    unacked.ack().await.unwrap();

    let again = broker.publisher().publish(&messages[3]).await.unwrap();
    assert_eq!((again.stream_sequence, again.duplicate), (5, false));
    assert!(broker.publisher().publish(&messages[2]).await.unwrap().duplicate);
    let mut left = Vec::new();
    while !broker.is_idle("c") {
        let delivery = subscription.next().await.unwrap();
        left.push(delivery.incoming().stream_sequence);
        delivery.ack().await.unwrap();
    }
    assert_eq!(left, [3, 5], "lost messages are not delivered");
}

#[tokio::test(start_paused = true)]
async fn abandoned_publishes_do_not_arrive() {
    let broker = MemoryBroker::new().with_latency(Duration::from_millis(10));
    let publisher = broker.publisher();
    let on_its_way = tokio::spawn({
        let publisher = publisher.clone();
        async move { publisher.publish(&probe::message(NOTED, "a", 1)).await }
    });
    tokio::task::yield_now().await;
    publisher.abandon().await;
    let error = on_its_way.await.unwrap().unwrap_err();
    assert_eq!(error.class(), FailureClass::Unknown);
    assert_eq!(broker.messages(), []);
}
