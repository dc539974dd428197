//! Results of a publish, and the messages on the stream.

use std::time::Instant;

use outbox_core::{FailureClass, Publisher as _};
use outbox_nats::async_nats::jetstream::stream::Config;
use outbox_nats::async_nats::jetstream::stream::DiscardPolicy;
use outbox_nats::{EventStream, PublisherConfig};

use crate::environment::{Nats, PLACED, SOON, message, on_both_servers, publish, sent};

on_both_servers! {
    an_id_of_another_event_is_not_confirmed,
    messages_beyond_the_window_wait_and_are_published,
    a_harmful_subject_is_never_sent,
    a_missing_stream_is_transient,
    another_stream_on_the_subject_is_a_configuration_error,
    a_message_above_the_limit_of_the_stream_is_permanent,
    a_full_stream_is_backpressure,
}

fn class(result: Result<outbox_core::Receipt, outbox_core::PublishError>) -> FailureClass {
    result.expect_err("a failure").class()
}

async fn an_id_of_another_event_is_not_confirmed(nats: &Nats) {
    nats.provision().await;
    let publisher = nats.publisher();
    let stored = message(&PLACED, "a", 1);
    publish(&publisher, &stored).await;
    let mut other = message(&PLACED, "b", 1);
    (other.id, other.event_id) = (stored.id, stored.event_id);
    assert_eq!(class(publisher.publish(&other).await), FailureClass::Permanent);
    let renamed = publisher.with_config(PublisherConfig::default().source("renamed"));
    assert!(publish(&renamed, &stored).await.duplicate);
    assert_eq!(nats.stored().await.len(), 1);
}

/// Method: publish more messages than the window holds. async-nats alone would wait without limit.
async fn messages_beyond_the_window_wait_and_are_published(nats: &Nats) {
    nats.provision().await;
    let publisher = nats.publisher();
    let messages: Vec<_> = (0..3_000).map(|n| message(&PLACED, &n.to_string(), 1)).collect();
    let publishes = messages.iter().map(|message| publish(&publisher, message));
    let publishes = futures_util::future::join_all(publishes);
    let receipts = tokio::time::timeout(SOON, publishes).await.unwrap();
    let mut stream_sequences: Vec<u64> = receipts
        .into_iter()
        .map(|receipt| receipt.stream_sequence)
        .collect();
    stream_sequences.sort_unstable();
    assert_eq!(stream_sequences, (1..=3_000).collect::<Vec<_>>());
}

/// Method: record a subject on which an empty publish purges the stream, if permissions allow it.
async fn a_harmful_subject_is_never_sent(nats: &Nats) {
    nats.provision().await;
    nats.publish(&message(&PLACED, "1", 1)).await;
    for subject in [
        format!("$JS.API.STREAM.PURGE.{}", nats.name),
        format!("{}.*", nats.prefix),
        format!("{}.a b", nats.prefix),
    ] {
        let mut harmful = message(&PLACED, "2", 1);
        harmful.subject = Some(subject);
        assert_eq!(
            class(nats.publisher().publish(&harmful).await),
            FailureClass::Permanent
        );
    }
    assert_eq!(nats.stored().await.len(), 1);
}

async fn a_missing_stream_is_transient(nats: &Nats) {
    let patient = nats.publisher_config().ack_timeout(3 * SOON);
    let publisher = nats.publisher().with_config(patient);
    let started = Instant::now();
    assert_eq!(
        class(sent(&publisher, &message(&PLACED, "1", 1)).await),
        FailureClass::Transient
    );
    assert!(
        started.elapsed() < SOON,
        "the publish does not wait for the timeout"
    );
}

async fn another_stream_on_the_subject_is_a_configuration_error(nats: &Nats) {
    nats.provision().await;
    let other = EventStream::new(format!("other-{}", nats.name)).with_prefix(nats.prefix.as_str());
    let publisher = other.unwrap().publisher(nats.client.clone());
    assert_eq!(
        class(sent(&publisher, &message(&PLACED, "1", 1)).await),
        FailureClass::Configuration
    );
    assert_eq!(nats.stored().await.len(), 0);
}

async fn a_message_above_the_limit_of_the_stream_is_permanent(nats: &Nats) {
    let config = Config {
        name: nats.name.clone(),
        subjects: vec![nats.prefix.wildcard()],
        max_message_size: 2_000,
        ..Config::default()
    };
    nats.jetstream().create_stream(config).await.unwrap();
    let mut large = message(&PLACED, "1", 1);
    large.payload = vec![b'x'; 3_000].into();
    assert_eq!(
        class(sent(&nats.publisher(), &large).await),
        FailureClass::Permanent
    );
}

async fn a_full_stream_is_backpressure(nats: &Nats) {
    let config = Config {
        name: nats.name.clone(),
        subjects: vec![nats.prefix.wildcard()],
        max_messages: 3,
        discard: DiscardPolicy::New,
        ..Config::default()
    };
    nats.jetstream().create_stream(config).await.unwrap();
    for sequence in 1..=3 {
        nats.publish(&message(&PLACED, "1", sequence)).await;
    }
    assert_eq!(
        class(sent(&nats.publisher(), &message(&PLACED, "1", 4)).await),
        FailureClass::Backpressure
    );
}
