//! `outbox timeline` on real servers.

use outbox::core::{MessageId, RelayHealth};
use outbox::nats::EventStream;
use outbox::nats::async_nats::jetstream::{self, consumer::pull};
use serde_json::Value;

use super::answer::{Answer, ask, at, run};
use super::plant::{Planted, dead};
use crate::place::{Kind, on_each_database};

fn timeline(planted: &Planted, more: &[&str]) -> Answer {
    ask(
        &planted.place,
        &[&["timeline", "order/1", "-o", "json"], more].concat(),
    )
}

fn effects(event: &Value) -> Vec<(&str, &str)> {
    let effects = event["effects"].as_array().unwrap().iter();
    effects
        .map(|effect| {
            (
                effect["consumer"].as_str().unwrap(),
                effect["outcome"].as_str().unwrap(),
            )
        })
        .collect()
}

fn is_told_as_gone(planted: &Planted, id: MessageId) -> bool {
    let text = ask(&planted.place, "timeline order/1").expect(0).out;
    text.contains(&format!("not on the stream: {id}\n  next: outbox why {id}"))
}

async fn timeline_joins_outbox_stream_and_inbox(kind: Kind) {
    let Some(planted) = Planted::open(kind).await else {
        return;
    };
    let place = &planted.place;
    timeline(&planted, &[]).expect(5);
    let refused = planted.placed("1").await;
    planted.publish().await;
    planted.handle().await;
    let unread = planted.placed("1").await;
    planted.publish().await;
    let dead_letter = planted.placed("1").await;
    let (_, leases) = planted.relay(RelayHealth::Healthy).await;
    planted.settle(&leases, dead_letter, dead(true)).await;
    let client = EventStream::new(&place.name).connect(&place.nats).await.unwrap();
    let stream = jetstream::new(client).get_stream(&place.name).await.unwrap();
    let config = pull::Config {
        durable_name: Some("search".to_owned()),
        deliver_policy: jetstream::consumer::DeliverPolicy::New,
        ..pull::Config::default()
    };
    stream.create_consumer(config).await.unwrap();

    let json = timeline(&planted, &[]).expect(0).json();
    assert_eq!(json["last_sequence"], 3);
    let events = json["events"].as_array().unwrap();
    let ids: Vec<&str> = events.iter().map(|event| event["id"].as_str().unwrap()).collect();
    assert_eq!(ids, [refused, unread, dead_letter].map(|id| id.to_string()));
    let of = |key: &str| -> Vec<&Value> { events.iter().map(|event| &event[key]).collect() };
    assert_eq!(of("status"), ["published", "published", "dead"]);
    assert_eq!(
        of("stream_sequence"),
        [&Value::from(1), &Value::from(2), &Value::Null]
    );
    assert_eq!(
        effects(&events[0]),
        [("billing", "dead-letter"), ("search", "passed")]
    );
    assert_eq!(effects(&events[1])[0], ("billing", "open"));
    assert_eq!(effects(&events[2]), []);
    let effect = &events[0]["effects"][0];
    assert!(effect["error"].as_str().unwrap().contains("no price"), "{effect}");
    assert!(
        effect["at"].as_str().unwrap() > events[0]["recorded_at"].as_str().unwrap(),
        "{effect}"
    );
    assert_eq!(json["unseen"], Value::Array(Vec::new()));

    let first = timeline(&planted, &["--limit", "1"]).expect(0).json();
    assert_eq!(
        (&first["is_complete"], first["events"].as_array().unwrap().len()),
        (&Value::Bool(false), 1)
    );
    let text = ask(place, "timeline order/1").expect(0).out;
    assert!(
        text.contains("billing: dead-letter +") && !text.contains('\u{1b}'),
        "{text}"
    );
    let away = at(place, "nats://127.0.0.1:1", "timeline order/1 -o json")
        .expect(0)
        .json();
    assert_eq!(away["events"].as_array().unwrap().len(), 3);
    assert!(
        away["unseen"][0].as_str().unwrap().starts_with("the stream: "),
        "{away}"
    );
    stream.purge().await.unwrap();
    assert_eq!(
        [refused, unread, dead_letter].map(|id| is_told_as_gone(&planted, id)),
        [true, true, false]
    );
    planted.close().await;
}

#[tokio::test]
async fn timeline_reads_inboxes_of_other_outboxes() {
    let (Some(service), Some(consumer)) = (
        Planted::open(Kind::Sqlite).await,
        Planted::open(Kind::Sqlite).await,
    ) else {
        return;
    };
    service.placed("1").await;
    service.publish().await;
    consumer.make_inbox().await;
    service.handle_as(consumer.place.db.clone()).await;
    let file = service.place.folder.path().join("both.toml");
    let stream = (&consumer.place.name, &service.place.name);
    let inbox = consumer.place.outbox("inbox").replace(stream.0, stream.1);
    std::fs::write(&file, format!("{}{inbox}", service.place.outbox("shop"))).unwrap();
    let servers = [
        ("OUTBOX_SHOP_DATABASE_URL", service.place.url.as_str()),
        ("OUTBOX_INBOX_DATABASE_URL", consumer.place.url.as_str()),
        ("NATS_URL", service.place.nats.as_str()),
    ];
    let words = [
        "timeline",
        "order/1",
        "--outbox",
        "shop",
        "-o",
        "json",
        "--config",
        file.to_str().unwrap(),
    ];
    let json = run(&words, &servers).expect(0).json();
    assert_eq!(effects(&json["events"][0]), [("billing", "dead-letter")]);
    assert!(
        json["unseen"][0].as_str().unwrap().contains("inbox_messages"),
        "the service has no inbox: {json}"
    );
    service.close().await;
    consumer.close().await;
}

on_each_database!(timeline_joins_outbox_stream_and_inbox);
