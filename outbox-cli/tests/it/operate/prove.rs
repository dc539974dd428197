//! `outbox prove` on real servers: a healthy span balances, and each produced problem is reported.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::time::Duration;

use futures_util::{StreamExt as _, TryStreamExt as _};
use outbox::nats::async_nats::HeaderMap;
use outbox::nats::async_nats::jetstream::stream::{RetentionPolicy, State, Stream};
use outbox::nats::async_nats::jetstream::{self, consumer::pull};
use outbox::prelude::*;
use serde_json::Value;
use uuid::Uuid;

use super::answer::{Answer, ask, at, run};
use super::plant::{OrderPlaced, Planted};
use crate::place::{Kind, on_both_servers, on_each_database};

fn prove(planted: &Planted, more: &[&str]) -> Answer {
    let words = ["prove", "--since", "1h", "--until", "0s", "-o", "json"];
    ask(&planted.place, &[&words[..], more].concat())
}

async fn stream(planted: &Planted) -> (jetstream::Context, Stream) {
    let stream = EventStream::new(&planted.place.name);
    let client = stream.connect(&planted.place.nats).await.unwrap();
    let context = jetstream::new(client);
    let stream = context.get_stream(&planted.place.name).await.unwrap();
    (context, stream)
}

async fn again(planted: &Planted, stream_sequence: u64, change: impl FnOnce(&mut HeaderMap)) {
    let (context, stream) = stream(planted).await;
    let message = stream.get_raw_message(stream_sequence).await.unwrap();
    let mut headers = HeaderMap::new();
    for (name, values) in message.headers.iter() {
        if name.to_string().to_lowercase().starts_with("ce-") || name.to_string() == "content-type" {
            for value in values {
                headers.append(name.clone(), value.clone());
            }
        }
    }
    change(&mut headers);
    let sent = context.publish_with_headers(message.subject, headers, message.payload);
    sent.await.unwrap().await.unwrap();
}

async fn handle(planted: &Planted) {
    planted.handle().await;
    let schema = planted.place.schema.as_ref().map(|schema| format!("{schema}."));
    let schema = schema.unwrap_or_default();
    planted
        .place
        .execute(&format!(
            "UPDATE {schema}inbox_messages SET status = 1, attempts = 0, last_error = NULL"
        ))
        .await;
    planted
        .place
        .execute(&format!("DELETE FROM {schema}inbox_dead_letters"))
        .await;
}

async fn forget(planted: &Planted, place: usize) {
    let schema = planted.place.schema.as_ref().map(|schema| format!("{schema}."));
    let table = format!("{}inbox_messages", schema.unwrap_or_default());
    // MariaDB rejects a subquery with a limit on the same table.
    let sql = format!(
        "DELETE FROM {table} WHERE id IN (SELECT id FROM (SELECT id FROM {table} ORDER BY id LIMIT 1 OFFSET {place}) AS one)"
    );
    planted.place.execute(&sql).await;
}

fn count(json: &Value, finding: &str) -> u64 {
    json[finding]["count"].as_u64().unwrap()
}

fn first(json: &Value) -> &str {
    json["first"][0]["event_id"].as_str().unwrap()
}

fn nexts(json: &Value) -> Vec<&str> {
    let reasons = json["reasons"].as_array().unwrap().iter();
    reasons.map(|reason| reason["next"].as_str().unwrap()).collect()
}

