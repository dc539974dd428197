//! What the deliveries of a new consumer show of its aggregates, without a question.

use std::sync::atomic::Ordering;

use outbox_core::{ConsumerSpec, Delivery as _, StartAt};
use outbox_nats::async_nats::jetstream::consumer::{FromConsumer as _, pull};
use outbox_nats::{EventStream, JetStreamSubscription};
use outbox_testing::eventually;
use time::OffsetDateTime;

use crate::environment::{
    self, Nats, PLACED, SHIPPED, answered, consumer, event_on, message, on_both_servers, receive, subscribe,
};

on_both_servers! {
    a_subscription_alone_has_missed_nothing_that_was_there,
    what_was_published_in_another_mode_is_not_overlooked,
    what_was_published_on_a_fixed_subject_is_not_overlooked,
    the_first_of_what_is_not_asked_for_counts,
    a_new_connection_ends_what_is_known,
    a_filter_that_was_narrowed_ends_what_is_known,
    nothing_is_known_of_parts_of_aggregates,
    nothing_is_known_from_a_time_on,
}

/// A consumer that is given one message at a time.
fn whole() -> ConsumerSpec {
    ConsumerSpec {
        whole_aggregates: true,
        prefetch: 1,
        ..consumer(&[&PLACED])
    }
}

/// Whether the server tells who has made a consumer.
fn tells(nats: &Nats) -> bool {
    nats.client.is_server_compatible(2, 10, 0)
}

async fn publish(nats: &Nats, stream: &EventStream, numbers: &[u64]) {
    let publisher = stream
        .publisher(nats.client.clone())
        .with_config(nats.publisher_config());
    for number in numbers {
        environment::publish(&publisher, &message(&PLACED, "1", *number)).await;
    }
}

/// What the next deliveries say.
async fn known(subscription: &mut JetStreamSubscription, count: usize) -> Vec<bool> {
    let mut known = Vec::new();
    for _ in 0..count {
        let delivery = receive(subscription).await;
        known.push(delivery.is_unbroken());
        delivery.ack().await.unwrap();
    }
    known
}

async fn a_subscription_alone_has_missed_nothing_that_was_there(nats: &Nats) {
    nats.provision().await;
    publish(nats, &nats.stream(), &[1, 2]).await;
    nats.publish(&message(&SHIPPED, "1", 3)).await;
    let mut subscription = nats.subscribe(&whole()).await;
    assert_eq!(known(&mut subscription, 3).await, [tells(nats); 3]);
    // Others may have published in another mode meanwhile, which is not looked for.
    publish(nats, &nats.stream(), &[4]).await;
    assert_eq!(known(&mut subscription, 1).await, [false]);
}

/// A consumer that has not asked for all events of an aggregate cannot see where it begins.
async fn nothing_is_known_of_parts_of_aggregates(nats: &Nats) {
    nats.provision().await;
    publish(nats, &nats.stream(), &[1]).await;
    let spec = ConsumerSpec {
        whole_aggregates: false,
        ..whole()
    };
    let mut subscription = nats.subscribe(&spec).await;
    assert_eq!(known(&mut subscription, 1).await, [false]);
}

/// What is on the stream before that time is not delivered.
async fn nothing_is_known_from_a_time_on(nats: &Nats) {
    nats.provision().await;
    publish(nats, &nats.stream(), &[1]).await;
    let spec = ConsumerSpec {
        start_at: StartAt::Time(OffsetDateTime::UNIX_EPOCH),
        ..whole()
    };
    let mut subscription = nats.subscribe(&spec).await;
    assert_eq!(known(&mut subscription, 1).await, [false]);
}

