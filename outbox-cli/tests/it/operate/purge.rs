//! `outbox purge published` on real servers: what it deletes, what it refuses, and that each deletion is written down.

use std::num::NonZeroU32;
use std::process::{Command, Stdio};

use outbox::core::{Fitness, MessageId, OperationFilter, OutboxAudit as _};
use outbox::testing::eventually;
use sea_orm::{ConnectionTrait as _, TransactionTrait as _};
use serde_json::Value;

use super::answer::{Answer, ask, run};
use super::plant::{OrderPlaced, Planted, dead};
use crate::place::{Kind, Place};

/// The file of the configuration, with this retention.
fn config(place: &Place, retention: &str) -> String {
    let file = place.folder.path().join(format!("{retention}.toml"));
    let relay = format!("[outbox.relay]\nretention = \"{retention}\"\n");
    std::fs::write(&file, place.outbox("shop") + &relay).unwrap();
    file.to_str().unwrap().to_owned()
}

/// Runs a command with this retention.
fn kept(place: &Place, retention: &str, words: &[&str]) -> Answer {
    let file = config(place, retention);
    let words = [words, &["--config", &file]].concat();
    run(&words, &[("DATABASE_URL", &place.url), ("NATS_URL", &place.nats)])
}

async fn messages(place: &Place) -> i64 {
    place.count("outbox_messages", "1 = 1").await
}

async fn a_purge_deletes_what_is_published_and_old(kind: Kind) {
    let Some(planted) = Planted::open(kind).await else {
        return;
    };
    let place = &planted.place;
    for order in ["1", "2", "3"] {
        planted.placed(order).await;
    }
    planted.publish().await;
    let (letter, _pending) = (planted.placed("4").await, planted.placed("5").await);
    let (_, leases) = planted.relay(Fitness::Fit).await;
    planted.settle(&leases, letter, dead(true)).await;

    // Nothing is a week old, which is the default.
    let young = ask(place, &["purge", "published", "--yes"]).expect(5);
    assert!(
        young.said.contains("nothing is published and old enough"),
        "{young:?}"
    );
    let short = kept(
        place,
        "2h",
        &["purge", "published", "--older-than", "1h", "--yes"],
    )
    .expect(2);
    assert!(
        short.said.contains("keeps published messages for 2h"),
        "{short:?}"
    );
    let forever = kept(
        place,
        "forever",
        &["purge", "published", "--older-than", "100d", "--yes"],
    )
    .expect(2);
    assert!(forever.said.contains("for ever"), "{forever:?}");
    assert_eq!(messages(place).await, 5);

    let preview = kept(place, "0s", &["purge", "published"]).expect(0);
    for text in [
        "would delete 3 messages of 3 aggregates",
        "3  order.placed",
        "what is on the stream",
        "deduplication keys stay",
    ] {
        assert!(preview.out.contains(text), "{text}: {preview:?}");
    }
    assert!(preview.said.contains("repeat it with `--yes`"), "{preview:?}");
    assert_eq!(messages(place).await, 5, "a preview deletes nothing");

    let by_ann = ["--actor", "ann", "--reason", "INC-7", "-o", "json"];
    let first = [
        ["purge", "published", "--limit", "1", "--yes"].as_slice(),
        &by_ann,
    ]
    .concat();
    let first = kept(place, "0s", &first).expect(0).json();
    assert_eq!(
        (&first["change"], &first["messages"]),
        (&"purge".into(), &1.into())
    );
    assert_eq!(messages(place).await, 4);
    let id = first["operation"].as_str().unwrap();
    let shown = ask(place, &["audit", "show", id, "-o", "json"]).expect(0).json();
    for (key, expected) in [
        ("actor", Value::from("ann")),
        ("reason", "INC-7".into()),
        ("kind", "purge".into()),
        ("changed", 1.into()),
        ("outcome", "1 message deleted".into()),
    ] {
        assert_eq!(shown[key], expected, "{key}: {shown}");
    }
    an_ended_purge_leaves_the_rest_to_others(place, id, letter).await;
    planted.close().await;
}