async fn proof_counts_a_span(kind: Kind) {
    let Some(planted) = Planted::open(kind).await else {
        return;
    };
    let mut ids = Vec::new();
    for order in ["1", "1", "2", "3", "3"] {
        ids.push(planted.placed(order).await.to_string());
    }
    planted.publish().await;
    handle(&planted).await;

    let healthy = prove(&planted, &[]).expect(0).json();
    assert_eq!(healthy["verdict"], "balanced", "{healthy:#}");
    assert_eq!(
        (&healthy["outbox"]["committed"], &healthy["stream"]["events"]),
        (&5.into(), &5.into())
    );
    let books = &healthy["consumers"][0];
    assert_eq!(
        (&books["consumer"], &books["handled"]),
        (&"billing".into(), &5.into())
    );

    again(&planted, 1, |_| {}).await;
    let copied = prove(&planted, &[]).expect(0).json();
    assert_eq!(copied["stream"]["copies"], 1, "{copied:#}");

    forget(&planted, 3).await;
    let missing = prove(&planted, &[]).expect(4).json();
    assert_eq!(missing["verdict"], "not-balanced");
    assert_eq!(
        (
            first(&missing["consumers"][0]["missing"]),
            count(&missing["consumers"][0], "missing")
        ),
        (ids[3].as_str(), 1)
    );
    assert!(nexts(&missing)[0].starts_with("outbox why "), "{missing:#}");

    let (_, on_stream) = stream(&planted).await;
    on_stream.delete_message(3).await.unwrap();
    let lost = prove(&planted, &[]).expect(4).json();
    let gone = first(&lost["lost"]).to_owned();
    assert_eq!(count(&lost, "lost"), 1);
    assert!(ids.contains(&gone), "{lost:#}");
    assert!(
        nexts(&lost)[0].starts_with("outbox reconcile --since "),
        "{lost:#}"
    );

    let ghost = Uuid::now_v7();
    again(&planted, 1, |headers| {
        headers.insert("ce-id", ghost.to_string().as_str())
    })
    .await;
    let haunted = prove(&planted, &[]).expect(4).json();
    assert_eq!(
        (first(&haunted["ghosts"]), count(&haunted, "ghosts")),
        (ghost.to_string().as_str(), 1)
    );

    let text = ask(&planted.place, "prove --since 1h --until 0s").expect(4).out;
    assert!(
        text.starts_with("NOT BALANCED: ") && text.contains(&format!("ghost {ghost}")),
        "{text}"
    );
    planted.close().await;
}

async fn late_event_is_an_inversion(kind: Kind) {
    let Some(planted) = Planted::open(kind).await else {
        return;
    };
    planted.placed("1").await;
    planted.publish().await;
    let late = planted.placed("2").await;
    planted.publish().await;
    planted.placed("2").await;
    planted.publish().await;
    let (_, on_stream) = stream(&planted).await;
    again(&planted, 2, |_| {}).await;
    on_stream.delete_message(2).await.unwrap();
    let json = prove(&planted, &[]).expect(4).json();
    assert_eq!(
        (first(&json["inversions"]), count(&json, "inversions")),
        (late.to_string().as_str(), 1)
    );
    assert_eq!(count(&json, "lost"), 0);
    planted.close().await;
}

async fn dead_letters_of_consumers_balance(kind: Kind) {
    let Some(planted) = Planted::open(kind).await else {
        return;
    };
    for order in ["1", "1", "2", "3", "3"] {
        planted.placed(order).await;
    }
    planted.publish().await;
    planted.handle().await;
    let books = prove(&planted, &[]).expect(0).json();
    assert_eq!(
        (&books["verdict"], &books["reasons"]),
        (&"balanced".into(), &Value::Array(Vec::new())),
        "{books:#}"
    );
    let billing = &books["consumers"][0];
    assert_eq!(billing["consumer"], "billing");
    for (outcome, expected) in [
        ("dead_letters", 5),
        ("handled", 0),
        ("failed", 0),
        ("open", 0),
        ("passed", 0),
    ] {
        assert_eq!(billing[outcome], expected, "{outcome}: {books:#}");
    }
    assert_eq!(count(billing, "missing"), 0);
    let text = ask(&planted.place, "prove --since 1h --until 0s").expect(0).out;
    assert!(
        text.starts_with("BALANCED: ") && text.contains("handled 0, dead letters 5,"),
        "{text}"
    );
    planted.close().await;
}

#[idempotent_handler(consumer = "shipping")]
async fn ship(_event: Event<OrderPlaced>) -> Result<(), HandlerError> {
    Ok(())
}

