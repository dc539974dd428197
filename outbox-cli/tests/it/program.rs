//! The program on real servers.
#![cfg(unix)]

use std::path::Path;

use outbox::nats::async_nats::jetstream;
use outbox::prelude::*;
use outbox::testing::{backend_url, eventually};
use outbox_cli::admin::rights::Role;
use outbox_test_servers::Server;
use serde_json::Value;

use crate::operate::answer::{ask, logged_in};
use crate::operate::plant::Planted;
use crate::operate::rights::Login;
use crate::place::{Kind, Place, Program, on_each_database};

async fn relay_publishes_and_releases_leases_on_signal(kind: Kind) {
    let Some(place) = Place::open(kind).await else {
        return;
    };
    let servers = [
        ("DATABASE_URL", place.url.as_str()),
        ("NATS_URL", place.nats.as_str()),
    ];
    let mut program = Program::start(&place.outbox("shop"), &servers);
    program.until_ready().await;
    place.record(3).await;
    eventually("the last event on the stream", async || {
        place.on_stream().await.len() == 3
    })
    .await;
    assert_eq!(
        place.on_stream().await,
        ["{\"n\": 1}", "{\"n\": 2}", "{\"n\": 3}"]
    );
    assert_eq!(program.get("/livez").await.0, 200);
    let mut metrics = String::new();
    eventually("the count of published events", async || {
        metrics = program.get("/metrics").await.1;
        metrics.contains("outbox_published_total{outbox=\"shop\"} 3")
    })
    .await;
    assert!(
        metrics.contains("content-type: text/plain; version=0.0.4"),
        "{metrics}"
    );
    assert!(metrics.contains("# HELP outbox_published_total "), "{metrics}");
    assert_eq!(program.get("/nothing").await.0, 404);
    assert_eq!(place.count("outbox_leases", "owner IS NOT NULL").await, 64);
    program.terminate();
    let status = program.end().await;
    assert_eq!(status.code(), Some(0), "{}", program.log());
    assert_eq!(place.count("outbox_leases", "owner IS NOT NULL").await, 0);
    assert_eq!(place.count("outbox_relays", "1 = 1").await, 0);
    place.close().await;
}

#[tokio::test]
async fn relay_with_another_stream_is_refused() {
    let Some(place) = Place::open(Kind::Postgres).await else {
        return;
    };
    let servers = [
        ("DATABASE_URL", place.url.as_str()),
        ("NATS_URL", place.nats.as_str()),
    ];
    let mut first = Program::start(&place.outbox("shop"), &servers);
    first.until_ready().await;
    let other = Place::open(Kind::Sqlite).await.unwrap();
    let named = |name: &str| format!("name = \"{name}\"\nprefix = \"{name}\"");
    let config = place
        .outbox("shop")
        .replace(&named(&place.name), &named(&other.name));
    let (code, log) = Program::start(&config, &servers).failure().await;
    assert_ne!(code, Some(0));
    let error = log.rsplit_once("error: ").unwrap().1;
    assert!(
        error.contains(&place.name) && error.contains(&other.name),
        "{error}"
    );
    place.record(1).await;
    eventually("the event on the stream of the first relay", async || {
        place.on_stream().await.len() == 1
    })
    .await;
    first.terminate();
    first.end().await;
    other.close().await;
    place.close().await;
}

#[tokio::test]
async fn stream_of_another_server_is_rejected() {
    let Some(place) = Place::open(Kind::Postgres).await else {
        return;
    };
    let Some(nats) = backend_url("OUTBOX_TEST_NATS_OLD_BIN") else {
        return;
    };
    let mut nats = Server::nats(Path::new(&nats)).unwrap();
    nats.start().await.unwrap();
    let config = place.outbox("shop");
    let servers = [
        ("DATABASE_URL", place.url.as_str()),
        ("NATS_URL", place.nats.as_str()),
    ];
    let mut first = Program::start(&config, &servers);
    first.until_ready().await;
    let elsewhere = [servers[0], ("NATS_URL", nats.url())];
    let (code, log) = Program::start(&config, &elsewhere).failure().await;
    assert_ne!(code, Some(0));
    let error = log.rsplit_once("error: ").unwrap().1;
    assert_eq!(error.matches("(created ").count(), 2, "{error}");

    let stream = EventStream::new(&place.name).with_prefix(&place.name).unwrap();
    let client = stream.connect(&place.nats).await.unwrap();
    let context = jetstream::new(client.clone());
    context.delete_stream(&place.name).await.unwrap();
    place.record(1).await;
    eventually("a failed publish", async || {
        ask(&place, "status").says("no stream captures subject")
    })
    .await;
    stream.provision(&client).await.unwrap();
    eventually("the event on the new stream", async || {
        place.on_stream().await.len() == 1
    })
    .await;
    let mut second = Program::start(&config, &servers);
    second.until_ready().await;
    for mut program in [first, second] {
        program.terminate();
        assert_eq!(program.end().await.code(), Some(0), "{}", program.log());
    }
    place.close().await;
}

