//! Trouble in the database.

use std::path::Path;

use outbox::core::{MessageStatus, OutboxReader as _, OutboxStore as _};
use outbox::testing::{backend_url, eventually};
use outbox_admin::rights::Role;
use outbox_test_servers::Server;
use sea_orm::{
    ConnectOptions, ConnectionTrait as _, Database, DatabaseConnection, Statement, TransactionTrait as _,
};

use super::{checks, doctor, found, next, of_finding, sound, statement};
use crate::operate::answer::{self, Answer, ask, logged_in};
use crate::operate::plant::Planted;
use crate::operate::rights::Login;
use crate::place::{Kind, Place};

async fn what_fits_has_no_finding_and_a_missing_table_is_one(kind: Kind) {
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

/// The schema with its dot, or nothing.
fn schema(place: &Place) -> String {
    place
        .schema
        .as_ref()
        .map(|schema| format!("{schema}."))
        .unwrap_or_default()
}

#[tokio::test]
async fn what_fits_on_sqlite_has_no_finding_and_a_missing_table_is_one() {
    what_fits_has_no_finding_and_a_missing_table_is_one(Kind::Sqlite).await;
}

#[tokio::test]
async fn what_fits_on_postgres_has_no_finding_and_a_missing_table_is_one() {
    what_fits_has_no_finding_and_a_missing_table_is_one(Kind::Postgres).await;
}

#[tokio::test]
async fn what_fits_on_mariadb_has_no_finding_and_a_missing_table_is_one() {
    what_fits_has_no_finding_and_a_missing_table_is_one(Kind::MariaDb).await;
}

async fn a_login_without_the_rights_of_a_relay_is_found(kind: Kind) {
    let Some(planted) = sound(kind).await else { return };
    let place = &planted.place;
    let viewer = Login::new(kind, place, &[Role::Viewer]).await;
    let ask = |words: &[&str]| logged_in(place, &viewer.url, &place.nats, words);
    let answer = ask(&["doctor", "-o", "json"]).expect(4);
    assert_eq!(checks(&answer), ["rights"]);
    assert!(statement(&answer, "rights").starts_with("GRANT"), "{answer:?}");
    let answer = ask(&["doctor", "-o", "json", "--viewer"]).expect(0);
    let unseen = answer.json()[0]["unseen"].to_string();
    assert!(
        unseen.contains("GRANT"),
        "a viewer is told what it cannot see: {unseen}"
    );
    place
        .db
        .execute_unprepared(&statement(&ask(&["doctor", "-o", "json"]), "rights").replace(';', ""))
        .await
        .ok();
    viewer.close(kind, place).await;
    planted.close().await;
}

#[tokio::test]
async fn a_login_to_postgres_without_the_rights_of_a_relay_is_found() {
    a_login_without_the_rights_of_a_relay_is_found(Kind::Postgres).await;
}

#[tokio::test]
async fn a_login_to_mariadb_without_the_rights_of_a_relay_is_found() {
    a_login_without_the_rights_of_a_relay_is_found(Kind::MariaDb).await;
}

/// A connection of its own to the database of a place.
async fn session(place: &Place) -> DatabaseConnection {
    let mut options = ConnectOptions::new(&place.url);
    options.max_connections(1).sqlx_logging(false);
    Database::connect(options).await.unwrap()
}

/// MariaDB says the age of a transaction in whole seconds.
async fn until_it_is_old() {
    let begun = std::time::Instant::now();
    eventually("an age of two seconds", async || begun.elapsed().as_secs() >= 2).await;
}

async fn an_old_transaction_is_found(kind: Kind) {
    let Some(planted) = sound(kind).await else { return };
    let place = &planted.place;
    let other = session(place).await;
    let tx = other.begin().await.unwrap();
    let id = match kind {
        Kind::Postgres => "SELECT CAST(pg_backend_pid() AS text) AS id",
        _ => "SELECT CAST(CONNECTION_ID() AS CHAR) AS id",
    };
    let row = tx
        .query_one_raw(Statement::from_string(other.get_database_backend(), id))
        .await
        .unwrap();
    let id: String = row.unwrap().try_get("", "id").unwrap();
    // MariaDB lists a transaction once it has read or written.
    let write = format!(
        "UPDATE {}outbox_leases SET epoch = epoch WHERE partition_no = 1",
        schema(place)
    );
    tx.execute_unprepared(&write).await.unwrap();
    let is_found = |answer: &Answer| found(answer).contains(&("long-transaction".to_owned(), id.clone()));
    until_it_is_old().await;
    // Others of this server may be older for a moment.
    eventually("the open transaction", async || {
        is_found(&doctor(place, &["--transaction", "1ms"]))
    })
    .await;
    let by_default = doctor(place, &[]).expect(0);
    assert_eq!(checks(&by_default), [""; 0], "it is not that old");
    tx.rollback().await.unwrap();
    // MariaDB answers from a cache for as long as others ask it.
    if let Kind::Postgres = kind {
        assert!(!is_found(&doctor(place, &["--transaction", "1ms"])));
    }
    other.close().await.unwrap();
    planted.close().await;
}

#[tokio::test]
async fn an_old_transaction_in_postgres_is_found() {
    an_old_transaction_is_found(Kind::Postgres).await;
}

#[tokio::test]
async fn an_old_transaction_in_mariadb_is_found() {
    an_old_transaction_is_found(Kind::MariaDb).await;
}

#[tokio::test]
async fn a_transaction_in_mariadb_that_was_prepared_and_left_is_found() {
    let Some(planted) = sound(Kind::MariaDb).await else {
        return;
    };
    let place = &planted.place;
    let other = session(place).await;
    for sql in [
        format!("XA START '{}'", place.name),
        "UPDATE outbox_leases SET epoch = epoch + 1 WHERE partition_no = 1".to_owned(),
        format!("XA END '{}'", place.name),
        format!("XA PREPARE '{}'", place.name),
    ] {
        other.execute_unprepared(&sql).await.unwrap();
    }
    other.close().await.unwrap();
    until_it_is_old().await;
    let is_found =
        || checks(&doctor(place, &["--transaction", "1ms"])).contains(&"prepared-transaction".to_owned());
    eventually("the prepared transaction", async || is_found()).await;
    let rollback = format!("XA ROLLBACK '{}'", place.name);
    place.db.execute_unprepared(&rollback).await.unwrap();
    planted.close().await;
}

#[tokio::test]
async fn a_slot_that_nobody_reads_is_found() {
    let Some(planted) = sound(Kind::Postgres).await else {
        return;
    };
    let place = &planted.place;
    let create = format!(
        "SELECT pg_create_physical_replication_slot('{}', true)",
        place.name
    );
    place.db.execute_unprepared(&create).await.unwrap();
    planted.placed("2").await;
    let of_slot = ("replication-slot".to_owned(), place.name.clone());
    assert!(
        !found(&doctor(place, &[]).expect(0)).contains(&of_slot),
        "it keeps little yet"
    );
    let answer = doctor(place, &["--slot-bytes", "0"]).expect(3);
    assert!(found(&answer).contains(&of_slot), "{answer:?}");
    let drop = format!("SELECT pg_drop_replication_slot('{}')", place.name);
    assert!(answer.out.contains(&drop), "{answer:?}");
    place.db.execute_unprepared(&drop).await.unwrap();
    planted.close().await;
}

#[tokio::test]
async fn a_table_without_autovacuum_is_found_and_mended_by_the_next_command() {
    let Some(planted) = sound(Kind::Postgres).await else {
        return;
    };
    let place = &planted.place;
    let off = format!(
        "ALTER TABLE {}.outbox_messages SET (autovacuum_enabled = off)",
        place.name
    );
    place.db.execute_unprepared(&off).await.unwrap();
    let answer = doctor(place, &[]).expect(3);
    assert_eq!(checks(&answer), ["autovacuum"]);
    place
        .db
        .execute_unprepared(&statement(&answer, "autovacuum"))
        .await
        .unwrap();
    assert_eq!(found(&doctor(place, &[]).expect(0)), []);
    planted.close().await;
}

async fn pauses_that_were_forgotten_or_hold_nothing_are_found(kind: Kind) {
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
    ask(place, &["pause", "--yes"]).expect(0);
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
    let answer = doctor(place, &["--pause", "0s"]).expect(3);
    assert_eq!(found(&answer), [of(""), of("order")]);
    assert!(answer.out.contains("overrun"), "{answer:?}");
    run(place, "outbox resume --yes").await;
    run(place, "outbox resume --aggregate-type order --yes").await;
    assert_eq!(found(&doctor(place, &["--pause", "0s"]).expect(0)), []);
    planted.close().await;
}

/// Runs a command as a person would who copies it.
async fn run(place: &Place, command: &str) {
    let words: Vec<&str> = command.split(' ').skip(1).collect();
    ask(place, &words).expect(0);
}

#[tokio::test]
async fn pauses_in_sqlite_that_were_forgotten_or_hold_nothing_are_found() {
    pauses_that_were_forgotten_or_hold_nothing_are_found(Kind::Sqlite).await;
}

#[tokio::test]
async fn pauses_in_postgres_that_were_forgotten_or_hold_nothing_are_found() {
    pauses_that_were_forgotten_or_hold_nothing_are_found(Kind::Postgres).await;
}

#[tokio::test]
async fn pauses_in_mariadb_that_were_forgotten_or_hold_nothing_are_found() {
    pauses_that_were_forgotten_or_hold_nothing_are_found(Kind::MariaDb).await;
}

/// Somebody deleted the pause by hand. What it held waits for ever, and nothing else says so.
async fn what_is_held_without_a_pause_is_found_and_released_by_the_next_command(kind: Kind) {
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
async fn what_sqlite_holds_without_a_pause_is_found_and_released_by_the_next_command() {
    what_is_held_without_a_pause_is_found_and_released_by_the_next_command(Kind::Sqlite).await;
}

#[tokio::test]
async fn what_postgres_holds_without_a_pause_is_found_and_released_by_the_next_command() {
    what_is_held_without_a_pause_is_found_and_released_by_the_next_command(Kind::Postgres).await;
}

#[tokio::test]
async fn what_mariadb_holds_without_a_pause_is_found_and_released_by_the_next_command() {
    what_is_held_without_a_pause_is_found_and_released_by_the_next_command(Kind::MariaDb).await;
}

/// The sessions of a login have a clock of their own, because the machine's cannot be moved.
#[tokio::test]
async fn a_clock_that_goes_wrong_is_found() {
    let Some(program) = backend_url("OUTBOX_TEST_MARIADB_BIN") else {
        return;
    };
    let settings = [
        "--sysdate-is-now",
        "--init-connect=SET SESSION timestamp = UNIX_TIMESTAMP() + 3600",
    ];
    let mut server = Server::mariadb(Path::new(&program), &settings).unwrap();
    server.start().await.unwrap();
    let admin = server.connect(1).await.unwrap();
    // The server does not change the sessions of an administrator.
    for sql in [
        "CREATE USER 'later'@'127.0.0.1' IDENTIFIED BY 'later'",
        "GRANT ALL PRIVILEGES ON shop.* TO 'later'@'127.0.0.1'",
    ] {
        admin.execute_unprepared(sql).await.unwrap();
    }
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("outbox.toml");
    std::fs::write(&config, "[[outbox]]\n[outbox.stream]\nname = \"SHOP\"\n").unwrap();
    let of_later = server.url().replace("shop:shop@", "later:later@");
    let command = |url: &str, words: &[&str]| {
        let words = [words, &["--config", config.to_str().unwrap()]].concat();
        answer::run(
            &words,
            &[("DATABASE_URL", url), ("NATS_URL", "nats://127.0.0.1:1")],
        )
    };
    command(server.url(), &["migrate", "--yes"]).expect(0);
    for (url, is_wrong) in [(server.url(), false), (&of_later, true)] {
        let answer = command(url, &["doctor", "--viewer", "-o", "json"]);
        let found = checks(&answer).contains(&"clock".to_owned());
        assert_eq!(found, is_wrong, "{answer:?}");
        assert_eq!(
            answer.out.contains("s ahead of this machine"),
            is_wrong,
            "{answer:?}"
        );
    }
    admin.close().await.unwrap();
}

#[tokio::test]
async fn a_file_without_a_write_ahead_log_is_found_and_mended_by_the_next_command() {
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

/// `status` and a viewer's `doctor` see a setting of the database that their own sessions override.
#[tokio::test]
async fn a_database_that_only_reads_is_found() {
    let Some(program) = backend_url("OUTBOX_TEST_POSTGRES_BIN") else {
        return;
    };
    let mut server = Server::postgres(Path::new(&program), &[]).unwrap();
    server.start().await.unwrap();
    let admin = server.connect(1).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("outbox.toml");
    std::fs::write(&config, "[[outbox]]\n[outbox.stream]\nname = \"SHOP\"\n").unwrap();
    let run = |words: &[&str]| {
        let words = [words, &["--config", config.to_str().unwrap(), "-o", "json"]].concat();
        answer::run(
            &words,
            &[("DATABASE_URL", server.url()), ("NATS_URL", "nats://127.0.0.1:1")],
        )
    };
    run(&["migrate", "--yes"]).expect(0);
    let only_reads = |words: &[&str]| run(words).out.contains("default_transaction_read_only");
    let commands: [&[&str]; 3] = [&["status"], &["doctor"], &["doctor", "--viewer"]];
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
    for table in ["outbox_messages", "inbox_messages"] {
        let enable = format!("ALTER TABLE {}{table} ENABLE ROW LEVEL SECURITY", schema(place));
        place.db.execute_unprepared(&enable).await.unwrap();
    }
    let answer = logged_in(place, &relay.url, &place.nats, &["doctor", "-o", "json"]).expect(4);
    let rules = checks(&answer)
        .into_iter()
        .filter(|check| check == "row-security");
    assert_eq!(
        rules.count(),
        2,
        "one of the preflight, one of the inbox: {answer:?}"
    );
    // The owner sees all rows.
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
