//! `outbox why`: every cause is produced on real servers and named with its next command and
//! exit code.

mod consumers;

use clap::ValueEnum as _;
use outbox::core::{MessageId, RelayHealth, Verdict};
use outbox::nats::EventStream;
use outbox::nats::async_nats::jetstream;
use outbox_cli::admin::Cause;
use outbox_cli::admin::doctor::WITHOUT_LIMIT_PER_SUBJECT;

use super::answer::{Answer, ask, at};
use super::causes::stream;
use super::plant::{LONG, Planted, dead, failed};
use crate::place::{Kind, on_each_database};

#[test]
fn each_cause_is_planted() {
    let text = concat!(
        include_str!("why.rs"),
        include_str!("why/consumers.rs"),
        include_str!("pause.rs")
    );
    for cause in Cause::value_variants() {
        let expected = [
            format!("&[\"{cause}\"]"),
            format!("&[\"{cause}\", \"on-stream\"]"),
            format!("[\"cause\"], \"{cause}\""),
        ];
        assert!(
            expected.iter().any(|expected| text.contains(expected)),
            "{cause:?}"
        );
    }
}

#[track_caller]
fn check(answer: Answer, code: i32, causes: &[&str], text: &str) {
    let answer = answer.expect(code);
    let json = answer.json();
    let findings = json["findings"].as_array().unwrap();
    let found: Vec<&str> = findings
        .iter()
        .map(|finding| finding["cause"].as_str().unwrap())
        .collect();
    assert_eq!(found, causes, "{answer:?}");
    assert!(findings[0]["what"].as_str().unwrap().contains(text), "{answer:?}");
    let has_next =
        |finding: &serde_json::Value| finding["next"].as_array().is_some_and(|next| !next.is_empty());
    assert!(findings.iter().all(has_next), "{answer:?}");
}

fn why(planted: &Planted, subject: impl std::fmt::Display) -> Answer {
    ask(&planted.place, &format!("why {subject} -o json"))
}

async fn unrecorded_messages_are_explained(kind: Kind) {
    let Some(planted) = Planted::open(kind).await else {
        return;
    };
    check(
        why(&planted, MessageId::fresh()),
        5,
        &["not-recorded"],
        "has no message",
    );
    check(
        why(&planted, "order/1"),
        5,
        &["not-recorded"],
        "order/1 has recorded nothing",
    );
    planted.close().await;
}

async fn missing_relay_is_explained(kind: Kind) {
    let Some(planted) = Planted::open(kind).await else {
        return;
    };
    let id = planted.placed("1").await;
    check(why(&planted, id), 4, &["no-relay"], "no relay is alive");
    planted.announce(RelayHealth::Healthy).await;
    check(why(&planted, id), 3, &["no-owner"], "no relay owns partition 19");
    planted.relay(RelayHealth::Healthy).await;
    check(why(&planted, id), 3, &["relay-behind"], "has not reached it yet");
    check(why(&planted, "order/1"), 3, &["relay-behind"], "#1 order.placed");
    planted.corrupt("1").await;
    check(why(&planted, id), 3, &["unreadable"], "cannot be read");
    planted.close().await;
}

async fn unhealthy_relay_is_explained(kind: Kind) {
    let Some(planted) = Planted::open(kind).await else {
        return;
    };
    let id = planted.placed("1").await;
    planted.relay(RelayHealth::Unhealthy).await;
    check(
        why(&planted, id),
        4,
        &["relay-unhealthy"],
        "the only live relay is unhealthy",
    );
    planted.announce(RelayHealth::Healthy).await;
    check(
        why(&planted, id),
        4,
        &["relay-unhealthy"],
        "of partition 19 is unhealthy",
    );
    planted.close().await;
}