async fn lost_login_is_reported(kind: Kind, refusal: &str) {
    let Some(planted) = Planted::open(kind).await else {
        return;
    };
    let place = &planted.place;
    let login = Login::new(kind, place, &[Role::Relay]).await;
    let config = place.outbox("shop").replace("true", "false");
    let config = format!("{config}[outbox.relay]\nlease_ttl = \"2s\"\n");
    let servers = [
        ("DATABASE_URL", login.url.as_str()),
        ("NATS_URL", place.nats.as_str()),
    ];
    planted.provision().await;
    let mut program = Program::start(&config, &servers);
    program.until_ready().await;
    eventually("the registration of the relay", async || {
        place.count("outbox_relays", "1 = 1").await == 1
    })
    .await;
    login.lock_out(kind, place).await;
    planted.placed("1").await;
    eventually("the refusal in log and health", async || {
        let (status, health) = program.get("/readyz").await;
        status == 503 && health.contains(refusal) && program.log().contains(refusal)
    })
    .await;
    eventually("the end of the announcement", async || {
        ask(place, "status").says("expired")
    })
    .await;
    for words in ["status", "doctor", "why order/1"] {
        let answer = ask(place, words);
        let is_named = answer.says("expired") && answer.says("(network, login, or");
        assert!(is_named, "{words:?}: {answer:?}");
    }
    program.terminate();
    program.end().await;
    login.close(kind, place).await;
    planted.close().await;
}

#[tokio::test]
async fn lost_login_of_postgres_is_named() {
    lost_login_is_reported(Kind::Postgres, "not permitted to log in").await;
}

#[tokio::test]
async fn lost_login_of_mariadb_is_named() {
    lost_login_is_reported(Kind::MariaDb, "Access denied").await;
}

#[tokio::test]
async fn broker_outage_is_the_first_reason() {
    let Some(place) = Place::open(Kind::Postgres).await else {
        return;
    };
    let Some(nats) = backend_url("OUTBOX_TEST_NATS_OLD_BIN") else {
        return;
    };
    let mut nats = Server::nats(Path::new(&nats)).unwrap();
    nats.start().await.unwrap();
    let servers = [("DATABASE_URL", place.url.as_str()), ("NATS_URL", nats.url())];
    let mut program = Program::start(&place.outbox("shop"), &servers);
    program.until_ready().await;
    let url = nats.url().to_owned();
    nats.kill().unwrap();
    place.record(1).await;
    let ask = |words: &str| logged_in(&place, &place.url, &url, words);
    eventually("the error of the relay as the first reason", async || {
        let status = ask("status -o json");
        let first = status.json()[0]["reasons"][0].to_string();
        first.contains("relay") && first.contains("onnect")
    })
    .await;
    eventually("the error of the relay in doctor", async || {
        let doctor = ask("doctor -o json").json()[0]["findings"].clone();
        let of_relays = |finding: &Value| finding["check"] == "relays";
        let mut findings = doctor.as_array().unwrap().iter();
        findings.any(|finding| of_relays(finding) && finding["seen"].to_string().contains("onnect"))
    })
    .await;
    program.terminate();
    program.end().await;
    place.close().await;
}

#[tokio::test]
async fn rejected_login_error_has_next_step_without_password() {
    for variable in ["OUTBOX_TEST_POSTGRES_URL", "OUTBOX_TEST_MARIADB_URL"] {
        let Some(url) = backend_url(variable) else {
            continue;
        };
        let (scheme, rest) = url.split_once("://").unwrap();
        let place = rest.rsplit_once('@').map_or(rest, |(_, place)| place);
        let url = format!("{scheme}://stranger:hunter2@{place}");
        let servers = [("DATABASE_URL", url.as_str()), ("NATS_URL", "nats://127.0.0.1:1")];
        let mut program = Program::start("", &servers);
        let (code, log) = program.failure().await;
        assert_eq!(code, Some(1), "{log}");
        assert!(log.contains("refuses the login; correct user, password"), "{log}");
        assert!(
            log.contains("user `stranger`") && !log.contains("hunter2"),
            "{log}"
        );
    }
}

#[tokio::test]
async fn wrong_configuration_exits_2() {
    let servers = [
        ("DATABASE_URL", "sqlite::memory:"),
        ("NATS_URL", "nats://127.0.0.1:1"),
    ];
    for (config, expected) in [
        ("[[outbox]]\nnmae = \"a\"", "unknown field `nmae`"),
        (
            "[[outbox]]\n[outbox.relay]\nlease_ttl = \"1ms\"",
            "lease_ttl is 1ms; use 300ms to 600s",
        ),
        ("[[outbox]]\nschema = \"shop\"", "SQLite has no schemas"),
    ] {
        let (code, log) = Program::start(config, &servers).failure().await;
        assert_eq!(code, Some(2), "{log}");
        assert!(log.contains(expected), "{log}");
    }
    for (servers, expected) in [
        (
            [("DATABASE_URL", "oracle://u:hunter2@h"), servers[1]],
            "the address of the database is malformed",
        ),
        (
            [servers[0], ("NATS_URL", "nats://u:hunter2@h:port")],
            "the address of nats is malformed",
        ),
        (
            [servers[0], ("NATS_URL", "")],
            "set NATS_URL or OUTBOX_OUTBOX_NATS_URL",
        ),
    ] {
        let (code, log) = Program::start("", &servers).failure().await;
        assert_eq!(code, Some(2), "{log}");
        assert!(log.contains(expected) && !log.contains("hunter2"), "{log}");
    }
}