/// The stream was in strong mode for some time. A consumer that is not is not given those messages.
async fn what_was_published_in_another_mode_is_not_overlooked(nats: &Nats) {
    let (plain, strong) = (nats.stream_in_mode(false), nats.stream_in_mode(true));
    nats.provision().await;
    publish(nats, &plain, &[1]).await;
    publish(nats, &strong, &[2]).await;
    publish(nats, &plain, &[3]).await;
    let mut subscription = nats.subscribe(&whole()).await;
    assert_eq!(known(&mut subscription, 2).await, [tells(nats), false]);
    let both = strong
        .subscriber(nats.client.clone())
        .with_config(nats.subscriber_config());
    let spec = ConsumerSpec {
        name: "both".to_owned(),
        ..whole()
    };
    let mut subscription = subscribe(&both, &spec).await;
    assert_eq!(known(&mut subscription, 3).await, [tells(nats); 3]);
}

/// The event is asked for by its fixed subject, and its aggregate has messages on the default ones.
async fn what_was_published_on_a_fixed_subject_is_not_overlooked(nats: &Nats) {
    let fixed = event_on("refunded", format!("{}-refunds", nats.prefix));
    let stream = nats.stream();
    answered(async || stream.provision_for(&nats.client, [&PLACED, fixed]).await).await;
    nats.publish(&message(fixed, "1", 1)).await;
    publish(nats, &stream, &[2]).await;
    nats.publish(&message(fixed, "1", 3)).await;
    let spec = ConsumerSpec {
        events: vec![fixed],
        ..whole()
    };
    let mut subscription = nats.subscribe(&spec).await;
    assert_eq!(known(&mut subscription, 2).await, [tells(nats), false]);
}

/// In both modes there are messages that the consumer does not ask for. The later one is found last.
async fn the_first_of_what_is_not_asked_for_counts(nats: &Nats) {
    let fixed = event_on("refunded", format!("{}-refunds", nats.prefix));
    let (plain, strong) = (nats.stream_in_mode(false), nats.stream_in_mode(true));
    answered(async || plain.provision_for(&nats.client, [&PLACED, fixed]).await).await;
    nats.publish(&message(fixed, "1", 1)).await;
    publish(nats, &strong, &[2]).await;
    nats.publish(&message(fixed, "1", 3)).await;
    publish(nats, &plain, &[4]).await;
    let spec = ConsumerSpec {
        events: vec![fixed],
        ..whole()
    };
    let mut subscription = nats.subscribe(&spec).await;
    assert_eq!(known(&mut subscription, 2).await, [tells(nats), false]);
}

/// On another connection it may be another consumer of the same name.
async fn a_new_connection_ends_what_is_known(nats: &Nats) {
    nats.provision().await;
    publish(nats, &nats.stream(), &[1, 2]).await;
    let mut subscription = nats.subscribe(&whole()).await;
    assert_eq!(known(&mut subscription, 1).await, [tells(nats)]);
    let connects = || nats.client.statistics().connects.load(Ordering::Relaxed);
    let before = connects();
    nats.client.force_reconnect().await.unwrap();
    eventually("another connection", async || connects() > before).await;
    assert_eq!(known(&mut subscription, 1).await, [false]);
}

/// Another program has written an older configuration. What was published meanwhile may have been passed over.
async fn a_filter_that_was_narrowed_ends_what_is_known(nats: &Nats) {
    nats.provision().await;
    publish(nats, &nats.stream(), &[1, 2]).await;
    let spec = whole();
    let mut subscription = nats.subscribe(&spec).await;
    assert_eq!(known(&mut subscription, 1).await, [tells(nats)]);
    let written = nats.consumer_info(&spec).await.config;
    let filter = |config: &pull::Config| (config.filter_subject.clone(), config.filter_subjects.clone());
    let written = pull::Config::try_from_consumer_config(written).unwrap();
    let narrow = pull::Config {
        filter_subject: nats.prefix.filter(&PLACED),
        filter_subjects: Vec::new(),
        ..written.clone()
    };
    let stream = nats.jetstream().get_stream(&nats.name).await.unwrap();
    stream.create_consumer(narrow).await.unwrap();
    eventually("the filter", async || {
        let seen = nats.consumer_info(&spec).await.config;
        let seen = pull::Config::try_from_consumer_config(seen).unwrap();
        filter(&seen) == filter(&written)
    })
    .await;
    assert_eq!(known(&mut subscription, 1).await, [false]);
}
