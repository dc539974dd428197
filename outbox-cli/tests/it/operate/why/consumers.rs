//! `outbox why` about consumers of a message on the stream.

use futures_util::StreamExt as _;
use outbox::core::MessageId;
use outbox::inbox::{Event, HandlerError, idempotent_handler};
use outbox::nats::EventStream;
use outbox::nats::async_nats::jetstream;
use outbox::nats::async_nats::jetstream::consumer::{Consumer, pull};

use super::{check, why};
use crate::operate::answer::ask;
use crate::operate::plant::{OrderPlaced, Planted};
use crate::place::{Kind, on_each_database};

async fn set(planted: &Planted, table: &str, what: &str) {
    let schema = planted.place.schema.as_ref().map(|schema| format!("{schema}."));
    let schema = schema.unwrap_or_default();
    let sql = format!("UPDATE {schema}{table} SET {what}");
    planted.place.execute(&sql).await;
}

async fn set_effects(planted: &Planted, status: u8) {
    set(planted, "inbox_messages", &format!("status = {status}")).await;
}

async fn events_without_effect_are_explained(kind: Kind) {
    let Some(planted) = Planted::open(kind).await else {
        return;
    };
    let place = &planted.place;
    let first = planted.placed("1").await;
    planted.publish().await;
    planted.handle().await;
    let dead_letter = why(&planted, first);
    let next = &dead_letter.json()["findings"][0]["next"];
    let which = "--consumer billing --aggregate order/1";
    assert_eq!(next[0], format!("outbox dead-letters list {which}"), "{next}");
    assert_eq!(next[1], format!("outbox dead-letters retry {which}"), "{next}");
    check(
        dead_letter,
        3,
        &["consumer-dead-letter", "on-stream"],
        "is a dead letter of consumer billing after 1 failed attempt: no price",
    );
    set_effects(&planted, 1).await;
    check(
        why(&planted, first),
        0,
        &["on-stream"],
        "consumer billing: handled",
    );

    let second = planted.placed("2").await;
    planted.publish().await;
    check(
        why(&planted, second),
        3,
        &["consumer-idle", "on-stream"],
        "No process of the consumer was requesting",
    );
    let pause = [
        "consumers",
        "pause",
        "billing",
        "--reason",
        "stocktaking",
        "--yes",
    ];
    ask(place, &pause).expect(0);
    check(
        why(&planted, second),
        3,
        &["consumer-paused", "on-stream"],
        "paused: stocktaking",
    );
    ask(place, "consumers resume billing --yes").expect(0);

    delivered_messages_are_explained(&planted, first, second).await;
    planted.close().await;
}

async fn delivered_messages_are_explained(planted: &Planted, first: MessageId, second: MessageId) {
    let place = &planted.place;
    let client = EventStream::new(&place.name).connect(&place.nats).await.unwrap();
    let stream = jetstream::new(client).get_stream(&place.name).await.unwrap();
    let consumer: Consumer<pull::Config> = stream.get_consumer("billing").await.unwrap();
    let mut batch = consumer.batch().max_messages(1).messages().await.unwrap();
    let taken = batch.next().await.unwrap().unwrap();
    check(why(planted, second), 0, &["on-stream"], "without a result yet");
    set_effects(planted, 0).await;
    check(
        why(planted, first),
        3,
        &["consumer-failed", "on-stream"],
        "in consumer billing: no price",
    );
    let after = planted.placed("1").await;
    planted.publish().await;
    let mut batch = consumer.batch().max_messages(1).messages().await.unwrap();
    let kept = batch.next().await.unwrap().unwrap();
    check(
        why(planted, after),
        0,
        &["on-stream"],
        "has failed there 1 time: no price",
    );
    let third = planted.placed("3").await;
    planted.publish().await;
    check(
        why(planted, third),
        3,
        &["consumer-behind", "on-stream"],
        "The consumer has not reached it yet",
    );
    drop((taken, kept));
}