#[tokio::test]
async fn relay_waiting_for_server_is_alive_not_ready() {
    let servers = [
        ("DATABASE_URL", "sqlite::memory:"),
        ("NATS_URL", "nats://127.0.0.1:1"),
    ];
    let mut program = Program::start("", &servers);
    eventually("the wait for nats", async || {
        program
            .get("/readyz")
            .await
            .1
            .contains("outbox: starting: it waits for nats")
    })
    .await;
    assert_eq!(program.get("/readyz").await.0, 503);
    assert_eq!(program.get("/livez").await.0, 200);
    program.terminate();
    assert_eq!(program.end().await.code(), Some(0), "{}", program.log());
}

#[tokio::test]
async fn json_log_line_is_an_object_with_outbox_name() {
    let servers = [
        ("DATABASE_URL", "sqlite::memory:"),
        ("NATS_URL", "nats://127.0.0.1:1"),
    ];
    let mut program = Program::start("[log]\nformat = \"json\"\n[[outbox]]\nname = \"shop\"", &servers);
    eventually("the wait for nats", async || {
        program.log().contains("waiting for nats")
    })
    .await;
    program.terminate();
    assert_eq!(program.end().await.code(), Some(0), "{}", program.log());
    let log = program.log();
    let lines: Vec<serde_json::Value> = log
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert!(lines.iter().any(|line| line["threadName"] == "shop"), "{log}");
}

#[tokio::test]
async fn failed_outbox_start_stops_other_outboxes() {
    let Some(place) = Place::open(Kind::Sqlite).await else {
        return;
    };
    let second = "[[outbox]]\nname = \"second\"\nprefix = \"second_\"\n[outbox.stream]\nname = \"NOT_THERE\"\nprefix = \"not_there\"\nprovision = false\n";
    let config = format!("{}{second}", place.outbox("first"));
    let servers = [
        ("DATABASE_URL", place.url.as_str()),
        ("NATS_URL", place.nats.as_str()),
    ];
    let (code, log) = Program::start(&config, &servers).failure().await;
    assert_eq!(code, Some(1), "{log}");
    let error =
        "outbox `second`: stream `NOT_THERE` does not exist; create it with: nats stream add NOT_THERE";
    assert!(log.contains(error), "{log}");
    place.close().await;
}

#[tokio::test]
async fn missing_tables_error_has_the_migrate_setting() {
    let Some(place) = Place::open(Kind::Sqlite).await else {
        return;
    };
    let config = place.outbox("shop").replace("true", "false");
    let servers = [
        ("DATABASE_URL", place.url.as_str()),
        ("NATS_URL", place.nats.as_str()),
    ];
    let (code, log) = Program::start(&config, &servers).failure().await;
    assert_eq!(code, Some(1), "{log}");
    assert!(log.contains("table outbox_messages is missing"), "{log}");
    assert!(log.contains("`migrate = true` in the file creates them"), "{log}");
    place.close().await;
}

#[tokio::test]
async fn two_outboxes_have_metrics_of_their_own() {
    let Some(place) = Place::open(Kind::Sqlite).await else {
        return;
    };
    let second = place
        .outbox("second")
        .replace("migrate", "prefix = \"second_\"\nmigrate");
    let config = format!("{}{second}", place.outbox("first"));
    let servers = [
        ("DATABASE_URL", place.url.as_str()),
        ("NATS_URL", place.nats.as_str()),
    ];
    let mut program = Program::start(&config, &servers);
    program.until_ready().await;
    place.record(2).await;
    eventually("the metrics of both", async || {
        let metrics = program.get("/metrics").await.1;
        metrics.contains("outbox_published_total{outbox=\"first\"} 2")
            && metrics.contains("outbox_leases_owned{outbox=\"second\"} 64")
            && !metrics.contains("outbox_published_total{outbox=\"second\"} 2")
    })
    .await;
    program.terminate();
    assert_eq!(program.end().await.code(), Some(0), "{}", program.log());
    place.close().await;
}

#[test]
fn print_config_prints_the_default_file() {
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_outbox"))
        .args(["print", "config"])
        .output()
        .unwrap();
    assert_eq!(
        String::from_utf8(output.stdout).unwrap(),
        outbox_cli::config::DEFAULT_FILE
    );
}

on_each_database!(relay_publishes_and_releases_leases_on_signal);