async fn delays_are_explained(kind: Kind) {
    let Some(planted) = Planted::open(kind).await else {
        return;
    };
    let (delayed, behind) = (planted.delayed("1").await, planted.placed("1").await);
    let (_, leases) = planted.relay(RelayHealth::Healthy).await;
    check(why(&planted, delayed), 0, &["delayed"], "due in");
    check(
        why(&planted, behind),
        3,
        &["behind-delayed"],
        "waits behind #1 order.placed",
    );
    let (first, second) = (planted.placed("2").await, planted.placed("2").await);
    planted.settle(&leases, first, failed()).await;
    check(why(&planted, delayed), 0, &["delayed"], "due in");
    check(
        why(&planted, behind),
        3,
        &["behind-delayed"],
        "waits behind #1 order.placed",
    );
    check(why(&planted, first), 4, &["no-stream"], "does not exist");
    check(why(&planted, second), 4, &["no-stream"], "waits behind #1 order");
    planted.provision().await;
    check(why(&planted, first), 3, &["backing-off"], "no answer");
    check(
        why(&planted, second),
        3,
        &["behind-failed"],
        "has failed 1 time and",
    );
    check(why(&planted, "order/2"), 3, &["backing-off"], "#1 order.placed");
    let alone = planted.viewed("2").await;
    planted.settle(&leases, alone, failed()).await;
    check(why(&planted, alone), 3, &["backing-off"], "order.viewed");
    planted.close().await;
}

fn full_stream_is_reported(planted: &Planted, first: MessageId) {
    let place = &planted.place;
    let status = ask(place, "status -o json").expect(4).json();
    let reason = &status[0]["reasons"][0];
    let full =
        "the stream is full (1 of 1 messages): it rejects new messages, and 3 messages are not published";
    assert_eq!(
        (&reason["state"], &reason["what"]),
        (&"stuck".into(), &full.into()),
        "{status}"
    );
    let edit = format!("nats stream edit {} --max-msgs=2", place.name);
    assert_eq!(reason["next"], edit, "{status}");
    let told = why(planted, first).expect(3).json();
    assert_eq!(told["findings"][0]["next"][0], edit, "{told}");
}

async fn full_subject_is_reported(planted: &Planted, first: MessageId, context: &jetstream::Context) {
    let place = &planted.place;
    let subject = format!("{}.one", place.name);
    planted.set_subject("1", &subject).await;
    stream(place, |config| {
        config.max_messages_per_subject = 1;
        config.discard_new_per_subject = true;
    })
    .await;
    check(why(planted, first), 3, &["backing-off"], "is retried in");
    let filled = context.publish(subject, "".into()).await;
    filled.unwrap().await.unwrap();
    check(why(planted, first), 3, &["full"], "max_msgs_per_subject is 1");
    let told = why(planted, first).expect(3).json();
    let edit = format!("nats stream edit {} --interactive", place.name);
    let finding = &told["findings"][0];
    assert_eq!(
        (&finding["next"][0], &finding["advice"]),
        (&edit.into(), &WITHOUT_LIMIT_PER_SUBJECT.into()),
        "{told}"
    );
    let limit = async |refuses: bool, most: i64| {
        let mut config = context
            .get_stream(&place.name)
            .await
            .unwrap()
            .cached_info()
            .config
            .clone();
        (config.discard_new_per_subject, config.max_messages_per_subject) = (refuses, most);
        context.update_stream(config).await
    };
    limit(true, -1).await.unwrap_err();
    limit(false, -1).await.unwrap();
    limit(true, 1).await.unwrap();
}

async fn broker_rejections_are_explained(kind: Kind) {
    let Some(planted) = Planted::open(kind).await else {
        return;
    };
    let place = &planted.place;
    let other = format!("{}.other", place.name);
    stream(place, |config| config.subjects = vec![other.clone()]).await;
    let (first, second) = (planted.placed("1").await, planted.placed("1").await);
    let (_, leases) = planted.relay(RelayHealth::Healthy).await;
    check(
        why(&planted, first),
        3,
        &["relay-behind"],
        "has not reached it yet",
    );
    planted.settle(&leases, first, failed()).await;
    check(
        why(&planted, first),
        4,
        &["not-captured"],
        "does not capture subject",
    );
    check(
        why(&planted, second),
        4,
        &["not-captured"],
        "waits behind #1 order",
    );
    let away = |id: MessageId| {
        at(
            place,
            "nats://127.0.0.1:1",
            &["why", &id.to_string(), "-o", "json"],
        )
    };
    check(away(first), 3, &["backing-off"], "no answer");
    let throttled = planted.placed("2").await;
    let full = Verdict::Blocked {
        delay: LONG,
        error: Some("backpressure: stream `S` is full or throttles, message 1 waits".to_owned()),
        attempt: false,
    };
    planted.settle(&leases, throttled, full).await;
    check(away(throttled), 3, &["full"], "Whether this persists is unknown");

    stream(place, |config| config.max_messages = 1).await;
    let client = EventStream::new(&place.name).connect(&place.nats).await.unwrap();
    let context = jetstream::new(client);
    let filled = context.publish(other.clone(), "".into()).await;
    filled.unwrap().await.unwrap();
    check(why(&planted, first), 3, &["full"], "is full and rejects messages");
    full_stream_is_reported(&planted, first);
    full_subject_is_reported(&planted, first, &context).await;
    stream(place, |config| config.sealed = true).await;
    check(why(&planted, first), 4, &["refused"], "is sealed");
    planted.close().await;
}

