//! Helpers of the subscriber suite.

use std::time::Duration;

use outbox_core::codec;
use outbox_core::event::EventDescriptor;
use outbox_core::message::Message;
use outbox_core::subscriber::{ConsumerSpec, Delivery, StartAt, Subscriber, SubscriberError, Subscription};
use tokio::time::{Instant, sleep, timeout};

use super::SubscriberFixture;
use crate::conformance::probe::{NOTED, message};

pub(super) const SOON: Duration = Duration::from_secs(30);

pub(super) const NEVER: Duration = Duration::from_secs(60);

pub(super) type SubscriptionOf<F> = <<F as SubscriberFixture>::Subscriber as Subscriber>::Subscription;
pub(super) type DeliveryOf<F> = <SubscriptionOf<F> as Subscription>::Delivery;

pub(super) fn consumer(name: &str, events: &[&'static EventDescriptor], ack_wait: Duration) -> ConsumerSpec {
    ConsumerSpec {
        name: name.to_owned(),
        events: events.to_vec(),
        ack_wait,
        whole_aggregates: false,
        siblings: Vec::new(),
        in_flight_max: 100,
        prefetch: 100,
        start_at: StartAt::Beginning,
    }
}

pub(super) async fn subscribe<F: SubscriberFixture>(fixture: &F, spec: &ConsumerSpec) -> SubscriptionOf<F> {
    answered(async || fixture.subscriber().subscribe(spec).await).await
}

pub(super) async fn answered<T>(mut call: impl AsyncFnMut() -> Result<T, SubscriberError>) -> T {
    let until = Instant::now() + SOON;
    loop {
        match call().await {
            Ok(answer) => return answer,
            Err(SubscriberError::Interrupted { .. }) if Instant::now() < until => {
                sleep(Duration::from_millis(50)).await;
            }
            Err(error) => panic!("the broker answers with an error: {error}"),
        }
    }
}

pub(super) async fn publish<F: SubscriberFixture>(
    fixture: &F,
    descriptor: &EventDescriptor,
    id: &str,
    count: u64,
) -> Vec<Message> {
    let messages = (1..=count).map(|sequence| message(descriptor, id, sequence));
    let messages: Vec<Message> = messages.collect();
    for message in &messages {
        fixture.publish(message.clone()).await;
    }
    messages
}

/// Returns the next message of a wanted event type. Acknowledges and skips other event types.
pub(super) async fn next_within<S: Subscription>(
    subscription: &mut S,
    events: &[&EventDescriptor],
    time: Duration,
) -> Option<S::Delivery> {
    let wanted = async {
        loop {
            match subscription.next().await {
                Ok(delivery) => {
                    let event_type = read(&delivery).event_type;
                    if events.iter().any(|event| event.event_type() == event_type) {
                        return delivery;
                    }
                    delivery.ack().await.expect("ack is sent");
                }
                Err(SubscriberError::Interrupted { .. }) => sleep(Duration::from_millis(50)).await,
                Err(error) => panic!("the subscription ended: {error}"),
            }
        }
    };
    timeout(time, wanted).await.ok()
}

pub(super) async fn next<S: Subscription>(subscription: &mut S) -> S::Delivery {
    next_of(subscription, &[NOTED]).await
}

pub(super) async fn assert_quiet<S: Subscription>(subscription: &mut S, time: Duration) {
    if let Some(delivery) = next_within(subscription, &[NOTED], time).await {
        let incoming = delivery.incoming();
        panic!(
            "stream sequence {} was delivered, for the {}. time",
            incoming.stream_sequence, incoming.delivery_count
        );
    }
}

pub(super) fn read<D: Delivery>(delivery: &D) -> Message {
    let incoming = delivery.incoming();
    codec::decode(&incoming.headers, incoming.payload.clone())
        .expect("the suite publishes decodable messages")
}

pub(super) async fn ack<D: Delivery>(delivery: D) {
    delivery.ack().await.expect("ack is sent");
}

pub(super) async fn retry<D: Delivery>(delivery: D, delay: Duration) {
    delivery.retry_after(delay).await.expect("the answer is sent");
}

pub(super) async fn is_asked_for<D: Delivery>(delivery: &D) -> bool {
    answered(async || delivery.is_asked_for().await).await
}

pub(super) async fn has_predecessors<D: Delivery>(delivery: &D) -> bool {
    answered(async || delivery.has_predecessors().await).await
}

pub(super) async fn next_of<S: Subscription>(
    subscription: &mut S,
    events: &[&EventDescriptor],
) -> S::Delivery {
    let delivery = next_within(subscription, events, SOON).await;
    delivery.expect("a delivery arrives")
}

pub(super) async fn stop<S: Subscription>(subscription: &mut S) {
    subscription.flush().await.expect("the answers arrive");
    assert_eq!(subscription.stop().await.len(), 0, "more was fetched");
}

pub(super) fn count<D: Delivery>(delivery: &D) -> u64 {
    delivery.incoming().delivery_count
}

pub(super) fn counted<F: SubscriberFixture>(fixture: &F, delivery: &DeliveryOf<F>, highest: u64) -> u64 {
    let count = count(delivery);
    let is_miscounted = fixture.gives_again() && (count == 1 || count > highest);
    assert!(
        count == highest + 1 || is_miscounted,
        "wrong delivery count: {count} after {highest}"
    );
    count.max(highest)
}