async fn an_ended_purge_leaves_the_rest_to_others(place: &Place, id: &str, letter: MessageId) {
    let ended = kept(place, "0s", &["purge", "published", "--operation", id, "--yes"]).expect(5);
    assert!(ended.said.contains("nothing is left of it"), "{ended:?}");

    let rest = kept(place, "0s", &["purge", "published", "--yes"]).expect(0);
    assert_eq!(rest.out, "2 published messages are deleted\n");
    let left = ask(place, &["list", "-o", "json"]).expect(0).json();
    let left: Vec<_> = left
        .as_array()
        .unwrap()
        .iter()
        .map(|row| &row["status"])
        .collect();
    // The newest first.
    assert_eq!(left, ["pending", "dead"]);
    kept(place, "0s", &["purge", "published", "--yes"]).expect(5);
    let other = ask(
        place,
        &["purge", "published", "--operation", &letter.to_string(), "--yes"],
    )
    .expect(2);
    assert!(other.said.contains("outbox audit --kind purge"), "{other:?}");
}

#[tokio::test]
async fn a_purge_of_postgres_deletes_what_is_published_and_old() {
    a_purge_deletes_what_is_published_and_old(Kind::Postgres).await;
}

#[tokio::test]
async fn a_purge_of_mariadb_deletes_what_is_published_and_old() {
    a_purge_deletes_what_is_published_and_old(Kind::MariaDb).await;
}

#[tokio::test]
async fn a_purge_of_sqlite_deletes_what_is_published_and_old() {
    a_purge_deletes_what_is_published_and_old(Kind::Sqlite).await;
}

/// Kills the program as soon as its operation is written down, and goes on with that operation. Until then the last message is locked, so that the program
/// cannot finish.
#[tokio::test]
async fn a_purge_goes_on_after_it_was_killed() {
    const MESSAGES: i64 = 5_000;
    let Some(planted) = Planted::open(Kind::Postgres).await else {
        return;
    };
    let place = &planted.place;
    let placed = |n: i64| OrderPlaced {
        order_id: n.to_string(),
        email: String::new(),
    };
    for some in (0..MESSAGES).collect::<Vec<_>>().chunks(1_000) {
        planted
            .record(some.iter().copied().map(placed).collect::<Vec<_>>())
            .await;
    }
    place
        .execute(&format!(
            "UPDATE {}.outbox_messages SET status = 1, published_at = created_at",
            place.name
        ))
        .await;
    let lock = place.db.begin().await.unwrap();
    let last = format!(
        "SELECT id FROM {}.outbox_messages ORDER BY id DESC LIMIT 1 FOR UPDATE",
        place.name
    );
    lock.execute_unprepared(&last).await.unwrap();
    let file = config(place, "0s");
    let mut program = Command::new(env!("CARGO_BIN_EXE_outbox"))
        .args(["purge", "published", "--yes", "--config", &file])
        .env_clear()
        .envs([("DATABASE_URL", &place.url), ("NATS_URL", &place.nats)])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let everything = OperationFilter::default();
    eventually("the operation", async || {
        let operations = planted.store.operations(&everything, NonZeroU32::MIN).await;
        operations.is_ok_and(|operations| !operations.is_empty())
    })
    .await;
    program.kill().unwrap();
    program.wait().unwrap();
    lock.rollback().await.unwrap();
    let id = ask(place, &["audit", "--kind", "purge", "-o", "name"])
        .expect(0)
        .out;
    let go_on = [
        "purge",
        "published",
        "--operation",
        id.trim_end(),
        "--yes",
        "-o",
        "json",
    ];
    let done = kept(place, "0s", &go_on).expect(0).json();
    assert_eq!(done["messages"], MESSAGES, "each is counted once");
    assert_eq!(messages(place).await, 0);
    planted.close().await;
}

