//! Previews of `outbox retry`, `skip` and `reconcile`, and that of a retry in a browser, say which consumers are handed the messages, and which of them remember the events.

use outbox::core::{Fitness, MessageId, OutboxReader as _, Publisher as _};
use outbox::nats::async_nats::jetstream::consumer::pull;
use outbox::nats::async_nats::jetstream::{self, stream};
use outbox::prelude::*;
use serde_json::{Value, json};

use super::answer::{ask, at};
use super::plant::{Planted, dead};
use super::serve::Served;
use crate::place::{Kind, Place};

fn events(planted: &Planted) -> EventStream {
    let name = &planted.place.name;
    EventStream::new(name).with_prefix(name).unwrap()
}

async fn on_server(planted: &Planted) -> stream::Stream {
    let client = events(planted).connect(&planted.place.nats).await.unwrap();
    let context = jetstream::new(client);
    context.get_stream(&planted.place.name).await.unwrap()
}

/// Makes a durable consumer that asks for these subjects below the prefix.
async fn make_consumer(planted: &Planted, name: &str, subjects: &str) {
    let config = pull::Config {
        durable_name: Some(name.to_owned()),
        filter_subject: format!("{}.{subjects}", planted.place.name),
        ..pull::Config::default()
    };
    let stream = on_server(planted).await;
    stream.create_consumer(config).await.unwrap();
}

/// Publishes a message whose acknowledgement is lost: the outbox still calls it pending.
async fn publish_unnoted(planted: &Planted, id: MessageId) {
    let events = events(planted);
    let client = events.connect(&planted.place.nats).await.unwrap();
    let found = planted.store.find(id).await.unwrap().unwrap();
    let message = found.message.unwrap();
    events.publisher(client).publish(&message).await.unwrap();
}

fn foreseen(consumer: &str, sampled: u64, handed: u64, remembered: Option<u64>) -> Value {
    json!({ "consumer": consumer, "sampled": sampled, "handed": handed, "remembered": remembered })
}

/// Of two dead letters of the outbox, `billing` has met the event of one.
async fn a_preview_of_a_retry_says_which_consumers_would_take_effect(kind: Kind) {
    let Some(planted) = Planted::open(kind).await else {
        return;
    };
    let place = &planted.place;
    planted.provision().await;
    let met = planted.placed("0").await;
    publish_unnoted(&planted, met).await;
    planted.handle().await;
    make_consumer(&planted, "search", "cart.>").await;
    let new = planted.placed("1").await;
    let (_, leases) = planted.relay(Fitness::Fit).await;
    planted.settle(&leases, met, dead(true)).await;
    planted.settle(&leases, new, dead(true)).await;

    let preview = ask(place, &["retry", "--all", "-o", "json"]).expect(0).json();
    let expected = [foreseen("billing", 2, 2, Some(1)), foreseen("search", 2, 0, None)];
    assert_eq!(preview["consumers"], json!(expected), "{preview}");
    let said = ask(place, &["retry", "--all"]).expect(0).out;
    for text in [
        "consumer billing is handed 2 and remembers 1 of the first 2 events: what it remembers has no further effect there, the rest takes effect if it has a handler",
        "these consumers do not take any of the first 2 events: search",
    ] {
        assert!(said.contains(text), "{text}: {said}");
    }
    shown_in_a_browser_is(place, &preview).await;
    let first = ask(place, &["retry", "--all", "--limit", "1"]).expect(0).out;
    assert!(
        first.contains("consumer billing is handed 1 and remembers 1 of 1 event: what it is handed has no further effect there"),
        "{first}"
    );
    let second = ask(place, &["retry", &new.to_string()]).expect(0).out;
    assert!(
        second.contains("remembers 0 of 1 event: what it is handed takes effect there"),
        "{second}"
    );
    let skip = ask(place, &["retry", "--skip", "--all"]).expect(0).out;
    assert!(skip.contains("no consumer is handed them by this"), "{skip}");
    planted.close().await;
}

