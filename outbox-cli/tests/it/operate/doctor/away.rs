//! An unavailable server causes one finding and one wait.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use outbox::testing::backend_url;
use outbox_test_servers::Server;

use super::checks;
use crate::operate::answer::{Answer, logged_in};
use crate::place::{Kind, Place};

async fn doctor(place: Place, database: &'static str, nats: &'static str) -> Answer {
    let asked = tokio::task::spawn_blocking(move || {
        logged_in(&place, database, nats, "doctor -o json --timeout 10m")
    });
    let answer = tokio::time::timeout(Duration::from_secs(120), asked).await;
    answer.expect("no waiting").unwrap()
}

#[tokio::test]
async fn each_refusing_server_is_one_finding() {
    for database in [
        "postgres://relay@127.0.0.1:1/shop",
        "mysql://relay@127.0.0.1:1/shop",
    ] {
        let Some(place) = Place::open(Kind::Sqlite).await else {
            return;
        };
        let answer = doctor(place, database, "nats://127.0.0.1:1").await.expect(4);
        assert_eq!(checks(&answer), ["database", "nats"], "{answer:?}");
        assert_eq!(answer.out.matches("onnection refused").count(), 2, "{answer:?}");
    }
}

#[tokio::test]
async fn commands_time_out_without_server_answers() {
    let Some(place) = Place::open(Kind::Sqlite).await else {
        return;
    };
    let hole = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = hole.local_addr().unwrap().port();
    let nats = format!("nats://127.0.0.1:{port}");
    for scheme in ["postgres", "mysql"] {
        let database = format!("{scheme}://relay@127.0.0.1:{port}/shop");
        for command in [
            "status",
            "doctor",
            "why order/1",
            "list",
            "relay list",
            "consumers list",
            "dead-letters list",
            "audit",
            "prove --since 1h --until 0s",
            "reconcile --since 1h --until 0s",
            "retry --all",
            "migrate",
        ] {
            let words: Vec<&str> = command.split(' ').chain(["--timeout", "1s"]).collect();
            let begins = Instant::now();
            let answer = logged_in(&place, &database, &nats, &words);
            assert!(begins.elapsed() < Duration::from_secs(30), "{scheme} {command}");
            assert!(
                !matches!(answer.code, Some(0 | 5)),
                "{scheme} {command}: {answer:?}"
            );
            let is_told = answer.says("answer") || answer.says("timed out");
            assert!(is_told, "{scheme} {command}: {answer:?}");
        }
    }
    place.close().await;
}

/// PgBouncer rejects session parameters. The doctor names the pooler, other commands the
/// parameter.
#[tokio::test]
async fn a_pooler_is_named_by_commands() {
    let Some(place) = Place::open(Kind::Postgres).await else {
        return;
    };
    let Some(program) = backend_url("OUTBOX_TEST_PGBOUNCER_BIN") else {
        return;
    };
    let port = place
        .url
        .split('/')
        .nth(2)
        .and_then(|server| server.rsplit(':').next());
    let settings = "pool_mode = transaction\nignore_startup_parameters = extra_float_digits";
    let mut pooler = Server::pgbouncer(program.as_ref(), port.unwrap().parse().unwrap(), settings).unwrap();
    pooler.start().await.unwrap();
    for (words, said) in [
        (&["doctor"][..], "behind a pooler"),
        (&["status"], "unsupported startup parameter"),
        // Sessions of `migrate` set no parameters.
        (&["migrate"], "missing"),
    ] {
        let answer = logged_in(&place, pooler.url(), &place.nats, words);
        assert!(
            answer.code != Some(0) && answer.says(said),
            "{words:?}: {answer:?}"
        );
    }
    place.close().await;
}
