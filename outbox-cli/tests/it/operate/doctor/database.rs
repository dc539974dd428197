//! Database problems found by `outbox doctor`.

use std::path::Path;

use outbox::core::{MessageStatus, OutboxReader as _, OutboxStore as _};
use outbox::testing::{backend_url, eventually};
use outbox_cli::admin::rights::Role;
use outbox_test_servers::Server;
use sea_orm::{ConnectionTrait as _, Statement};

use super::{checks, doctor, found, next, of_finding, sound, statement};
use crate::operate::answer::{self, ask, logged_in};
use crate::operate::plant::Planted;
use crate::operate::rights::Login;
use crate::place::{Kind, Place, on_both_servers, on_each_database};

async fn only_missing_tables_are_findings(kind: Kind) {
    let Some(planted) = sound(kind).await else { return };
    let place = &planted.place;
    planted
        .store
        .connection()
        .execute_unprepared(&format!("DELETE FROM {}outbox_relays", schema(place)))
        .await
        .unwrap();
    let answer = doctor(place, &[]).expect(3);
    assert_eq!(checks(&answer), ["relays"]);
    assert_eq!(next(&answer, "relays"), "outbox relay run");
    let without = format!("ALTER TABLE {}outbox_relays DROP COLUMN fitness", schema(place));
    place.db.execute_unprepared(&without).await.unwrap();
    let answer = doctor(place, &[]).expect(4);
    assert_eq!(checks(&answer), ["tables"]);
    assert_eq!(next(&answer, "tables"), "outbox migrate --yes");
    assert!(
        !answer.out.contains("outbox_sea_orm"),
        "no function of Rust: {answer:?}"
    );
    planted.close().await;
}

fn schema(place: &Place) -> String {
    place
        .schema
        .as_ref()
        .map(|schema| format!("{schema}."))
        .unwrap_or_default()
}

async fn login_without_relay_rights_is_a_finding(kind: Kind) {
    let Some(planted) = sound(kind).await else { return };
    let place = &planted.place;
    let viewer = Login::new(kind, place, &[Role::Viewer]).await;
    let ask = |words: &str| logged_in(place, &viewer.url, &place.nats, words);
    let answer = ask("doctor -o json").expect(4);
    assert_eq!(checks(&answer), ["rights"]);
    assert!(statement(&answer, "rights").starts_with("GRANT"), "{answer:?}");
    let answer = ask("doctor -o json --viewer").expect(0);
    assert_eq!(answer.json()[0]["unseen"], serde_json::json!([]));
    place
        .db
        .execute_unprepared(&statement(&ask("doctor -o json"), "rights").replace(';', ""))
        .await
        .ok();
    viewer.close(kind, place).await;
    planted.close().await;
}

async fn pauses_without_messages_are_findings(kind: Kind) {
    let Some(planted) = sound(kind).await else { return };
    let place = &planted.place;
    for aggregate_type in ["order", "Order"] {
        let words = [
            "pause",
            "--aggregate-type",
            aggregate_type,
            "--reason",
            "overrun",
            "--yes",
        ];
        ask(place, &words).expect(0);
    }
    ask(place, "pause --yes").expect(0);
    let answer = doctor(place, &[]).expect(3);
    let of = |subject: &str| ("pauses".to_owned(), subject.to_owned());
    assert_eq!(found(&answer), [of("Order")], "no order of that type is known");
    assert_eq!(
        next(&answer, "pauses"),
        "outbox resume --yes --aggregate-type Order"
    );
    run(place, &next(&answer, "pauses")).await;
    assert_eq!(
        found(&doctor(place, &[]).expect(0)),
        [],
        "nothing has stood for a day"
    );
    planted.close().await;
}

async fn run(place: &Place, command: &str) {
    ask(place, command.trim_start_matches("outbox ")).expect(0);
}