#[tokio::test]
async fn one_ledger_has_inboxes_of_two_databases() {
    let (Some(service), Some(other)) = (
        Planted::open(Kind::MariaDb).await,
        Planted::open(Kind::Sqlite).await,
    ) else {
        return;
    };
    for order in ["1", "2"] {
        service.placed(order).await;
    }
    service.publish().await;
    service.make_inbox().await;
    service.handle_by("shipping", service.place.db.clone()).await;
    other.make_inbox().await;
    service.handle_as(other.place.db.clone()).await;
    let file = service.place.folder.path().join("both.toml");
    let stream = (&other.place.name, &service.place.name);
    let inbox = other.place.outbox("inbox").replace(stream.0, stream.1);
    std::fs::write(&file, format!("{}{inbox}", service.place.outbox("shop"))).unwrap();
    let servers = [
        ("OUTBOX_SHOP_DATABASE_URL", service.place.url.as_str()),
        ("OUTBOX_INBOX_DATABASE_URL", other.place.url.as_str()),
        ("NATS_URL", service.place.nats.as_str()),
    ];
    let words = "prove --since 1h --until 0s --outbox shop -o json --config";
    let words: Vec<&str> = words.split(' ').chain(file.to_str()).collect();
    let books = |ledger: &Value| -> Vec<(String, [u64; 3])> {
        let consumers = ledger["consumers"].as_array().unwrap().iter();
        let of = |books: &Value, key: &str| books[key].as_u64().unwrap();
        consumers
            .map(|consumer| {
                let counts = ["handled", "dead_letters", "passed"].map(|key| of(consumer, key));
                (consumer["consumer"].as_str().unwrap().to_owned(), counts)
            })
            .collect()
    };
    let both = run(&words, &servers).expect(0).json();
    assert_eq!(
        books(&both),
        [
            ("billing".to_owned(), [0, 2, 0]),
            ("shipping".to_owned(), [2, 0, 0])
        ]
    );
    assert_eq!(both["verdict"], "balanced");
    let one = prove(&service, &[]).expect(0).json();
    assert_eq!(
        books(&one),
        [
            ("billing".to_owned(), [0, 0, 2]),
            ("shipping".to_owned(), [2, 0, 0])
        ]
    );
    service.close().await;
    other.close().await;
}

fn fails(consumer: &str, event: &OrderPlaced) -> Result<(), HandlerError> {
    static FAILED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let attempt = format!("{consumer} {}", event.order_id);
    let is_first = || FAILED.lock().unwrap().insert(attempt);
    match event.email == "fails once" && is_first() {
        true => Err(HandlerError::retry("once")),
        false => Ok(()),
    }
}

#[idempotent_handler(consumer = "by_key", strategy = key(order_id), backoff = "1ms..2ms")]
async fn by_key(event: Event<OrderPlaced>) -> Result<(), HandlerError> {
    fails("by_key", &event)
}

#[idempotent_handler(consumer = "by_sequence", strategy = sequence, backoff = "1ms..2ms")]
async fn by_sequence(event: Event<OrderPlaced>) -> Result<(), HandlerError> {
    fails("by_sequence", &event)
}

#[idempotent_handler(consumer = "by_constraint", strategy = constraint("none_pkey"), order = none, backoff = "1ms..2ms")]
async fn by_constraint(event: Event<OrderPlaced>) -> Result<(), HandlerError> {
    fails("by_constraint", &event)
}

#[idempotent_handler(consumer = "by_nature", strategy = natural, backoff = "1ms..2ms")]
async fn by_nature(event: Event<OrderPlaced>) -> Result<(), HandlerError> {
    fails("by_nature", &event)
}

#[idempotent_handler(consumer = "by_id", backoff = "1ms..2ms")]
async fn by_id(event: Event<OrderPlaced>) -> Result<(), HandlerError> {
    fails("by_id", &event)
}

async fn strategies_without_rows_have_no_missing_events(kind: Kind) {
    let Some(planted) = Planted::open(kind).await else {
        return;
    };
    let failing = Uuid::now_v7().to_string();
    for order_id in ["1", &failing, "3", "4"] {
        let email = if order_id == failing { "fails once" } else { "" };
        let (order_id, email) = (order_id.to_owned(), email.to_owned());
        planted.record([OrderPlaced { order_id, email }]).await;
    }
    planted.publish().await;
    planted.make_inbox().await;
    for (consumer, handled) in [
        ("by_key", 1),
        ("by_sequence", 1),
        ("by_constraint", 1),
        ("by_nature", 1),
        ("by_id", 4),
    ] {
        planted.handle_by(consumer, planted.place.db.clone()).await;
        let books = prove(&planted, &["--consumer", consumer]).expect(0).json();
        assert_eq!(books["verdict"], "balanced", "{books:#}");
        let of_consumer = &books["consumers"][0];
        assert_eq!(
            (&of_consumer["handled"], &of_consumer["passed"]),
            (&handled.into(), &(4 - handled).into()),
            "{books:#}"
        );
    }
    planted.close().await;
}

