//! Small versions of `cargo xtask chaos`, which check that the books balance and that the faults
//! occurred.

use std::process::Command;

use outbox_testing::backend_url;
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
    assert!(
        count(kills, "deliveries") > 1_000,
        "no message was redelivered: {kills}"
    );
    // Five events become dead letters by an error, and one by aborting its process.
    assert!(count(failures, "dead_letters") >= 6, "{failures}");
    assert!(count(failures, "ends") >= 3, "{failures}");
}

#[track_caller]
fn run_relays_under_faults(arguments: &[&str]) -> Value {
    let output = Command::new(env!("CARGO_BIN_EXE_chaos"))
        .args(["relay", "--small", "--seed", "7"])
        .args(arguments)
        .output()
        .unwrap();
    let (stdout, stderr) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "{}\n{stdout}\n{stderr}", output.status);
    serde_json::from_str(stdout.trim()).unwrap()
}

/// Runs relays under faults, and asserts the number of kills and pauses.
#[track_caller]
fn check_relays(database_url: &str, further: &[&str], torments: u64) -> Option<Value> {
    let nats_url = backend_url("OUTBOX_TEST_NATS_URL")?;
    let servers = ["--database-url", database_url, "--nats-url", &nats_url];
    let report = run_relays_under_faults(&[&servers, further].concat());
    let count = |what: &str| report[what].as_u64().unwrap();
    assert_eq!(count("written"), 1_600, "{report}");
    assert_eq!(count("kills") + count("pauses"), torments, "{report}");
    assert!(count("kills") > 0 && count("pauses") > 0, "{report}");
    assert_eq!(count("ends"), 0, "a relay ended unexpectedly: {report}");
    Some(report)
}

#[track_caller]
fn check_log_relays(further: &[&str]) {
    if let Some(url) = backend_url("OUTBOX_TEST_POSTGRES_LOGICAL_URL")
        && let Some(report) = check_relays(&url, &[&["--relay", "log"], further].concat(), 8)
    {
        assert!(report["slots_dropped"].as_u64().unwrap() > 0, "{report}");
    }
}

#[test]
fn relays_under_faults_balance_on_postgres() {
    if let Some(url) = backend_url("OUTBOX_TEST_POSTGRES_URL") {
        check_relays(&url, &[], 12);
    }
}

#[test]
fn relays_under_faults_balance_on_mariadb() {
    if let Some(url) = backend_url("OUTBOX_TEST_MARIADB_URL") {
        check_relays(&url, &[], 12);
    }
}

#[test]
fn log_relays_under_faults_balance() {
    check_log_relays(&[]);
}

#[test]
fn hand_overs_under_faults_balance() {
    check_log_relays(&["--hand-overs", "3"]);
}

#[track_caller]
fn check_killed_servers(further: &[&str]) {
    let (Some(postgres), Some(nats)) = (
        backend_url("OUTBOX_TEST_POSTGRES_BIN"),
        backend_url("OUTBOX_TEST_NATS_CLUSTER_BIN"),
    ) else {
        return;
    };
    let servers = [
        "--relay",
        "log",
        "--faults",
        "15",
        "--postgres-program",
        &postgres,
        "--nats-program",
        &nats,
    ];
    let report = run_relays_under_faults(&[&servers, further].concat());
    let count = |what: &str| report[what].as_u64().unwrap();
    assert_eq!((count("postgres_kills"), count("nats_kills")), (3, 3), "{report}");
    assert_eq!(count("kills") + count("pauses"), 6, "{report}");
    assert_eq!(count("written") + count("undecided"), 1_600, "{report}");
    assert!(
        count("written") > 1_000,
        "hardly anything was committed: {report}"
    );
}

#[test]
fn a_killed_postgres_under_log_relays_loses_nothing() {
    check_killed_servers(&[]);
}

#[test]
fn postgres_killed_during_hand_overs_loses_no_message() {
    check_killed_servers(&["--hand-overs", "3"]);
}

#[test]
fn consumers_under_faults_balance_on_postgres() {
    if let Some(url) = backend_url("OUTBOX_TEST_POSTGRES_URL") {
        check(&url);
    }
}

#[test]
fn consumers_under_faults_balance_on_mariadb() {
    if let Some(url) = backend_url("OUTBOX_TEST_MARIADB_URL") {
        check(&url);
    }
}

#[test]
fn consumers_under_faults_balance_on_sqlite() {
    check("sqlite");
}