/// The page of the same retry has each key of the preview, and says the same of consumers.
async fn shown_in_a_browser_is(place: &Place, preview: &Value) {
    let served = Served::start(place, &[]);
    let shown = served.json("/change.json?change=retry&all=yes").await;
    for key in ["consumers", "effects"] {
        assert_eq!(shown[key], preview[key], "{shown}");
    }
    for key in preview.as_object().unwrap().keys() {
        assert!(shown.get(key).is_some(), "{key}: {shown}");
    }
    let (_, page) = served.get("/change?change=retry&all=yes", &[]).await;
    let expected = "consumer billing is handed 2 and remembers 1 of the first 2 events: ";
    assert!(page.contains(expected), "{page}");
}

#[tokio::test]
async fn a_preview_of_a_retry_in_postgres_says_which_consumers_would_take_effect() {
    a_preview_of_a_retry_says_which_consumers_would_take_effect(Kind::Postgres).await;
}

#[tokio::test]
async fn a_preview_of_a_retry_in_mariadb_says_which_consumers_would_take_effect() {
    a_preview_of_a_retry_says_which_consumers_would_take_effect(Kind::MariaDb).await;
}

#[tokio::test]
async fn a_preview_of_a_retry_in_sqlite_says_which_consumers_would_take_effect() {
    a_preview_of_a_retry_says_which_consumers_would_take_effect(Kind::Sqlite).await;
}

/// Without an answer of NATS, and without the tables of the inbox.
#[tokio::test]
async fn a_retry_whose_consumers_are_not_known_is_previewed_and_made() {
    let Some(planted) = Planted::open(Kind::Sqlite).await else {
        return;
    };
    let place = &planted.place;
    planted.provision().await;
    let id = planted.placed("0").await;
    let (_, leases) = planted.relay(Fitness::Fit).await;
    planted.settle(&leases, id, dead(true)).await;
    let nobody = ask(place, &["retry", "--all"]).expect(0);
    assert!(
        nobody
            .out
            .contains("no durable consumer of the stream takes the event"),
        "{nobody:?}"
    );

    make_consumer(&planted, "search", "order.>").await;
    let unknown = "which consumers would take effect is not known: ";
    let inbox = ask(place, &["retry", "--all", "-o", "json"]).expect(0);
    assert!(inbox.out.contains(&format!("{unknown}inboxes: ")), "{inbox:?}");
    assert_eq!(
        inbox.json()["consumers"],
        json!([foreseen("search", 1, 1, None)]),
        "{inbox:?}"
    );
    let said = ask(place, &["retry", "--all"]).expect(0).out;
    let handed = "consumer search is handed 1 of 1 event: which of them it remembers is not known";
    assert!(said.contains(handed), "{said}");

    let away = |words: &[&str]| at(place, "nats://127.0.0.1:1", words).expect(0);
    let preview = away(&["retry", "--all", "-o", "json"]);
    assert_eq!(preview.json()["consumers"], json!([]), "{preview:?}");
    assert!(
        preview.out.contains(unknown),
        "nobody and unknown are told apart: {preview:?}"
    );
    let made = away(&["retry", "--all", "--yes", "-o", "json"]).json();
    assert_eq!(made["messages"], 1, "{made}");
    planted.close().await;
}

/// The stream has lost two messages. `billing` has handled one of them.
#[tokio::test]
async fn a_preview_of_a_reconciliation_says_which_consumers_remember_the_events() {
    let Some(planted) = Planted::open(Kind::Postgres).await else {
        return;
    };
    let place = &planted.place;
    planted.placed("0").await;
    planted.publish().await;
    planted.handle().await;
    planted.placed("1").await;
    planted.publish().await;
    let reconcile = ["reconcile", "--since", "1h", "--until", "0s"];
    let look = |code: i32| {
        let words = [&reconcile[..], &["-o", "json"]].concat();
        ask(place, &words).expect(code).json()
    };
    assert_eq!(look(0)["consumers"], json!([]), "nothing is missing");
    let stream = on_server(&planted).await;
    for sequence in [1, 2] {
        assert!(stream.delete_message(sequence).await.unwrap());
    }
    let preview = look(3);
    assert_eq!(
        (&preview["missing"], &preview["consumers"]),
        (&2.into(), &json!([foreseen("billing", 2, 2, Some(1))])),
        "{preview}"
    );
    let said = ask(place, &reconcile).expect(3).out;
    assert!(
        said.contains("consumer billing is handed 2 and remembers 1 of the first 2 events"),
        "{said}"
    );
    planted.close().await;
}
