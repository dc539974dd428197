//! Small versions of `cargo xtask chaos`: relays are killed and paused; consumers receive copies, are killed and paused, and fail by themselves.
//!
//! The program balances the books and reports the result as its exit status; its unit tests check that it notices
//! mistakes. These tests require that the books balance and that the faults happened.

use std::process::Command;

use outbox_core::testing::backend_url;
use serde_json::Value;

#[track_caller]
fn check(database_url: &str) {
    let Some(nats_url) = backend_url("OUTBOX_TEST_NATS_URL") else {
        return;
    };
    let output = Command::new(env!("CARGO_BIN_EXE_chaos"))
        .args(["inbox", "--small", "--database-url", database_url])
        .args(["--nats-url", &nats_url])
        .output()
        .unwrap();
    let (stdout, stderr) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "{}\n{stdout}\n{stderr}", output.status);
    let reports: Vec<Value> = stdout
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let [copies, kills, failures] = reports.as_slice() else {
        panic!("{} plans were carried out\n{stdout}", reports.len());
    };
    let count = |report: &Value, what: &str| report[what].as_u64().unwrap();
    assert_eq!((count(copies, "messages"), count(copies, "handled")), (2_000, 50));
    assert_eq!((count(kills, "kills"), count(kills, "handled")), (6, 1_000));
    assert!(count(kills, "deliveries") > 1_000, "nothing came again: {kills}");
    // At least the events that are made to fail: five are dead-lettered, and one aborts its process each time.
    assert!(count(failures, "dead_letters") >= 6, "{failures}");
    assert!(count(failures, "ends") >= 3, "{failures}");
}

/// Three relays share a real outbox. Twelve times one of them is killed or stopped, often for longer than its leases last, while messages are written.
#[track_caller]
fn check_relays(database_url: &str) {
    let Some(nats_url) = backend_url("OUTBOX_TEST_NATS_URL") else {
        return;
    };
    let output = Command::new(env!("CARGO_BIN_EXE_chaos"))
        .args(["relay", "--small", "--seed", "7", "--database-url", database_url])
        .args(["--nats-url", &nats_url])
        .output()
        .unwrap();
    let (stdout, stderr) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "{}\n{stdout}\n{stderr}", output.status);
    let report: Value = serde_json::from_str(stdout.trim()).unwrap();
    let count = |what: &str| report[what].as_u64().unwrap();
    assert_eq!((count("written"), count("committed")), (1_600, 1_600), "{report}");
    assert_eq!(count("kills") + count("pauses"), 12, "{report}");
    assert!(count("kills") > 0 && count("pauses") > 0, "{report}");
    assert_eq!(count("ends"), 0, "a relay ended by itself: {report}");
}

#[test]
fn tormented_relays_balance_on_postgres() {
    if let Some(url) = backend_url("OUTBOX_TEST_POSTGRES_URL") {
        check_relays(&url);
    }
}

#[test]
fn tormented_relays_balance_on_mariadb() {
    if let Some(url) = backend_url("OUTBOX_TEST_MARIADB_URL") {
        check_relays(&url);
    }
}

#[test]
fn tormented_consumers_balance_on_postgres() {
    if let Some(url) = backend_url("OUTBOX_TEST_POSTGRES_URL") {
        check(&url);
    }
}

#[test]
fn tormented_consumers_balance_on_mariadb() {
    if let Some(url) = backend_url("OUTBOX_TEST_MARIADB_URL") {
        check(&url);
    }
}

#[test]
fn tormented_consumers_balance_on_sqlite() {
    check("sqlite");
}