/// The pause row was deleted, so the held messages wait forever. Only `outbox doctor` reports this.
async fn messages_held_without_pause_are_found_and_released(kind: Kind) {
    let Some(planted) = sound(kind).await else { return };
    let place = &planted.place;
    run(place, "outbox pause --aggregate-type order --yes").await;
    let events = [planted.placed("7").await, planted.viewed("8").await];
    planted.publish().await;
    let delete = format!("DELETE FROM {}outbox_pauses", schema(place));
    place.db.execute_unprepared(&delete).await.unwrap();
    planted.publish().await;
    let answer = doctor(place, &[]).expect(4);
    assert_eq!(found(&answer), [("pauses".to_owned(), "order".to_owned())]);
    run(place, &next(&answer, "pauses")).await;
    eventually("what was held", async || {
        planted.publish().await;
        let left = planted.store.backlog().await.unwrap();
        (left.pending, planted.store.pauses().await.unwrap().len()) == (0, 0)
    })
    .await;
    for event in events {
        let shown = planted.store.find(event).await.unwrap().unwrap();
        assert_eq!(shown.stored.status, MessageStatus::Published);
    }
    assert_eq!(found(&doctor(place, &[]).expect(0)), []);
    planted.close().await;
}

#[tokio::test]
async fn sqlite_file_without_wal_is_found_and_fixed() {
    let Some(planted) = Planted::open(Kind::Sqlite).await else {
        return;
    };
    let (place, check) = (&planted.place, "database-setting".to_owned());
    let answer = doctor(place, &[]);
    assert!(checks(&answer).contains(&check), "{answer:?}");
    let mend = of_finding(&answer, &check, "advice");
    let statement = mend.split('`').nth(1).unwrap();
    place.db.execute_unprepared(statement).await.unwrap();
    assert!(!checks(&doctor(place, &[])).contains(&check));
    planted.close().await;
}

#[tokio::test]
async fn read_only_database_is_found() {
    let Some(program) = backend_url("OUTBOX_TEST_POSTGRES_BIN") else {
        return;
    };
    let mut server = Server::postgres(Path::new(&program), &[]).unwrap();
    server.start().await.unwrap();
    let admin = server.connect(1).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("outbox.toml");
    std::fs::write(&config, "[[outbox]]\n[outbox.stream]\nname = \"SHOP\"\n").unwrap();
    let run = |words: &str| {
        let words = format!("{words} --config {} -o json", config.display());
        answer::run(
            &words,
            &[("DATABASE_URL", server.url()), ("NATS_URL", "nats://127.0.0.1:1")],
        )
    };
    run("migrate --yes").expect(0);
    let only_reads = |words: &str| run(words).out.contains("default_transaction_read_only");
    let commands = ["status", "doctor", "doctor --viewer"];
    for command in commands {
        assert!(!only_reads(command), "{command:?}");
    }
    let database = admin
        .query_one_raw(Statement::from_string(
            admin.get_database_backend(),
            "SELECT CAST(current_database() AS text) AS name",
        ))
        .await
        .unwrap();
    let database: String = database.unwrap().try_get("", "name").unwrap();
    let set = format!("ALTER DATABASE {database} SET default_transaction_read_only = on");
    admin.execute_unprepared(&set).await.unwrap();
    for command in commands {
        assert!(only_reads(command), "{command:?}");
    }
    admin.close().await.unwrap();
}

#[tokio::test]
async fn row_level_security_of_the_login_is_found() {
    let Some(planted) = sound(Kind::Postgres).await else {
        return;
    };
    let place = &planted.place;
    let relay = Login::new(Kind::Postgres, place, &[Role::Relay]).await;
    let enable = format!(
        "ALTER TABLE {}outbox_messages ENABLE ROW LEVEL SECURITY",
        schema(place)
    );
    place.db.execute_unprepared(&enable).await.unwrap();
    let answer = logged_in(place, &relay.url, &place.nats, "doctor -o json").expect(4);
    assert_eq!(checks(&answer), ["row-security"]);
    let answer = doctor(place, &[]);
    assert!(
        !checks(&answer).contains(&"row-security".to_owned()),
        "{answer:?}"
    );
    let not_checked = answer.json()[0]["not_checked"].to_string();
    assert!(!not_checked.contains("row-security"), "{not_checked}");
    relay.close(Kind::Postgres, place).await;
    planted.close().await;
}

on_each_database!(
    only_missing_tables_are_findings,
    pauses_without_messages_are_findings,
    messages_held_without_pause_are_found_and_released
);

on_both_servers!(login_without_relay_rights_is_a_finding);
