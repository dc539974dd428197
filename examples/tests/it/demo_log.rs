//! The demo with log relays, on PostgreSQL with `wal_level = logical`.

use outbox::testing::backend_url;

#[cfg(unix)]
use crate::demo::kill;
use crate::demo::{Demo, assert_nothing_saved, check, text};

#[test]
fn balances_from_the_log_on_postgres_and_nats() {
    let Some(url) = backend_url("OUTBOX_TEST_POSTGRES_LOGICAL_URL") else {
        return;
    };
    let Some(nats_url) = backend_url("OUTBOX_TEST_NATS_URL") else {
        return;
    };
    let args = ["--generate", "30", "--relay", "log", "--nats-url", &nats_url];
    check(Demo::new(Some(&url)).args(args).ledger());
}

#[test]
fn database_without_readable_log_is_rejected() {
    let mut demo = Demo::new(None).args(["--relay", "log", "--broker", "memory"]);
    let output = demo.run();
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("--relay log needs"), "{stderr}");
    assert_nothing_saved(&demo.path("work"));
}

/// Kills both relays while they work, and again after each restart. Published messages without a
/// stored position are published again, under the same ids.
#[cfg(unix)]
#[test]
fn balances_from_the_log_although_relays_are_killed() {
    use std::process::Stdio;

    let Some(url) = backend_url("OUTBOX_TEST_POSTGRES_LOGICAL_URL") else {
        return;
    };
    let Some(nats_url) = backend_url("OUTBOX_TEST_NATS_URL") else {
        return;
    };
    let args = ["--generate", "800", "--relay", "log", "--nats-url", &nats_url];
    let mut demo = Demo::new(Some(&url)).args(args);
    let run = demo
        .command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    demo.wait_for_notices();
    let victims = ["relay-service", "relay-shipping"];
    for times in 1..=2 {
        for victim in victims {
            let pids = demo.wait_for_starts(victim, times);
            kill(pids[times - 1]);
        }
    }
    let output = run.wait_with_output().unwrap();
    let ledger = demo.ledger_of(&output);
    let shipped = &ledger["effects"]["shipping"];
    assert_eq!(ledger["effects"]["inventory"], 800);
    assert_eq!(ledger["messages_on_stream"], 800 + 2 * shipped.as_u64().unwrap());
    let stderr = text(&output.stderr);
    for victim in victims {
        let ended = stderr.matches(&format!("{victim} ended with")).count();
        assert!(ended >= 2, "{victim} was not started again: {stderr}");
    }
}
