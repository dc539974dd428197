//! `outbox dead-letters` and `outbox consumers` on real servers. The consumer's handler rejects
//! everything.

use outbox::prelude::*;
use serde_json::Value;

use super::answer::{Answer, ask};
use super::plant::{OrderPlaced, Planted};
use crate::place::{Kind, Place, on_each_database};

#[idempotent_handler(consumer = "billing")]
async fn bill(event: Event<OrderPlaced>) -> Result<(), HandlerError> {
    if event.order_id.starts_with("card") {
        return Err(HandlerError::fatal("the card was declined"));
    }
    Err(HandlerError::fatal(format!(
        "no price\u{1b}[2J for order {}",
        event.order_id
    )))
}

async fn with_dead_letters(kind: Kind, orders: u32) -> Option<Planted> {
    let planted = Planted::open(kind).await?;
    for order in 1..=orders {
        planted.placed(&order.to_string()).await;
    }
    planted.publish().await;
    planted.handle().await;
    Some(planted)
}

fn keys(place: &Place, words: &[&str]) -> Vec<String> {
    ask(place, &[&["dead-letters", "list", "-o", "json"], words].concat()).ids()
}

async fn dead_letters_are_listed_retried_and_discarded(kind: Kind) {
    let Some(planted) = with_dead_letters(kind, 3).await else {
        return;
    };
    let place = &planted.place;
    let all = keys(place, &[]);
    assert_eq!(all.len(), 3);
    for filter in [
        ["--consumer", "billing"],
        ["--type", "order.placed"],
        ["--since", "1h"],
    ] {
        assert_eq!(keys(place, &filter), all, "{filter:?}");
    }
    let of_one = keys(place, &["--aggregate", "order/1"]);
    assert!(of_one.len() == 1 && all.contains(&of_one[0]), "{of_one:?}");
    ask(place, "dead-letters list --consumer other").expect(5);
    let listed = ask(place, "dead-letters list").expect(0);
    assert!(
        !listed.out.contains('\u{1b}') && listed.out.contains("no price"),
        "{listed:?}"
    );

    let shown = ask(place, &["dead-letters", "show", &all[0], "--payload"]).expect(0);
    assert!(
        shown.out.contains("\"email\":\"***\"") && !shown.out.contains("ada@example.org"),
        "{shown:?}"
    );
    let shown = ask(place, &["dead-letters", "show", &all[0]]).expect(0);
    assert!(!shown.out.contains("email"), "{shown:?}");

    let retry = ["dead-letters", "retry", "--consumer", "billing"];
    let preview = ask(place, &retry).expect(0);
    assert!(
        preview.out.starts_with("would retry 3 dead letters"),
        "{preview:?}"
    );
    assert!(preview.said.contains("re-run with `--yes`"), "{preview:?}");
    let preview = ask(place, &[&retry[..], &["-o", "json"]].concat()).expect(0);
    assert_eq!(preview.json()["count"], 3);
    let one = ask(
        place,
        &[&retry[..], &["--limit", "1", "--yes", "-o", "json"]].concat(),
    )
    .expect(0);
    assert_eq!(one.json()["changed"], 1);
    let statuses = ask(place, "dead-letters list -o json").json();
    let statuses: Vec<&str> = statuses
        .as_array()
        .unwrap()
        .iter()
        .map(|letter| letter["status"].as_str().unwrap())
        .collect();
    assert_eq!(statuses, ["retry", "open", "open"]);
    let cancelled = ask(place, "dead-letters cancel-retry --all --yes").expect(0);
    assert_eq!(cancelled.out, "1 dead letter is open again\n");
    ask(place, &["dead-letters", "discard", &all[0], &all[1]]).expect(0);
    assert_eq!(keys(place, &[]), all);
    ask(place, &["dead-letters", "discard", &all[0], &all[1], "--yes"]).expect(0);
    assert_eq!(keys(place, &[]), all[2..]);
    ask(place, &["dead-letters", "show", &all[0]]).expect(5);
    ask(place, "dead-letters discard --yes").expect(2);
    planted.close().await;
}

async fn letter_group_is_listed_retried_and_discarded(kind: Kind) {
    let Some(planted) = Planted::open(kind).await else {
        return;
    };
    let place = &planted.place;
    for order in ["1", "card-1", "card-2"] {
        planted.placed(order).await;
    }
    planted.publish().await;
    planted.handle().await;
    let groups = ask(place, "dead-letters groups -o json").expect(0).json();
    let declined = groups
        .as_array()
        .unwrap()
        .iter()
        .find(|group| group["dead_letters"] == 2);
    let group = declined.unwrap()["fingerprint"].as_str().unwrap();

    let of_group = keys(place, &["--group", group]);
    assert_eq!(of_group.len(), 2);
    let retry = ["dead-letters", "retry", "--group", group, "--limit", "1"];
    let preview = ask(place, &retry).expect(0);
    assert!(preview.out.contains("1 dead letter\n"), "{preview:?}");
    ask(place, &[&retry[..], &["--yes"]].concat()).expect(0);
    let letters = ask(place, "dead-letters list -o json").json();
    let marked = letters
        .as_array()
        .unwrap()
        .iter()
        .filter(|letter| letter["status"] == "retry");
    let marked: Vec<&str> = marked.map(|letter| letter["id"].as_str().unwrap()).collect();
    assert!(
        marked.len() == 1 && of_group.iter().any(|id| id == marked[0]),
        "{letters}"
    );

    let discarded = ask(place, &format!("dead-letters discard --group {group} --yes")).expect(0);
    assert_eq!(discarded.out, "2 dead letters are deleted\n");
    assert_eq!(keys(place, &["--aggregate", "order/1"]).len(), 1);
    ask(place, &format!("dead-letters discard --group {group}")).expect(5);
    ask(place, "dead-letters discard --group no-fingerprint").expect(2);
    planted.close().await;
}

