//! The result of a publish, and the messages that are on the stream afterwards.

use std::time::Instant;

use outbox_core::{FailureClass, Headers, Publisher as _, codec};
use outbox_nats::async_nats::jetstream::stream::Config;
use outbox_nats::async_nats::jetstream::stream::DiscardPolicy;
use outbox_nats::{EventStream, PublisherConfig, decode_token};

use crate::environment::{Nats, PLACED, SOON, answered, event_on, message, on_both_servers, publish, sent};

on_both_servers! {
    a_message_arrives_as_it_was_and_once,
    an_id_of_another_event_is_not_confirmed,
    odd_aggregate_ids_reach_the_stream_and_come_back,
    a_window_of_messages_is_published_at_once,
    a_fixed_subject_is_used,
    a_harmful_subject_is_never_sent,
    a_missing_stream_is_transient,
    another_stream_on_the_subject_is_a_configuration_error,
    an_oversized_message_is_permanent,
    a_message_above_the_limit_of_the_stream_is_permanent,
    a_full_stream_is_backpressure,
}

fn class(result: Result<outbox_core::Receipt, outbox_core::PublishError>) -> FailureClass {
    result.expect_err("a failure").class()
}

async fn a_message_arrives_as_it_was_and_once(nats: &Nats) {
    nats.provision().await;
    let publisher = nats.publisher();
    let mut sent = message(&PLACED, "ü \r\n\u{1}*", 1);
    let mut headers = Headers::default();
    headers.set("tenant", "Müller & Söhne \"100%\"").unwrap();
    sent.headers = headers;
    let first = publish(&publisher, &sent).await;
    assert_eq!((first.stream_sequence, first.duplicate), (1, false));
    let second = publish(&publisher, &sent).await;
    assert_eq!((second.stream_sequence, second.duplicate), (1, true));

    let stream = nats.jetstream().get_stream(&nats.name).await.unwrap();
    let stored = stream.get_raw_message(1).await.unwrap();
    let headers: Vec<_> = stored
        .headers
        .iter()
        .flat_map(|(name, values)| {
            values
                .iter()
                .map(move |value| (name.to_string(), value.to_string()))
        })
        .collect();
    assert_eq!(codec::decode(&headers, stored.payload).unwrap(), sent);
    assert_eq!(nats.stored().await.len(), 1);
}

/// Two outboxes on one stream use the same id. JetStream answers that it has the message.
async fn an_id_of_another_event_is_not_confirmed(nats: &Nats) {
    nats.provision().await;
    let publisher = nats.publisher();
    let stored = message(&PLACED, "a", 1);
    publish(&publisher, &stored).await;
    let mut other = message(&PLACED, "b", 1);
    (other.id, other.event_id) = (stored.id, stored.event_id);
    assert_eq!(class(publisher.publish(&other).await), FailureClass::Permanent);
    // The same event under another source, as after the source was changed.
    let renamed = publisher.with_config(PublisherConfig::default().source("renamed"));
    assert!(publish(&renamed, &stored).await.duplicate);
    assert_eq!(nats.stored().await.len(), 1);
}

async fn odd_aggregate_ids_reach_the_stream_and_come_back(nats: &Nats) {
    nats.provision().await;
    let ids = [
        "a.b",
        "*",
        ">",
        "a.>",
        "$JS.API.STREAM.PURGE.X",
        " ",
        "\t",
        "\r\n",
        "\0",
        "%",
        "%2E",
        "ü",
        "🦀",
    ];
    let ids: Vec<String> = ids
        .iter()
        .map(|id| (*id).to_owned())
        .chain(["ü".repeat(255), "🦀".repeat(255)])
        .collect();
    for id in &ids {
        nats.publish(&message(&PLACED, id, 1)).await;
    }
    let stored = nats.stored().await.into_iter().map(|(subject, _)| {
        let rest = subject.strip_prefix(&format!("{}.order.", nats.prefix)).unwrap();
        decode_token(rest.strip_suffix(".placed").unwrap()).unwrap()
    });
    assert_eq!(stored.collect::<Vec<_>>(), ids);
}

/// There are more messages than the window holds, so the others wait. async-nats alone would wait for ever.
async fn a_window_of_messages_is_published_at_once(nats: &Nats) {
    nats.provision().await;
    let publisher = nats.publisher().with_config(nats.publisher_config().window(64));
    let messages: Vec<_> = (0..1_000).map(|n| message(&PLACED, &n.to_string(), 1)).collect();
    let publishes = messages.iter().map(|message| publish(&publisher, message));
    let publishes = futures_util::future::join_all(publishes);
    let receipts = tokio::time::timeout(SOON, publishes).await.unwrap();
    let mut stream_sequences: Vec<u64> = receipts
        .into_iter()
        .map(|receipt| receipt.stream_sequence)
        .collect();
    stream_sequences.sort_unstable();
    assert_eq!(stream_sequences, (1..=1_000).collect::<Vec<_>>());
}

async fn a_fixed_subject_is_used(nats: &Nats) {
    let subject = format!("legacy-{}.orders", nats.name);
    let legacy = event_on("shipped", subject.clone());
    answered(async || nats.stream().provision_for(&nats.client, [legacy]).await).await;
    nats.publish(&message(legacy, "1", 1)).await;
    assert_eq!(nats.stored().await[0].0, subject);
}

/// An empty publish to this subject purges the stream, if permissions allow it.
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
    assert!(started.elapsed() < SOON, "it does not wait for the time-out");
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

async fn an_oversized_message_is_permanent(nats: &Nats) {
    nats.provision().await;
    let mut large = message(&PLACED, "1", 1);
    large.payload = vec![b'x'; nats.client.server_info().max_payload + 1].into();
    assert_eq!(
        class(sent(&nats.publisher(), &large).await),
        FailureClass::Permanent
    );
    // The connection is unharmed.
    nats.publish(&message(&PLACED, "1", 2)).await;
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