#[tokio::test]
async fn open_or_unknown_events_are_reported() {
    let Some(planted) = Planted::open(Kind::Sqlite).await else {
        return;
    };
    let place = &planted.place;
    let empty = ask(place, "prove --since 5s --until 1h").expect(2);
    assert!(empty.said.contains("the span is empty"), "{empty:?}");
    planted.placed("1").await;
    planted.publish().await;
    handle(&planted).await;
    planted.placed("2").await;
    let unpublished = prove(&planted, &[]).expect(3).json();
    assert_eq!(
        (&unpublished["verdict"], &unpublished["outbox"]["unpublished"]),
        (&"cannot-tell".into(), &1.into())
    );
    assert_eq!(nexts(&unpublished), ["outbox status"]);
    planted.publish().await;
    let open = prove(&planted, &[]).expect(3).json();
    assert_eq!(open["consumers"][0]["open"], 1, "{open:#}");
    assert_eq!(nexts(&open), ["outbox consumers list"]);
    let nobody = prove(&planted, &["--consumer", "nobody"]).expect(3).json();
    assert!(
        nobody["reasons"][0]["what"]
            .as_str()
            .unwrap()
            .contains("no durable consumer `nobody`"),
        "{nobody:#}"
    );
    let other_time = ask(place, "prove --since 2h --until 1h").expect(5);
    assert!(
        other_time.said.contains("no message of this span"),
        "{other_time:?}"
    );
    at(place, "nats://127.0.0.1:1", "prove --since 1h").expect(1);
    planted.close().await;
}

/// Reading as a consumer would change a stream that deletes acknowledged messages.
#[tokio::test]
async fn interest_and_work_queue_streams_are_rejected() {
    for retention in [RetentionPolicy::Interest, RetentionPolicy::WorkQueue] {
        proof_rejects_stream(retention).await;
    }
}

async fn proof_rejects_stream(retention: RetentionPolicy) {
    let Some(planted) = Planted::open(Kind::Sqlite).await else {
        return;
    };
    let name = planted.place.name.clone();
    let client = EventStream::new(&name)
        .connect(&planted.place.nats)
        .await
        .unwrap();
    let config = jetstream::stream::Config {
        name: name.clone(),
        subjects: vec![format!("{name}.>")],
        retention,
        ..jetstream::stream::Config::default()
    };
    let stream = jetstream::new(client.clone())
        .create_stream(config)
        .await
        .unwrap();
    let durable = pull::Config {
        durable_name: Some("billing".to_owned()),
        ..pull::Config::default()
    };
    stream.create_consumer(durable).await.unwrap();
    let id = planted.placed("1").await.to_string();
    planted.publish_as_it_is().await;
    let made = format!("$JS.EVENT.ADVISORY.CONSUMER.CREATED.{name}.>");
    let mut made = client.subscribe(made).await.unwrap();
    client.flush().await.unwrap();
    let before = held(&stream).await;
    assert_eq!(before.0.messages, 1);

    let refusal =
        format!("stream `{name}` cannot be read without changing it: retention {retention:?} deletes");
    let place = &planted.place;
    let refused = prove(&planted, &[]).expect(1);
    assert!(refused.said.contains(&refusal), "{refused:?}");
    let reconcile = ["reconcile", "--since", "1h", "--until", "0s", "--yes"];
    let refused = ask(place, &reconcile).expect(1);
    assert!(refused.said.contains(&refusal), "{refused:?}");
    let why = ask(place, &format!("why {id} -o json")).expect(3).json();
    assert_eq!(why["findings"][0]["cause"], "stream-unknown", "{why}");
    let what = why["findings"][0]["what"].as_str().unwrap();
    assert!(what.contains(&refusal), "{why}");
    let timeline = ask(place, "timeline order/1 -o json").expect(0).json();
    let unseen = timeline["unseen"][0].as_str().unwrap();
    assert!(unseen.contains(&refusal), "{timeline}");

    assert_eq!(held(&stream).await, before);
    let consumer = tokio::time::timeout(Duration::from_millis(300), made.next()).await;
    assert!(consumer.is_err(), "a consumer was made: {consumer:?}");
    planted.close().await;
}

async fn held(stream: &Stream) -> (State, Vec<String>) {
    let state = stream.get_info().await.unwrap().state;
    let mut names: Vec<String> = stream.consumer_names().try_collect().await.unwrap();
    names.sort();
    (state, names)
}

on_each_database!(
    proof_counts_a_span,
    dead_letters_of_consumers_balance,
    strategies_without_rows_have_no_missing_events
);

on_both_servers!(late_event_is_an_inversion);
