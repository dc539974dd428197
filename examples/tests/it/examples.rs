//! Runs the numbered examples and compares their output with `expected/NAME.txt`.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use outbox::testing::backend_url;
use outbox_nats::EventStream;
use rustix::process::{Pid, Signal, kill_process};

pub(crate) fn example(name: &str) -> Command {
    let test = std::env::current_exe().unwrap();
    let target = test.parent().and_then(Path::parent).unwrap();
    Command::new(
        target
            .join("examples")
            .join(format!("{name}{}", std::env::consts::EXE_SUFFIX)),
    )
}

fn expected(name: &str) -> String {
    let file = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("expected")
        .join(format!("{name}.txt"));
    std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

fn check(name: &str, servers: &[(&str, &str)]) {
    let output = example(name)
        .envs(servers.iter().copied())
        .output()
        .unwrap_or_else(|error| panic!("{name}: {error}; is it built? `cargo test` builds it"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name} failed: {errors}");
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        expected(name),
        "{errors}"
    );
}

/// The NATS servers, one after the other, because the streams of the examples have fixed names.
fn nats_servers() -> impl Iterator<Item = String> {
    let variables = ["OUTBOX_TEST_NATS_URL", "OUTBOX_TEST_NATS_OLD_URL"];
    variables.into_iter().filter_map(backend_url)
}

#[test]
fn examples_without_a_server() {
    for name in [
        "01_quickstart",
        "05_testing_your_service",
        "06_strategies",
        "08_http_idempotency",
        "11_outside_the_database",
        "13_dead_letters",
        "14_versions",
        "17_own_transaction",
        "20_calling_a_carrier",
    ] {
        check(name, &[]);
    }
}

#[test]
fn examples_on_nats() {
    for nats in nats_servers() {
        for name in ["02_order_service", "03_follow_up_events"] {
            check(name, &[("NATS_URL", &nats)]);
        }
    }
}

/// Ends the service once with SIGTERM and once with SIGINT.
#[test]
fn example_04_axum_service() {
    let Some(url) = backend_url("OUTBOX_TEST_NATS_URL") else {
        return;
    };
    for signal in [Signal::TERM, Signal::INT] {
        serve_until(signal, &url);
    }
    // One test covers both servers, because the example's stream has a fixed name.
    end_at_once(&url);
}

fn end_at_once(nats_url: &str) {
    let mut service = example("04_axum_service")
        .env("NATS_URL", nats_url)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut log = BufReader::new(service.stderr.take().unwrap()).lines();
    let mut printed = BufReader::new(service.stdout.take().unwrap()).lines();
    let listens = printed.next().expect("the service listens").unwrap();
    let address = listens.strip_prefix("listening on http://").expect("an address");
    let mut unfinished = TcpStream::connect(address).unwrap();
    write!(unfinished, "POST /orders/chai/2 HTTP/1.1\r\n").unwrap();

    kill_process(Pid::from_child(&service), Signal::INT).unwrap();
    let _ = log
        .find(|line| line.as_ref().unwrap().contains("shutting down"))
        .expect("the first signal is noticed");
    kill_process(Pid::from_child(&service), Signal::INT).unwrap();
    // The test reads the whole log: a full pipe would block the service.
    for line in log {
        line.unwrap();
    }
    assert!(service.wait().unwrap().success());
}

fn serve_until(signal: Signal, nats_url: &str) {
    let mut service = example("04_axum_service")
        .env("NATS_URL", nats_url)
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(service.stdout.take().unwrap())
        .lines()
        .map(Result::unwrap);
    let mut printed = lines.next().expect("the service listens");
    let address = printed
        .strip_prefix("listening on http://")
        .expect("an address")
        .to_owned();
    printed = "listening on http://ADDRESS\n".to_owned();

    let order = request(&address, "POST /orders/chai/2", "x-request-id: r-1\r\n");
    assert!(order.ends_with("order 1\n"), "{order}");
    printed.push_str(&format!("{}\n", lines.next().expect("the order takes effect")));
    // The handler prints inside its transaction. The stock shows the effect only after the commit.
    while !request(&address, "GET /stock", "").ends_with("chai: 37\n") {
        std::thread::yield_now();
    }

    for probe in ["GET /live", "GET /ready"] {
        let answer = request(&address, probe, "");
        assert!(answer.starts_with("HTTP/1.1 200"), "{probe}: {answer}");
    }

    kill_process(Pid::from_child(&service), signal).unwrap();
    for line in lines {
        printed.push_str(&format!("{line}\n"));
    }
    assert!(service.wait().unwrap().success());
    assert_eq!(printed, expected("04_axum_service"));
}

#[test]
fn example_23_log_relay() {
    let Some(database) = backend_url("OUTBOX_TEST_POSTGRES_LOGICAL_URL") else {
        return;
    };
    for nats in nats_servers() {
        check(
            "23_log_relay",
            &[("DATABASE_URL", &database), ("NATS_URL", &nats)],
        );
    }
}

#[tokio::test]
async fn example_16_postgres_jetstream() {
    let Some(database) = backend_url("OUTBOX_TEST_POSTGRES_URL") else {
        return;
    };
    for nats in nats_servers() {
        // A killed run may have left an event that the next run would handle.
        let client = EventStream::new("EXAMPLE_16").connect(&*nats).await.unwrap();
        let streams = outbox_nats::async_nats::jetstream::new(client);
        let _ = streams.delete_stream("EXAMPLE_16").await;

        let mut service = example("16_postgres_jetstream")
            .envs([("DATABASE_URL", &database), ("NATS_URL", &nats)])
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        let mut printed = String::new();
        for line in BufReader::new(service.stdout.take().unwrap()).lines() {
            let line = line.unwrap();
            if line.starts_with("reserved") {
                kill_process(Pid::from_child(&service), Signal::INT).unwrap();
            }
            printed.push_str(&format!("{line}\n"));
        }
        assert!(service.wait().unwrap().success());
        assert_eq!(printed, expected("16_postgres_jetstream"));
    }
}

fn request(address: &str, request_line: &str, headers: &str) -> String {
    let mut connection = TcpStream::connect(address).unwrap();
    write!(
        connection,
        "{request_line} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\ncontent-length: 0\r\n{headers}\r\n"
    )
    .unwrap();
    let mut answer = String::new();
    connection.read_to_string(&mut answer).unwrap();
    answer
}