fn lag(place: &Place) -> Value {
    ask(place, "consumers list -o json").expect(0).json()[0].clone()
}

async fn dead_letters_in_another_database_are_unknown(place: &Place) {
    let schema = place.schema.as_ref().map(|schema| format!("{schema}."));
    let schema = schema.unwrap_or_default();
    for table in ["inbox_messages", "inbox_sequences", "inbox_dead_letters"] {
        place.execute(&format!("DELETE FROM {schema}{table}")).await;
    }
    let elsewhere = lag(place);
    assert_eq!(elsewhere["dead_letters_open"], Value::Null);
    let unseen = elsewhere["unseen"].to_string();
    assert!(unseen.contains("no row of the consumer"), "{elsewhere}");
    let status = ask(place, "status");
    assert!(
        status
            .out
            .contains("paused not checked, open dead letters not checked"),
        "{status:?}"
    );
}

async fn consumer_is_listed_paused_and_resumed(kind: Kind) {
    let Some(planted) = with_dead_letters(kind, 1).await else {
        return;
    };
    let place = &planted.place;
    let listed = ask(place, "consumers list -o json").expect(0).json();
    assert_eq!(listed.as_array().unwrap().len(), 1);
    assert_eq!(
        (&listed[0]["consumer"], &listed[0]["undelivered"]),
        (&"billing".into(), &0.into())
    );
    assert_eq!(listed[0]["dead_letters_open"], 1);
    let listed = ask(place, "consumers list").expect(0);
    assert!(
        listed
            .said
            .contains("next: outbox dead-letters groups --consumer billing"),
        "{listed:?}"
    );

    let pause = ["consumers", "pause", "billing", "--reason", "the bank is away"];
    let preview = ask(place, &pause).expect(0);
    assert!(
        preview.out.contains("would pause billing") && preview.said.contains("`--yes`"),
        "{preview:?}"
    );
    let is_warned = |answer: &Answer| answer.said.contains("has no consumer biling: ");
    assert!(!preview.said.contains("has no consumer"), "{preview:?}");
    let misspelt = ["consumers", "pause", "biling", "--reason", "the bank is away"];
    let preview = ask(place, &misspelt).expect(0);
    assert!(is_warned(&preview), "{preview:?}");
    let paused = ask(place, &[&misspelt[..], &["--yes"]].concat()).expect(0);
    assert!(is_warned(&paused), "{paused:?}");
    ask(place, "consumers resume biling --yes").expect(0);
    ask(place, "consumers resume billing --yes").expect(5);
    let paused = ask(place, &[&pause[..], &["--yes", "-o", "json"]].concat()).expect(0);
    assert_eq!(paused.json()["changed"], 1);
    let again = ask(place, &[&pause[..], &["--yes"]].concat()).expect(5);
    assert!(
        again.out.contains("already paused: the bank is away"),
        "{again:?}"
    );
    assert_eq!(lag(place)["paused"], "the bank is away");
    let status = ask(place, "status -o json").json();
    assert_eq!(status[0]["consumers"]["all"], 1, "{status}");
    assert_eq!(status[0]["consumers"]["healthy"], 0, "{status}");
    let reasons = status[0]["reasons"].to_string();
    assert!(reasons.contains("consumer billing: it is paused"), "{status}");
    let preview = ask(place, "consumers resume billing").expect(0);
    assert!(preview.out.contains("would end its pause"), "{preview:?}");
    ask(place, "consumers resume billing --yes").expect(0);
    assert_eq!(lag(place)["paused"], Value::Null);

    planted.placed("2").await;
    planted.publish().await;
    let behind = lag(place);
    assert_eq!(behind["undelivered"], 1);
    let reasons = behind["reasons"].to_string();
    let idle = "1 message is not delivered, and no process requested messages within ";
    assert!(reasons.contains(&format!("{idle}3 s")), "{reasons}");
    let forecast = ask(place, "consumers list --forecast=1s -o json").expect(0);
    let reasons = forecast.json()[0]["reasons"].to_string();
    // Two observations a second apart are no proof.
    assert!(
        reasons.contains(idle) && !reasons.contains("within 1 s"),
        "{reasons}"
    );
    dead_letters_in_another_database_are_unknown(place).await;
    planted.close().await;
}

#[tokio::test]
async fn missing_inbox_tables_error_has_next_step() {
    let Some(planted) = Planted::open(Kind::Postgres).await else {
        return;
    };
    let answer = ask(&planted.place, "dead-letters list").expect(1);
    assert!(
        answer
            .said
            .contains("inbox tables are in the databases of their services"),
        "{answer:?}"
    );
    planted.close().await;
}

on_each_database!(
    letter_group_is_listed_retried_and_discarded,
    dead_letters_are_listed_retried_and_discarded,
    consumer_is_listed_paused_and_resumed
);
