//! An event with a fixed subject that no stream captures. The relay retries up to
//! `attempts_max`; status, why, doctor and dashboard report subject and repair.

use std::time::Duration;

use outbox::core::retry::Backoff;
use outbox::core::shutdown::CancellationToken;
use outbox::core::{EventPolicy, MessageId, MessageStatus, OutboxReader as _, Relay, RelayConfig};
use outbox::nats::async_nats::jetstream;
use outbox::prelude::*;
use outbox::testing::eventually;

use super::answer::ask;
use super::plant::Planted;
use super::serve::Served;
use crate::place::{Kind, Place};

async fn failures(planted: &Planted, id: MessageId) -> u32 {
    planted.store.find(id).await.unwrap().unwrap().stored.failures
}

fn check_why(place: &Place, id: MessageId, subject: &str) {
    let why = ask(place, &format!("why {id} -o json")).expect(4).json();
    let finding = &why["findings"][0];
    assert_eq!(finding["cause"], "not-captured", "{why}");
    let what = finding["what"].as_str().unwrap();
    assert!(
        what.contains(subject) && what.contains("and would again"),
        "{why}"
    );
    let next = finding["next"].as_array().unwrap();
    let info = format!("nats stream info {}", place.name);
    assert_eq!(*next, [info, "outbox doctor".to_owned()], "{why}");
    let edit = format!("`nats stream edit {}` with --subjects", place.name);
    assert!(finding["advice"].as_str().unwrap().contains(&edit), "{why}");
    assert!(!finding["next"].to_string().contains("outbox resume"), "{why}");
}

/// `outbox` commands block the test's runtime, so the relay needs its own threads.
async fn uncaptured_subject_is_reported(kind: Kind) {
    let Some(planted) = Planted::open(kind).await else {
        return;
    };
    let place = &planted.place;
    planted.placed("1").await;
    planted.publish().await;
    let id = planted.placed("2").await;
    // Streams of one server cannot share a subject, so each test has its own subject.
    let subject = format!("nobodys.{}", place.name);
    planted.set_subject("2", &subject).await;
    let stream = EventStream::new(&place.name).with_prefix(&place.name).unwrap();
    let client = stream.connect(&place.nats).await.unwrap();
    let short = Backoff {
        min: Duration::from_millis(10),
        max: Duration::from_millis(100),
    };
    let mut config = RelayConfig::default();
    config.policy = EventPolicy::default().backoff(short).attempts_max(10_000);
    let relay = Relay::new(planted.store.clone(), stream.publisher(client.clone())).with_config(config);
    let stop = CancellationToken::new();
    let stopped = stop.clone();
    let running = tokio::spawn(async move { relay.run(stopped).await });
    eventually("eight failures", async || failures(&planted, id).await >= 8).await;

    let status = ask(place, "status -o json").expect(4).json();
    let reason = &status[0]["reasons"][0];
    assert_eq!(
        (&reason["state"], &reason["next"]),
        (&"stuck".into(), &format!("outbox why {id}").into())
    );
    let what = reason["what"].as_str().unwrap();
    let nobodys = format!("no stream captures subject `{subject}`");
    for text in ["1 message keeps failing", &nobodys, &place.name] {
        assert!(what.contains(text), "{text}: {what}");
    }
    let doctor = ask(place, "doctor -o json").expect(4).json();
    let findings = doctor[0]["findings"].as_array().unwrap();
    let finding = findings
        .iter()
        .find(|finding| finding["subject"] == subject)
        .unwrap();
    assert_eq!(
        (&finding["check"], &finding["state"]),
        (&"stream".into(), &"stuck".into())
    );
    let advice = finding["advice"].as_str().unwrap();
    assert!(
        advice.contains(&format!("nats stream edit {}", place.name)),
        "{advice}"
    );
    check_why(place, id, &subject);
    let served = Served::start(place, &[]);
    let (_, page) = served.get("/", &[]).await;
    assert!(page.contains(&nobodys), "{page}");
    drop(served);

    let context = jetstream::new(client);
    let mut edited = context
        .get_stream(&place.name)
        .await
        .unwrap()
        .cached_info()
        .config
        .clone();
    edited.subjects.push(subject);
    context.update_stream(edited).await.unwrap();
    eventually("its publishing", async || {
        let found = planted.store.find(id).await.unwrap().unwrap();
        found.stored.status == MessageStatus::Published
    })
    .await;
    eventually("the end of the failure", async || {
        let status = ask(place, "status -o json").json();
        !status[0]["reasons"].to_string().contains("no stream captures")
    })
    .await;
    stop.cancel();
    running.await.unwrap().unwrap();
    planted.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn uncaptured_subject_is_reported_with_postgres() {
    uncaptured_subject_is_reported(Kind::Postgres).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn uncaptured_subject_is_reported_with_mariadb() {
    uncaptured_subject_is_reported(Kind::MariaDb).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn uncaptured_subject_is_reported_with_sqlite() {
    uncaptured_subject_is_reported(Kind::Sqlite).await;
}