/// Makes all records of the inbox those of messages that were handled 20 days ago, and remembered for so many.
async fn expire(planted: &Planted, days: u32) {
    let ago = |days: u32| match &planted.place.schema {
        Some(_) => format!("now() - interval '{days} days'"),
        None if planted.place.url.starts_with("mysql") => {
            format!("UTC_TIMESTAMP(6) - INTERVAL {days} DAY")
        }
        None => format!("CAST((unixepoch() - {days} * 86400) * 1000000 AS INTEGER)"),
    };
    let schema = planted.place.schema.as_ref().map(|schema| format!("{schema}."));
    let sql = format!(
        "UPDATE {}inbox_messages SET status = 1, processed_at = {}, expires_at = {}",
        schema.unwrap_or_default(),
        ago(20),
        ago(20 - days)
    );
    planted.place.execute(&sql).await;
}

async fn a_purge_of_an_inbox_deletes_what_has_expired(kind: Kind) {
    let Some(planted) = Planted::open(kind).await else {
        return;
    };
    let place = &planted.place;
    for order in ["1", "2", "3"] {
        planted.placed(order).await;
    }
    planted.publish().await;
    planted.handle().await;
    let purge = |more: &[&str]| ask(place, &[&["purge", "inbox"], more].concat());
    let nothing = purge(&["--yes"]).expect(5);
    assert!(nothing.said.contains("nothing has expired"), "{nothing:?}");

    // The stream keeps them for 14 days, and could deliver them again.
    expire(&planted, 2).await;
    let refused = purge(&["--yes"]).expect(1);
    assert!(
        refused
            .said
            .contains("consumer billing: its inbox remembers messages for 48h"),
        "{refused:?}"
    );
    let said = purge(&[]).expect(3);
    assert!(said.out.contains("  refused: consumer billing"), "{said:?}");
    assert_eq!(place.count("inbox_messages", "1 = 1").await, 3);

    expire(&planted, 15).await;
    let preview = purge(&["-o", "json"]).expect(0).json();
    assert_eq!(
        (&preview["records"], &preview["consumers"]["billing"]),
        (&3.into(), &3.into())
    );
    let first = purge(&["--limit", "1", "--yes", "--actor", "ann", "-o", "json"])
        .expect(0)
        .json();
    assert_eq!(first["records"], 1);
    assert_eq!(place.count("inbox_messages", "1 = 1").await, 2);
    let id = first["operation"].as_str().unwrap();
    let shown = ask(place, &["audit", "show", id, "-o", "json"]).expect(0).json();
    for (key, expected) in [
        ("actor", Value::from("ann")),
        ("kind", "purge-inbox".into()),
        ("changed", 1.into()),
        ("outcome", "1 record deleted".into()),
    ] {
        assert_eq!(shown[key], expected, "{key}: {shown}");
    }
    let rest = purge(&["--yes"]).expect(0);
    assert_eq!(rest.out, "2 records are deleted\n");
    assert_eq!(place.count("inbox_messages", "1 = 1").await, 0);
    assert_eq!(
        place.count("inbox_dead_letters", "1 = 1").await,
        3,
        "dead letters wait for a decision"
    );
    planted.close().await;
}

#[tokio::test]
async fn a_purge_of_an_inbox_in_postgres_deletes_what_has_expired() {
    a_purge_of_an_inbox_deletes_what_has_expired(Kind::Postgres).await;
}

#[tokio::test]
async fn a_purge_of_an_inbox_in_mariadb_deletes_what_has_expired() {
    a_purge_of_an_inbox_deletes_what_has_expired(Kind::MariaDb).await;
}

#[tokio::test]
async fn a_purge_of_an_inbox_in_sqlite_deletes_what_has_expired() {
    a_purge_of_an_inbox_deletes_what_has_expired(Kind::Sqlite).await;
}

#[tokio::test]
async fn an_inbox_whose_stream_cannot_be_asked_forgets_nothing() {
    let Some(planted) = Planted::open(Kind::Sqlite).await else {
        return;
    };
    let place = &planted.place;
    planted.placed("1").await;
    planted.publish().await;
    planted.handle().await;
    expire(&planted, 15).await;
    let away = super::answer::at(place, "nats://127.0.0.1:1", &["purge", "inbox", "--yes"]).expect(1);
    assert!(
        away.said.contains("the stream could not be looked at"),
        "{away:?}"
    );
    assert_eq!(place.count("inbox_messages", "1 = 1").await, 1);
    planted.close().await;
}
