//! `outbox audit` on real servers, and continuing a change after its process was killed.

use std::num::NonZeroU32;
use std::process::{Command, Stdio};

use outbox::core::{OperationFilter, OutboxAudit as _, RelayHealth};
use outbox::testing::eventually;
use sea_orm::ConnectionTrait as _;

use super::answer::ask;
use super::plant::{OrderPlaced, Planted, dead};
use crate::place::{Kind, on_each_database};

const MESSAGES: usize = 5_000;

async fn operation_has_actor_reason_and_results(kind: Kind) {
    let Some(planted) = Planted::open(kind).await else {
        return;
    };
    let place = &planted.place;
    let (one, two) = (planted.placed("1").await, planted.placed("2").await);
    let relay = planted.relay(RelayHealth::Healthy).await;
    planted.settle(&relay.1, one, dead(true)).await;
    planted.settle(&relay.1, two, dead(true)).await;
    ask(place, "audit").expect(5);
    let by_ann = ["--actor", "ann", "--reason", "INC-7", "-o", "json"];
    let words = [["retry", "--all", "--limit", "1", "--yes"].as_slice(), &by_ann].concat();
    let retried = ask(place, &words).expect(0);
    assert_eq!(retried.json()["changed"], 1);
    let id = retried.json()["operation"].as_str().unwrap().to_owned();
    assert!(
        retried.said.contains(&format!("outbox audit show {id}")),
        "{retried:?}"
    );
    let shown = ask(place, &format!("audit show {id} -o json")).expect(0).json();
    for (key, expected) in [("actor", "ann"), ("reason", "INC-7"), ("kind", "retry")] {
        assert_eq!(shown[key], expected, "{shown}");
    }
    assert_eq!((&shown["pending"], &shown["dead"]), (&1.into(), &0.into()));
    planted.settle(&relay.1, one, dead(true)).await;
    let shown = ask(place, &format!("audit show {id}")).expect(3);
    for text in [
        "1 failed again",
        "maximum payload exceeded",
        &format!("next: outbox why {one}"),
    ] {
        assert!(shown.out.contains(text), "{text}: {shown:?}");
    }

    let skipped = ask(place, "retry --skip --all --yes -o json").expect(0);
    assert_eq!(skipped.json()["changed"], 2);
    let again = ask(place, "retry --skip --all --yes -o json").expect(5);
    assert_eq!(
        (&again.json()["changed"], again.json()["operation"].is_null()),
        (&0.into(), true)
    );
    let ids = ask(place, "audit --since 1h -o json").expect(0).ids();
    assert_eq!(ids, [skipped.json()["operation"].as_str().unwrap(), &id]);
    let of_ann = ask(place, "audit --actor ann --kind retry -o json").expect(0);
    assert_eq!(of_ann.ids(), [id.as_str()]);
    ask(place, &format!("audit --before {id}")).expect(5);
    let other = ask(place, &format!("replay --operation {id}")).expect(2);
    assert!(other.said.contains("outbox audit --kind replay"), "{other:?}");
    let ended = ask(place, &format!("retry --operation {id}")).expect(5);
    assert!(ended.said.contains("the operation has nothing left"), "{ended:?}");
    planted.close().await;
}

async fn letter_retry_has_the_state_of_its_letters(kind: Kind) {
    let Some(planted) = Planted::open(kind).await else {
        return;
    };
    let place = &planted.place;
    for order in ["1", "2", "3"] {
        planted.placed(order).await;
    }
    planted.publish().await;
    planted.handle().await;
    let retry = ["dead-letters", "retry", "--all", "--yes", "-o", "json"];
    let retried = ask(place, &retry).expect(0).json();
    let operation = retried["operation"].as_str().unwrap();
    let shown = |code: i32| {
        let shown = ask(place, &format!("audit show {operation} -o json"))
            .expect(code)
            .json();
        let counts = ["gone", "pending", "dead"].map(|key| shown[key].as_u64().unwrap());
        (counts, shown["outcome"].as_str().unwrap().to_owned())
    };
    let waiting = "0 handled or discarded, 3 to be retried, 0 open";
    assert_eq!(shown(0), ([0, 3, 0], waiting.to_owned()));
    planted.handle().await;
    assert_eq!(shown(3).0, [0, 0, 3]);
    let keys = ask(place, "dead-letters list -o json").expect(0).ids();
    ask(place, &["dead-letters", "retry", &keys[0], "--yes"]).expect(0);
    ask(place, &["dead-letters", "discard", &keys[1], "--yes"]).expect(0);
    let text = ask(place, &format!("audit show {operation}")).expect(3).out;
    for expected in [
        "now: 1 handled or discarded, 1 to be retried, 1 open: failed again, being retried, or cancelled\n",
        "  next: outbox dead-letters list\n",
    ] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    planted.close().await;
}

async fn killed_replay_continues(kind: Kind) {
    let Some(planted) = Planted::open(kind).await else {
        return;
    };
    let place = &planted.place;
    let placed = |n: usize| OrderPlaced {
        order_id: n.to_string(),
        email: String::new(),
    };
    for some in (0..MESSAGES).collect::<Vec<_>>().chunks(1_000) {
        planted
            .record(some.iter().copied().map(placed).collect::<Vec<_>>())
            .await;
    }
    let schema = place.schema.as_ref().map(|schema| format!("{schema}."));
    let publish = format!(
        "UPDATE {}outbox_messages SET status = 1",
        schema.unwrap_or_default()
    );
    place.db.execute_unprepared(&publish).await.unwrap();
    let said = ask(place, "replay --all -o json").expect(0).json();
    assert_eq!(said["messages"], MESSAGES);
    let file = place.folder.path().join("outbox.toml");
    let mut program = Command::new(env!("CARGO_BIN_EXE_outbox"))
        .args(["replay", "--all", "--yes", "--config", file.to_str().unwrap()])
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
    let ids = ask(place, "audit -o json").expect(0).ids();
    let go_on = ["replay", "--operation", &ids[0]];
    ask(place, &go_on);
    let done = ask(place, &[go_on.as_slice(), &["--yes", "-o", "json"]].concat())
        .expect(0)
        .json();
    assert_eq!(done["changed"], MESSAGES);
    let copies = i64::try_from(MESSAGES).unwrap();
    assert_eq!(
        place.count("outbox_messages", "event_id IS NOT NULL").await,
        copies
    );
    let originals = "id IN (SELECT event_id FROM";
    let copied = match place.schema.as_ref() {
        Some(schema) => format!("{originals} {schema}.outbox_messages)"),
        None => format!("{originals} outbox_messages)"),
    };
    assert_eq!(
        place.count("outbox_messages", &copied).await,
        copies,
        "each has a copy"
    );
    planted.close().await;
}

on_each_database!(
    operation_has_actor_reason_and_results,
    letter_retry_has_the_state_of_its_letters,
    killed_replay_continues
);
