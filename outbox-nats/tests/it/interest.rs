//! The list of event types requested from a consumer, stored in the durable.

use std::time::Instant;

use futures_util::{FutureExt as _, StreamExt as _};
use outbox_core::{ConsumerSpec, Delivery as _, EventDescriptor, Subscription as _};
use outbox_nats::async_nats::jetstream::consumer::{AckPolicy, Config, FromConsumer as _, pull};
use outbox_testing::eventually;

use crate::environment::{
    CANCELLED, Nats, PLACED, SHIPPED, answered, asked_for, consumer, message, on_both_servers, receive,
};

on_both_servers! {
    concurrent_subscriptions_overwrite_nothing,
    event_type_removed_by_an_operator_is_not_requested,
    process_that_finds_its_entry_waits_for_older_readings,
    entry_undone_by_a_late_write_stays_requested,
    filter_undone_by_a_late_write_is_restored,
    deliveries_cause_no_requests,
}

async fn publish(nats: &Nats, event: &EventDescriptor) {
    nats.publish(&message(event, "1", 1)).await;
}

async fn config(nats: &Nats, spec: &ConsumerSpec) -> Config {
    let stream = nats.jetstream().get_stream(&nats.name).await.unwrap();
    stream.consumer_info(&spec.name).await.unwrap().config
}

async fn change(nats: &Nats, config: pull::Config) {
    let stream = nats.jetstream().get_stream(&nats.name).await.unwrap();
    stream.create_consumer(config).await.unwrap();
}

fn as_read(seen: Config) -> pull::Config {
    pull::Config::try_from_consumer_config(seen).unwrap()
}

/// A request for whole aggregates: the consumer's filters do not show the requested event types.
fn whole(events: &[&'static EventDescriptor]) -> ConsumerSpec {
    ConsumerSpec {
        whole_aggregates: true,
        ..consumer(events)
    }
}

async fn concurrent_subscriptions_overwrite_nothing(nats: &Nats) {
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
        assert!(asked_for(&receive(&mut subscription).await).await);
    }
}

async fn event_type_removed_by_an_operator_is_not_requested(nats: &Nats) {
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
    eventually("the shorter list counts", async || !asked_for(&delivery).await).await;
    delivery.ack().await.unwrap();
    answered(async || subscription.flush().await).await;
}

/// Another process has just written the list with the same event type, and has not waited yet. The
/// process under test finds the entry and must wait as well.
async fn process_that_finds_its_entry_waits_for_older_readings(nats: &Nats) {
    nats.provision().await;
    let (old, new) = (whole(&[&PLACED]), whole(&[&PLACED, &SHIPPED]));
    let mut running = nats.subscribe(&old).await;
    publish(nats, &CANCELLED).await;
    let unknown = receive(&mut running).await;
    assert!(!asked_for(&unknown).await);
    unknown.ack().await.unwrap();
    let seen = as_read(config(nats, &old).await);
    let description = Some("Reads events for an inbox. [asked for: order.placed, order.shipped]".to_owned());
    change(nats, pull::Config { description, ..seen }).await;
    drop(nats.subscribe(&new).await);
    publish(nats, &SHIPPED).await;
    assert!(asked_for(&receive(&mut running).await).await);
}

/// A program writes an outdated list, after another program has added an entry and subscribed.
async fn entry_undone_by_a_late_write_stays_requested(nats: &Nats) {
    nats.provision().await;
    let (old, new) = (whole(&[&PLACED]), whole(&[&PLACED, &SHIPPED]));
    let mut running = nats.subscribe(&old).await;
    publish(nats, &CANCELLED).await;
    let unknown = receive(&mut running).await;
    assert!(!asked_for(&unknown).await);
    unknown.ack().await.unwrap();
    let late = as_read(config(nats, &old).await);
    let added = nats.subscribe(&new).await;
    let written = config(nats, &new).await.description;
    change(nats, late.clone()).await;
    publish(nats, &SHIPPED).await;
    let shipped = receive(&mut running).await;
    assert!(asked_for(&shipped).await);
    eventually("the entry", async || {
        config(nats, &new).await.description == written
    })
    .await;
    // The outdated list comes from a process that has never read the new entry.
    change(nats, late).await;
    let mut newcomer = nats.subscribe(&old).await;
    drop(running);
    publish(nats, &SHIPPED).await;
    assert!(asked_for(&receive(&mut newcomer).await).await);
    drop(added);
}

async fn filter_undone_by_a_late_write_is_restored(nats: &Nats) {
    nats.provision().await;
    let (old, new) = (consumer(&[&PLACED]), consumer(&[&PLACED, &SHIPPED]));
    drop(nats.subscribe(&old).await);
    let late = as_read(config(nats, &old).await);
    let mut added = nats.subscribe(&new).await;
    let written = config(nats, &new).await;
    change(nats, late).await;
    eventually("the filter", async || {
        let seen = config(nats, &new).await;
        (seen.description, seen.filter_subject, seen.filter_subjects)
            == (
                written.description.clone(),
                written.filter_subject.clone(),
                written.filter_subjects.clone(),
            )
    })
    .await;
    publish(nats, &SHIPPED).await;
    receive(&mut added).await;
}

async fn deliveries_cause_no_requests(nats: &Nats) {
    nats.provision().await;
    let spec = whole(&[&PLACED]);
    let mut subscription = nats.subscribe(&spec).await;
    publish(nats, &CANCELLED).await;
    let unknown = receive(&mut subscription).await;
    assert!(!asked_for(&unknown).await);
    let info = format!("$JS.API.CONSUMER.INFO.{}.{}", nats.name, spec.name);
    let mut requests = nats.client.subscribe(info).await.unwrap();
    let stream = nats.jetstream().get_stream(&nats.name).await.unwrap();
    stream.delete_consumer(&spec.name).await.unwrap();
    eventually("an error", async || unknown.is_asked_for().await.is_err()).await;
    let began = Instant::now();
    for _ in 0..100 {
        assert!(unknown.is_asked_for().await.is_err());
    }
    let took = usize::try_from(began.elapsed().as_secs()).unwrap();
    drop(subscription);
    let mut count = 0;
    while let Some(Some(_)) = requests.next().now_or_never() {
        count += 1;
    }
    assert!((1..=4 + took).contains(&count), "{count} requests in {took} s");
}
