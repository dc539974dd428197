//! Durables that operators move: what is kept, and what a crash leaves.

use outbox_core::{ConsumerAdmin as _, ConsumerSpec, StartAt, Subscriber as _, Subscription as _};
use outbox_nats::async_nats::jetstream::consumer::{DeliverPolicy, pull};

use crate::environment::{
    Nats, PLACED, SHIPPED, answered, consumer, message, on_both_servers, receive_and_ack,
};

on_both_servers! {
    what_a_consumer_asks_for_is_kept_when_it_is_moved,
    a_place_that_was_interrupted_is_finished,
}

async fn config_of(nats: &Nats, name: &str) -> Option<pull::Config> {
    use outbox_nats::async_nats::jetstream::consumer::FromConsumer as _;

    let stream = nats.jetstream().get_stream(&nats.name).await.unwrap();
    let info = stream.consumer_info(name).await.ok()?;
    Some(pull::Config::try_from_consumer_config(info.config).unwrap())
}

/// Everything but its name and its start.
fn asks(config: pull::Config) -> (Option<String>, std::time::Duration, i64, String, Vec<String>) {
    (
        config.description,
        config.ack_wait,
        config.max_ack_pending,
        config.filter_subject,
        config.filter_subjects,
    )
}

/// A consumer that has handled two messages of three.
async fn billing(nats: &Nats) -> ConsumerSpec {
    nats.provision().await;
    let spec = consumer(&[&PLACED, &SHIPPED]);
    for (event, number) in [(&PLACED, 1), (&SHIPPED, 2), (&PLACED, 3)] {
        nats.publish(&message(event, "1", number)).await;
    }
    let mut subscription = nats.subscribe(&spec).await;
    receive_and_ack(&mut subscription, 2).await;
    for left in subscription.stop().await {
        drop(left);
    }
    spec
}

async fn what_a_consumer_asks_for_is_kept_when_it_is_moved(nats: &Nats) {
    let spec = billing(nats).await;
    let before = asks(config_of(nats, &spec.name).await.unwrap());
    let operator = nats.subscriber();
    answered(async || operator.place("billing", 2).await).await;
    let config = config_of(nats, "billing").await.unwrap();
    let start_sequence = 2;
    assert_eq!(
        config.deliver_policy,
        DeliverPolicy::ByStartSequence { start_sequence }
    );
    assert_eq!(asks(config), before);
    // A process that comes back finds nothing to change.
    let mut subscription = nats.subscribe(&spec).await;
    assert_eq!(
        receive_and_ack(&mut subscription, 2).await,
        ["1/shipped/2", "1/placed/3"]
    );
}

/// The operator's process died when the consumer was away.
async fn a_place_that_was_interrupted_is_finished(nats: &Nats) {
    let spec = billing(nats).await;
    let before = asks(config_of(nats, &spec.name).await.unwrap());
    let operator = nats.subscriber();
    let foreseen = answered(async || operator.foresee("billing", StartAt::Beginning).await).await;
    assert_eq!((foreseen.stream_sequence, foreseen.messages), (1, 3));
    let stream = nats.jetstream().get_stream(&nats.name).await.unwrap();
    let mut spare = config_of(nats, "billing").await.unwrap();
    spare.durable_name = Some("billing-is-placed-anew".to_owned());
    spare.name.clone_from(&spare.durable_name);
    stream.create_consumer(spare).await.unwrap();
    stream.delete_consumer("billing").await.unwrap();
    let standing = answered(async || operator.standing("billing").await).await;
    assert_eq!(standing, None);
    answered(async || operator.place("billing", foreseen.stream_sequence).await).await;
    assert_eq!(asks(config_of(nats, "billing").await.unwrap()), before);
    assert_eq!(config_of(nats, "billing-is-placed-anew").await, None);
    let mut subscription = nats.subscribe(&spec).await;
    receive_and_ack(&mut subscription, 3).await;
}
