//! `outbox reconcile` on real servers.

use outbox::nats::async_nats::jetstream;
use outbox::prelude::EventStream;
use outbox::testing::eventually;

use super::answer::{Answer, ask};
use super::plant::Planted;
use crate::place::{Kind, Place, Program, on_each_database};

fn counts(answer: &Answer) -> [u64; 3] {
    let json = answer.json();
    ["compared", "missing", "published"].map(|key| json[key].as_u64().unwrap())
}

async fn lose(place: &Place) {
    let client = EventStream::new(&place.name).connect(&place.nats).await.unwrap();
    let jetstream = jetstream::new(client);
    jetstream.delete_stream(&place.name).await.unwrap();
}

async fn reconcile_publishes_lost_messages(kind: Kind) {
    let Some(planted) = Planted::open(kind).await else {
        return;
    };
    let place = &planted.place;
    planted.placed("1").await;
    planted.publish().await;
    let now = ["reconcile", "--since", "1h", "--until", "0s", "-o", "json"];
    assert_eq!(counts(&ask(place, &now).expect(0)), [1, 0, 0]);
    lose(place).await;
    planted.placed("2").await;
    planted.publish().await;
    let counted = ask(place, &now).expect(3);
    assert_eq!(counts(&counted), [2, 1, 0]);
    assert!(counted.said.contains("re-run with `--yes`"), "{counted:?}");
    let yes = [&now[..], &["--yes"]].concat();
    assert_eq!(counts(&ask(place, &yes).expect(0)), [2, 1, 1]);
    assert_eq!(counts(&ask(place, &now).expect(0)), [2, 0, 0]);
    planted.close().await;
}

/// Writers may choose message ids without a time.
#[tokio::test]
async fn ids_of_version_4_are_proved_and_restored() {
    for kind in [Kind::Sqlite, Kind::Postgres, Kind::MariaDb] {
        let Some(planted) = Planted::open(kind).await else {
            continue;
        };
        let place = &planted.place;
        planted.placed("1").await;
        let (table, id) = match &place.schema {
            Some(schema) => (
                format!("{schema}.outbox_messages"),
                "'3b241101-e2bb-4255-8caf-4136c566a962'",
            ),
            None => (
                "outbox_messages".to_owned(),
                "X'3b241101e2bb42558caf4136c566a962'",
            ),
        };
        place.execute(&format!("UPDATE {table} SET id = {id}")).await;
        planted.publish().await;
        let now = ["--since", "1h", "--until", "0s", "-o", "json"];
        let proved = ask(place, &[&["prove"], &now[..]].concat()).expect(0).json();
        assert_eq!(proved["verdict"], "balanced", "{kind:?}: {proved:#}");
        assert_eq!(proved["outbox"]["committed"], 1);
        lose(place).await;
        planted.placed("2").await;
        planted.publish().await;
        let reconcile = [&["reconcile", "--yes"], &now[..]].concat();
        assert_eq!(counts(&ask(place, &reconcile).expect(0)), [2, 1, 1], "{kind:?}");
        planted.close().await;
    }
}

#[tokio::test]
async fn republished_messages_keep_their_source() {
    let Some(place) = Place::open(Kind::Sqlite).await else {
        return;
    };
    let config = place
        .outbox("shop")
        .replace("[outbox.stream]", "source = \"shop\"\n[outbox.stream]");
    let servers = [
        ("DATABASE_URL", place.url.as_str()),
        ("NATS_URL", place.nats.as_str()),
    ];
    let mut program = Program::start(&config, &servers);
    program.until_ready().await;
    place.record(2).await;
    eventually("both messages on the stream", async || {
        sources(&place).await == ["shop", "shop"]
    })
    .await;
    program.terminate();
    program.end().await;
    lose(&place).await;
    let stream = EventStream::new(&place.name).with_prefix(&place.name).unwrap();
    let client = stream.connect(&place.nats).await.unwrap();
    stream.provision(&client).await.unwrap();
    let words = ["reconcile", "--since", "1h", "--until", "0s", "--yes"];
    crate::log::ask(&place, &config, &words, &[]).expect(0);
    assert_eq!(sources(&place).await, ["shop", "shop"]);
    place.close().await;
}

async fn sources(place: &Place) -> Vec<String> {
    let client = EventStream::new(&place.name).connect(&place.nats).await.unwrap();
    let Ok(mut stream) = jetstream::new(client).get_stream(&place.name).await else {
        return Vec::new();
    };
    let last = stream.info().await.unwrap().state.last_sequence;
    let mut sources = Vec::new();
    for sequence in 1..=last {
        if let Ok(message) = stream.get_raw_message(sequence).await {
            sources.push(message.headers.get("ce-source").unwrap().to_string());
        }
    }
    sources
}

#[tokio::test]
async fn invalid_span_is_rejected() {
    let Some(planted) = Planted::open(Kind::Sqlite).await else {
        return;
    };
    let place = &planted.place;
    planted.placed("1").await;
    planted.publish().await;
    let empty = ask(place, "reconcile --since 5m").expect(2);
    assert!(empty.said.contains("the span is empty"), "{empty:?}");
    let nothing = ask(place, "reconcile --since 2h --until 1h").expect(5);
    assert!(nothing.said.contains("`retention`"), "{nothing:?}");
    let old = ["reconcile", "--since", "30d", "--yes"];
    let forgotten = ask(place, &old).expect(1);
    assert!(forgotten.said.contains("consumers have records"), "{forgotten:?}");
    let forever = [&old[..], &["--consumers-remember", "forever", "--until", "0s"]].concat();
    ask(place, &forever).expect(0);
    planted.close().await;
}

on_each_database!(reconcile_publishes_lost_messages);
