//! No secret is printed or logged, at any level.
#![cfg(unix)]

use std::process::Command;

use outbox::testing::{backend_url, eventually};

use crate::operate::serve::Served;
use crate::place::{Kind, Place, Program};

const OF_DATABASE: &str = "hunter2";
const OF_NATS: &str = "swordfish";

fn with_login(address: &str, user: &str, password: &str) -> String {
    let (scheme, rest) = address.split_once("://").unwrap();
    let server = rest.rsplit_once('@').map_or(rest, |(_, server)| server);
    format!("{scheme}://{user}:{password}@{server}")
}

fn servers(place: &Place) -> [(&'static str, String); 3] {
    [
        ("DATABASE_URL", with_login(&place.url, "postgres", OF_DATABASE)),
        ("NATS_URL", with_login(&place.nats, "relay", OF_NATS)),
        ("RUST_LOG", "trace".to_owned()),
    ]
}

fn assert_secret_free(text: &str) {
    for secret in [OF_DATABASE, OF_NATS] {
        let line = text.lines().find(|line| line.contains(secret));
        assert_eq!(line, None);
    }
}

#[tokio::test]
async fn a_relay_logs_no_secret_at_level_trace() {
    let Some(place) = Place::open(Kind::Postgres).await else {
        return;
    };
    let variables = servers(&place);
    let variables = variables.each_ref().map(|(name, value)| (*name, value.as_str()));
    for (count, format) in [(1, "text"), (2, "json")] {
        let config = format!("[log]\nformat = \"{format}\"\n{}", place.outbox("shop"));
        let mut program = Program::start(&config, &variables);
        if format == "text" {
            program.until_ready().await;
        }
        place.record(1).await;
        eventually("the event on the stream", async || {
            place.on_stream().await.len() == count
        })
        .await;
        program.terminate();
        program.end().await;
        let log = program.log();
        for part in ["TRACE", "async_nats", "sqlx"] {
            assert!(log.contains(part), "nothing of {part}");
        }
        assert_secret_free(&log);
    }
    place.close().await;
}

/// async-nats logs the addresses of unreachable servers.
#[tokio::test]
async fn waiting_or_rejected_relay_logs_no_secret() {
    let token = format!("nats://{OF_NATS}@127.0.0.1:1,nats://relay:{OF_NATS}@127.0.0.1:2");
    let variables = [
        ("DATABASE_URL", "sqlite::memory:"),
        ("NATS_URL", &token),
        ("RUST_LOG", "trace"),
    ];
    let mut program = Program::start("", &variables);
    eventually("the wait for nats", async || {
        program.log().contains("waiting for nats")
    })
    .await;
    program.terminate();
    program.end().await;
    assert_secret_free(&program.log());
    for variable in ["OUTBOX_TEST_POSTGRES_URL", "OUTBOX_TEST_MARIADB_URL"] {
        let Some(url) = backend_url(variable) else {
            continue;
        };
        let url = with_login(&url, "stranger", OF_DATABASE);
        let variables = [
            ("DATABASE_URL", url.as_str()),
            ("NATS_URL", &token),
            ("RUST_LOG", "trace"),
        ];
        let (_, log) = Program::start("", &variables).failure().await;
        assert!(log.contains("user `stranger`"), "{log}");
        assert_secret_free(&log);
    }
}

#[tokio::test]
async fn the_dashboard_logs_no_secret_at_level_trace() {
    let Some(place) = Place::open(Kind::Postgres).await else {
        return;
    };
    let file = place.folder.path().join("outbox.toml");
    std::fs::write(&file, place.outbox("shop")).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_outbox"));
    command
        .args([
            "serve",
            "--address",
            "127.0.0.1:0",
            "--timeout",
            "60s",
            "--config",
        ])
        .arg(&file)
        .env_clear()
        .envs(servers(&place));
    let served = Served::launch(command);
    for path in ["/messages", "/"] {
        served.get(path, &[]).await;
    }
    let log = served.ended();
    assert!(log.contains("TRACE"));
    assert_secret_free(&log);
    place.close().await;
}

#[tokio::test]
async fn commands_print_no_secret() {
    let Some(place) = Place::open(Kind::Postgres).await else {
        return;
    };
    let file = place.folder.path().join("outbox.toml");
    std::fs::write(&file, place.outbox("shop")).unwrap();
    let away = with_login("postgres://127.0.0.1:1/shop", "relay", OF_DATABASE);
    for words in [
        "migrate --yes",
        "status",
        "doctor",
        "list",
        "relay list",
        "consumers list",
    ] {
        for database in [&servers(&place)[0].1, &away] {
            let output = Command::new(env!("CARGO_BIN_EXE_outbox"))
                .args(words.split(' '))
                .arg("--config")
                .arg(&file)
                .env_clear()
                .envs(servers(&place))
                .env("DATABASE_URL", database)
                .output()
                .unwrap();
            assert_secret_free(&String::from_utf8_lossy(&output.stdout));
            assert_secret_free(&String::from_utf8_lossy(&output.stderr));
        }
    }
    place.close().await;
}