async fn full_consumer_explains_undelivered_message(kind: Kind) {
    let Some(planted) = Planted::open(kind).await else {
        return;
    };
    let place = &planted.place;
    planted.placed("1").await;
    let second = planted.placed("1").await;
    planted.publish().await;
    planted.make_inbox().await;
    let client = EventStream::new(&place.name).connect(&place.nats).await.unwrap();
    let stream = jetstream::new(client).get_stream(&place.name).await.unwrap();
    let config = pull::Config {
        durable_name: Some("narrow".to_owned()),
        max_ack_pending: 1,
        ..pull::Config::default()
    };
    let consumer = stream.create_consumer(config).await.unwrap();
    let mut batch = consumer.batch().max_messages(1).messages().await.unwrap();
    let taken = batch.next().await.unwrap().unwrap();
    check(
        why(&planted, second),
        3,
        &["consumer-full", "on-stream"],
        "It has 1 message unacknowledged, the limit is 1 (`max_ack_pending`)",
    );
    full_consumer_explanation_is_printed(&planted);
    taken.double_ack().await.unwrap();
    check(
        why(&planted, second),
        3,
        &["consumer-idle", "on-stream"],
        "No process of the consumer was requesting",
    );
    planted.close().await;
}

fn full_consumer_explanation_is_printed(planted: &Planted) {
    let listed = ask(&planted.place, "consumers list -o json").expect(0).json();
    let lag = &listed[0];
    let reason = &lag["reasons"][0];
    assert_eq!(lag["state"], "degraded", "{lag}");
    let full = "it has 1 message unacknowledged, the limit is 1 (`max_ack_pending`)";
    assert!(reason["what"].as_str().unwrap().contains(full), "{lag}");
    let next = reason["next"].as_str().unwrap();
    assert!(next.starts_with("outbox consumers list --forecast"), "{lag}");
    let doctor = ask(&planted.place, "doctor");
    assert!(doctor.says(full), "{doctor:?}");
}

#[idempotent_handler(consumer = "counting", strategy = sequence)]
async fn count(_event: Event<OrderPlaced>) -> Result<(), HandlerError> {
    Ok(())
}

async fn sequence_gap_is_explained(kind: Kind) {
    let Some(planted) = Planted::open(kind).await else {
        return;
    };
    let place = &planted.place;
    let first = planted.placed("1").await;
    planted.publish().await;
    planted.make_inbox().await;
    planted.handle_by("counting", place.db.clone()).await;
    check(
        why(&planted, first),
        0,
        &["on-stream"],
        "consumer counting (strategy `sequence`) is at #1 of its aggregate",
    );
    planted.placed("1").await;
    let third = planted.placed("1").await;
    planted.publish().await;
    let client = EventStream::new(&place.name).connect(&place.nats).await.unwrap();
    let stream = jetstream::new(client).get_stream(&place.name).await.unwrap();
    stream.delete_message(2).await.unwrap();
    let consumer: Consumer<pull::Config> = stream.get_consumer("counting").await.unwrap();
    let mut batch = consumer.batch().max_messages(1).messages().await.unwrap();
    let taken = batch.next().await.unwrap().unwrap();
    assert_eq!(taken.info().unwrap().stream_sequence, 3);
    check(
        why(&planted, third),
        3,
        &["consumer-gap", "on-stream"],
        "The consumer uses strategy `sequence` and is at #1 of order/1: #2 has not been handled there",
    );
    set(&planted, "inbox_sequences", "failing = 2").await;
    check(
        why(&planted, third),
        3,
        &["consumer-gap", "on-stream"],
        "#2 has failed there and is retried, and this event waits for it",
    );
    set(&planted, "inbox_sequences", "failing = NULL, last_sequence = 2").await;
    check(why(&planted, third), 0, &["on-stream"], "without a result yet");
    set(&planted, "inbox_sequences", "last_sequence = 1, source = 'till'").await;
    check(why(&planted, third), 0, &["on-stream"], "without a result yet");
    planted.close().await;
}

on_each_database!(
    events_without_effect_are_explained,
    full_consumer_explains_undelivered_message,
    sequence_gap_is_explained
);
