//! Previews name the causes of failures. Each test makes a cause on real servers, and removes the
//! cause afterwards.

use outbox::core::{MessageId, RelayHealth, Verdict};
use outbox::nats::async_nats::jetstream;
use outbox::nats::async_nats::jetstream::stream::{Config, DiscardPolicy};
use outbox::prelude::*;
use serde_json::Value;

use super::answer::{Answer, ask, at};
use super::plant::{LONG, OrderPlaced, Planted};
use crate::place::{Kind, Place};

pub(super) async fn stream(place: &Place, change: impl FnOnce(&mut Config)) {
    let client = EventStream::new(&place.name).connect(&place.nats).await.unwrap();
    let mut config = Config {
        name: place.name.clone(),
        subjects: vec![format!("{}.>", place.name)],
        discard: DiscardPolicy::New,
        ..Config::default()
    };
    change(&mut config);
    let context = jetstream::new(client);
    context.create_or_update_stream(config).await.unwrap();
}

fn dead(error: &str) -> Verdict {
    Verdict::Dead {
        error: error.to_owned(),
        halt: false,
    }
}

fn causes(answer: &Answer) -> Vec<(String, String, u64)> {
    let preview = answer.json();
    let causes = preview["causes"].as_array().unwrap();
    let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    causes
        .iter()
        .map(|cause| {
            let messages = cause["messages"].as_u64().unwrap();
            (text(&cause["holds"]), text(&cause["obstacle"]), messages)
        })
        .collect()
}

#[track_caller]
fn expect(answer: &Answer, expected: &[(&str, &str, u64)]) {
    let expected: Vec<_> = expected
        .iter()
        .map(|(holds, obstacle, messages)| ((*holds).to_owned(), (*obstacle).to_owned(), *messages))
        .collect();
    assert_eq!(causes(answer), expected, "{answer:?}");
}

fn retry(place: &Place) -> Answer {
    ask(place, "retry --all -o json").expect(0)
}

/// The server must really reject the message, because the stored error identifies the cause.
async fn refused(planted: &Planted, order_id: &str, email: String) -> MessageId {
    let order_id = order_id.to_owned();
    let id = planted.record([OrderPlaced { order_id, email }]).await;
    planted.publish_as_it_is().await;
    id
}

#[tokio::test]
async fn retry_preview_checks_the_cause() {
    let Some(planted) = Planted::open(Kind::Postgres).await else {
        return;
    };
    let place = &planted.place;
    stream(place, |config| config.max_message_size = 2_000).await;
    let large = refused(&planted, "1", "a".repeat(5_000)).await;
    let shown = ask(place, &format!("show {large} -o json")).expect(0).json();
    assert_eq!(shown["status"], "dead", "{shown}");
    planted.relay(RelayHealth::Healthy).await;
    expect(&retry(place), &[("still", "too-large", 1)]);
    let said = ask(place, "retry --all").expect(0).out;
    assert!(
        said.contains("1  cause still: the message has ") && said.contains("the limit is 2000"),
        "{said}"
    );

    stream(place, |config| config.max_message_size = 1_000_000).await;
    expect(&retry(place), &[("gone", "unsendable", 1)]);
    stream(place, |config| {
        config.subjects = vec![format!("{}.other", place.name)]
    })
    .await;
    expect(&retry(place), &[("still", "not-captured", 1)]);
    stream(place, |config| config.max_messages = 1).await;
    let client = EventStream::new(&place.name).connect(&place.nats).await.unwrap();
    let filler = format!("{}.filler", place.name);
    let context = jetstream::new(client);
    let filled = context.publish(filler, "".into()).await.unwrap();
    filled.await.unwrap();
    expect(&retry(place), &[("still", "full", 1)]);
    let edit = format!("nats stream edit {} --max-msgs=2", place.name);
    assert_eq!(retry(place).json()["causes"][0]["next"], edit);
    let doctor = ask(place, "doctor -o json").expect(4).json();
    let full = "the stream is full (1 of 1 messages): it rejects new messages";
    assert_eq!(doctor[0]["findings"][0]["seen"], full, "{doctor}");
    let status = ask(place, "status -o json").expect(3).json();
    let reason = &status[0]["reasons"][0];
    assert!(reason["what"].as_str().unwrap().starts_with(full), "{status}");
    assert_eq!(reason["state"], "degraded", "{status}");
    stream(place, |config| config.sealed = true).await;
    expect(&retry(place), &[("still", "sealed", 1)]);
    planted.close().await;
}

#[tokio::test]
async fn unprovable_state_is_unknown() {
    let Some(planted) = Planted::open(Kind::Sqlite).await else {
        return;
    };
    let place = &planted.place;
    stream(place, |_| {}).await;
    let (odd, damaged) = (planted.placed("1").await, planted.placed("2").await);
    let relay = planted.relay(RelayHealth::Healthy).await;
    planted.settle(&relay.1, odd, dead("the moon was full")).await;
    planted.settle(&relay.1, damaged, dead("unreadable")).await;
    planted.corrupt("2").await;
    expect(&retry(place), &[("still", "unreadable", 1), ("unknown", "-", 1)]);
    let away = at(
        place,
        "nats://127.0.0.1:1",
        &["retry", &odd.to_string(), "-o", "json"],
    )
    .expect(0);
    expect(&away, &[("unknown", "-", 1)]);
    let what = away.json()["causes"][0]["what"].as_str().unwrap().to_owned();
    assert!(what.contains("the stream could not be checked"), "{what}");

    ask(place, "pause --aggregate-type order --yes").expect(0);
    let one = ["retry", &odd.to_string(), "-o", "json"].map(str::to_owned);
    let one: Vec<&str> = one.iter().map(String::as_str).collect();
    expect(&ask(place, &one).expect(0), &[("still", "paused", 1)]);
    ask(place, "resume --aggregate-type order --yes").expect(0);
    outbox::core::OutboxStore::announce(&planted.store, relay.0, LONG, &RelayHealth::Unhealthy.into())
        .await
        .unwrap();
    expect(&ask(place, &one).expect(0), &[("still", "relay-unhealthy", 1)]);
    outbox::core::OutboxStore::leave(&planted.store, relay.0)
        .await
        .unwrap();
    expect(&ask(place, &one).expect(0), &[("still", "no-relay", 1)]);
    planted.close().await;
}

#[tokio::test]
async fn resume_and_replay_preview_persistent_causes() {
    let Some(planted) = Planted::open(Kind::Postgres).await else {
        return;
    };
    let place = &planted.place;
    stream(place, |_| {}).await;
    planted.placed("1").await;
    planted.publish_as_it_is().await;
    let waits = planted.placed("2").await;
    let (_, leases) = planted.relay(RelayHealth::Healthy).await;
    let full = Verdict::Blocked {
        delay: LONG,
        error: Some("backpressure: stream `S` is full or throttles, message 1 waits".to_owned()),
        attempt: false,
    };
    planted.settle(&leases, waits, full).await;
    let resume = || ask(place, "resume order/2 -o json").expect(0);
    let replay = || ask(place, "replay --all -o json").expect(0);
    expect(&resume(), &[("unknown", "full", 1)]);
    expect(&replay(), &[]);
    stream(place, |config| {
        config.subjects = vec![format!("{}.other", place.name)]
    })
    .await;
    expect(&resume(), &[("still", "not-captured", 1)]);
    expect(&replay(), &[("still", "not-captured", 1)]);
    planted.close().await;
}