async fn dead_letter_is_explained(kind: Kind) {
    let Some(planted) = Planted::open(kind).await else {
        return;
    };
    let (first, second) = (planted.placed("1").await, planted.placed("1").await);
    let passed = planted.placed("2").await;
    let (_, leases) = planted.relay(RelayHealth::Healthy).await;
    planted.settle(&leases, first, dead(true)).await;
    planted.settle(&leases, passed, dead(false)).await;
    check(
        why(&planted, first),
        4,
        &["dead-letter"],
        "maximum payload exceeded",
    );
    check(
        why(&planted, second),
        4,
        &["behind-dead-letter"],
        "halted by #1 order.placed",
    );
    check(
        why(&planted, "order/1"),
        4,
        &["dead-letter"],
        "1 message waits behind it",
    );
    check(why(&planted, passed), 3, &["dead-letter"], "continues without it");
    planted.close().await;
}

async fn published_messages_are_explained(kind: Kind) {
    let Some(planted) = Planted::open(kind).await else {
        return;
    };
    planted.placed("1").await;
    let id = planted.placed("1").await;
    planted.publish().await;
    check(why(&planted, id), 0, &["on-stream"], "stream sequence 2");
    check(why(&planted, "order/1"), 0, &["on-stream"], "#2 order.placed");
    let place = &planted.place;
    let id = id.to_string();
    let unknown = at(place, "nats://127.0.0.1:1", &format!("why {id} -o json"));
    check(unknown, 3, &["stream-unknown"], "is unknown");
    let client = EventStream::new(&place.name).connect(&place.nats).await.unwrap();
    let stream = jetstream::new(client).get_stream(&place.name).await.unwrap();
    stream.purge().await.unwrap();
    check(
        why(&planted, &id),
        3,
        &["left-stream"],
        "is not on the stream where",
    );
    planted.close().await;
}

async fn deleted_rows_are_explained(kind: Kind) {
    let Some(planted) = Planted::open(kind).await else {
        return;
    };
    for _ in 0..3 {
        planted.placed("1").await;
    }
    let place = &planted.place;
    let schema = place.schema.as_ref().map(|schema| format!("{schema}."));
    let delete = format!(
        "DELETE FROM {}outbox_messages WHERE sequence = 2",
        schema.unwrap_or_default()
    );
    place.execute(&delete).await;
    planted.publish().await;
    check(
        why(&planted, "order/1"),
        4,
        &["number-missing", "on-stream"],
        "no row for #2.",
    );
    let timeline = ask(place, "timeline order/1").expect(0);
    assert!(timeline.out.contains("no row: #2;"), "{timeline:?}");
    let words = ["prove", "--since", "1h", "--until", "0s", "-o", "json"];
    let books = ask(place, &words).expect(4).json();
    assert_eq!(
        (
            &books["holes"]["count"],
            &books["holes"]["first"][0]["first"],
            &books["lost"]["count"]
        ),
        (&1.into(), &2.into(), &0.into()),
        "{books}"
    );
    planted.close().await;
}

on_each_database!(
    unrecorded_messages_are_explained,
    missing_relay_is_explained,
    unhealthy_relay_is_explained,
    delays_are_explained,
    broker_rejections_are_explained,
    dead_letter_is_explained,
    published_messages_are_explained,
    deleted_rows_are_explained
);
