//! Runs the demo's program as a user does, and checks the printed ledger.
//!
//! The broker in memory is always tested, databases and NATS servers only if the environment has
//! their addresses.

#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests are tests, but the exemption in clippy.toml excludes helpers"
)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use outbox::testing::backend_url;
use serde_json::{Value, json};
use tempfile::TempDir;

const ORDERS: u64 = 30;

const SHIPPED: u64 = 28;

pub(crate) struct Demo {
    folder: TempDir,
    pub(crate) command: Command,
}

impl Demo {
    pub(crate) fn new(database_url: Option<&str>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_northwind"));
        command
            .args(["run", "--json", "--work-dir"])
            .arg(folder.path().join("work"));
        if let Some(url) = database_url {
            command.args(["--database-url", url]);
        }
        Self { folder, command }
    }

    pub(crate) fn args<const N: usize>(mut self, args: [&str; N]) -> Self {
        self.command.args(args);
        self
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn run(&mut self) -> Output {
        self.command.output().unwrap()
    }

    #[track_caller]
    pub(crate) fn ledger(&mut self) -> Value {
        let output = self.run();
        self.ledger_of(&output)
    }

    #[track_caller]
    pub(crate) fn ledger_of(&self, output: &Output) -> Value {
        let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
        assert!(
            output.status.success(),
            "{}\n{stdout}\n{stderr}\n{}",
            output.status,
            self.logs()
        );
        serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{error}: {stdout}"))
    }

    /// Waits until the last consumer in the chain has its first message, so that all parts work.
    #[cfg(unix)]
    pub(crate) fn wait_for_notices(&self) {
        let notices = self.path("work/notices.txt");
        self.wait_for("the first notice", || {
            fs::metadata(&notices).is_ok_and(|notices| notices.len() > 0)
        });
    }

    #[cfg(unix)]
    pub(crate) fn wait_for_starts(&self, program: &str, times: usize) -> Vec<i32> {
        let log = self.path("work/logs/run.log");
        let started = || pids(&fs::read_to_string(&log).unwrap_or_default(), program);
        self.wait_for(program, || started().len() >= times);
        started()
    }

    #[cfg(unix)]
    fn wait_for(&self, what: &str, has_happened: impl Fn() -> bool) {
        use std::time::{Duration, Instant};
        let deadline = Instant::now() + Duration::from_secs(60);
        while !has_happened() {
            assert!(Instant::now() < deadline, "{what} does not come\n{}", self.logs());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn logs(&self) -> String {
        let logs = fs::read_dir(self.path("work/logs"))
            .into_iter()
            .flatten()
            .flatten();
        logs.map(|log| {
            format!(
                "--- {}\n{}",
                log.path().display(),
                fs::read_to_string(log.path()).unwrap_or_default()
            )
        })
        .collect()
    }
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[track_caller]
pub(crate) fn check(mut ledger: Value) {
    let copies = ledger
        .as_object_mut()
        .unwrap()
        .remove("stream_duplicates")
        .unwrap();
    let deliveries = ledger.as_object_mut().unwrap().remove("deliveries").unwrap();
    let elapsed = ledger.as_object_mut().unwrap().remove("elapsed_ms").unwrap();
    assert!(copies.is_u64() && elapsed.is_u64(), "{copies} {elapsed}");
    let messages = ORDERS + 2 * SHIPPED;
    assert!(
        deliveries.as_u64().unwrap() >= 2 * ORDERS + 2 * SHIPPED,
        "{deliveries}"
    );
    let expected = json!({
        "orders": ORDERS,
        "messages_committed": messages,
        "messages_on_stream": messages,
        "effects": {"inventory": ORDERS, "billing": ORDERS, "shipping": SHIPPED, "notifications": SHIPPED},
        "lost": 0,
        "ghosts": 0,
        "double_effects": 0,
        "inversions": 0,
        "parked": 0,
        "dead_letters": 0,
    });
    assert_eq!(ledger, expected);
}

fn check_with_nats(nats_variable: &'static str, database_url: Option<&str>) {
    let Some(nats_url) = backend_url(nats_variable) else {
        return;
    };
    check(
        Demo::new(database_url)
            .args(["--generate", "30", "--nats-url", &nats_url])
            .ledger(),
    );
}

#[test]
fn balances_in_one_process_without_any_server() {
    let mut demo = Demo::new(None).args(["--generate", "30", "--broker", "memory"]);
    let export = demo.path("export");
    demo.command.arg("--export").arg(&export);
    check(demo.ledger());

    let lines = |file: &str| {
        fs::read_to_string(export.join(file))
            .unwrap()
            .lines()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    assert_eq!(lines("inventory.csv")[0], "product_id,units");
    assert_eq!(lines("billing.csv")[0], "customer_id,amount_cents");
    let shipments = lines("shipments.csv");
    assert_eq!(
        (shipments[0].as_str(), shipments.len() as u64),
        ("order_id,shipped_date", 1 + SHIPPED)
    );
    let ids: Vec<i64> = shipments[1..]
        .iter()
        .map(|line| line.split(',').next().unwrap().parse().unwrap())
        .collect();
    assert!(ids.is_sorted(), "{ids:?}");
    assert_eq!(
        fs::read_to_string(demo.path("work/notices.txt"))
            .unwrap()
            .lines()
            .count() as u64,
        SHIPPED
    );

    // In a used folder, the ledger would count the first run's messages as ghosts (messages without
    // an outbox row).
    let again = demo.run();
    assert_eq!(again.status.code(), Some(1));
    assert!(
        text(&again.stderr).contains("earlier run"),
        "{}",
        text(&again.stderr)
    );
}

#[test]
fn balances_on_sqlite_and_nats() {
    check_with_nats("OUTBOX_TEST_NATS_URL", None);
}

#[test]
fn balances_on_sqlite_and_an_old_nats() {
    check_with_nats("OUTBOX_TEST_NATS_OLD_URL", None);
}

#[test]
fn balances_on_postgres_and_nats() {
    let Some(url) = backend_url("OUTBOX_TEST_POSTGRES_URL") else {
        return;
    };
    check_with_nats("OUTBOX_TEST_NATS_URL", Some(&url));
}

#[test]
fn balances_on_mariadb_and_nats() {
    let Some(url) = backend_url("OUTBOX_TEST_MARIADB_URL") else {
        return;
    };
    check_with_nats("OUTBOX_TEST_NATS_URL", Some(&url));
}

/// Kills a relay, a consumer that writes to a database, and a consumer that writes to a file. The
/// run is long enough for all kills.
#[cfg(unix)]
#[test]
fn balances_although_programs_are_killed() {
    let Some(nats_url) = backend_url("OUTBOX_TEST_NATS_URL") else {
        return;
    };
    let mut demo = Demo::new(None).args(["--generate", "400", "--nats-url", &nats_url]);
    let run = demo
        .command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    demo.wait_for_notices();
    let victims = ["relay-service", "consumer-shipping", "consumer-notifications"];
    for victim in victims {
        kill(demo.wait_for_starts(victim, 1)[0]);
    }
    let output = run.wait_with_output().unwrap();
    let ledger = demo.ledger_of(&output);
    let shipped = &ledger["effects"]["shipping"];
    assert_eq!(ledger["effects"]["inventory"], 400);
    assert_eq!(
        ledger["messages_on_stream"],
        json!(400 + 2 * shipped.as_u64().unwrap())
    );
    for victim in victims {
        let stderr = text(&output.stderr);
        assert!(
            stderr.contains(&format!("{victim} ended with")),
            "{victim} was not started again: {stderr}"
        );
    }
}

#[cfg(unix)]
fn pids(log: &str, program: &str) -> Vec<i32> {
    let mark = format!("started {program} pid=");
    let of_line = |line: &str| line.split_once(&mark).map(|(_, pid)| pid.trim().parse().unwrap());
    log.lines().filter_map(of_line).collect()
}

#[cfg(unix)]
pub(crate) fn kill(pid: i32) {
    use rustix::process::{Pid, Signal, kill_process};
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
}

const ORDERS_OF_ONE: &str = "orderID,customerID,employeeID,orderDate,shippedDate\n\
                             1,ALFKI,5,1996-07-04 00:00:00.000,NULL\n";
const LINES_OF_ONE: &str = "orderID,productID,unitPrice,quantity,discount\n1,11,14.00,12,0.05\n";

#[test]
fn malformed_input_stops_with_file_line_and_reason() {
    for (row, reason) in [
        ("2,ALFKI,5,1996-07-04", "4 fields"),
        ("x,ALFKI,5,1996-07-04,NULL", "field 0"),
        ("2,ALFKI,5,1996-02-30,NULL", "day was not in range"),
        ("2,ALFKI,5,NULL,NULL", "'year' component"),
        ("2,ALFKI,5,1996-07-04,soon", "'year' component"),
        ("1,ALFKI,5,1996-07-04,NULL", "order 1 is there twice"),
        ("2,ALFKI,5,1996-07-04,NULL", "order 2 has no line"),
    ] {
        let orders = format!("{ORDERS_OF_ONE}{row}\n");
        check_malformed(
            orders.as_bytes(),
            LINES_OF_ONE,
            &["orders.csv", "line", "3", reason],
        );
    }
    for (row, reason) in [
        ("9,11,1.00,1,0", "order 9 is not in"),
        ("1,11,1.00,1", "4 fields"),
        ("1,x,1.00,1,0", "field 1"),
        ("1,11,1.005,1,0", "`1.005`"),
        ("1,11,-1.00,1,0", "`-1.00`"),
        ("1,11,1.00,0,0", "quantity is 0"),
        ("1,11,1.00,-3,0", "field 3"),
        ("1,11,1.00,1,1.01", "discount is above 1"),
        ("1,11,1.00,1,NULL", "`NULL`"),
    ] {
        let lines = format!("{LINES_OF_ONE}{row}\n");
        check_malformed(
            ORDERS_OF_ONE.as_bytes(),
            &lines,
            &["lines.csv", "line", "3", reason],
        );
    }
    let without_column = b"orderID,customerID,orderDate\n1,ALFKI,1996-07-04\n";
    check_malformed(without_column, LINES_OF_ONE, &["orders.csv", "shippedDate"]);
    check_malformed(b"M\xfcller", LINES_OF_ONE, &["orders.csv", "UTF-8"]);
    check_malformed(b"", "", &["orders.csv", "there is no order"]);
}

#[track_caller]
fn check_malformed(orders_text: &[u8], lines_text: &str, says: &[&str]) {
    let mut demo = Demo::new(None).args(["--broker", "memory"]);
    let (orders, lines) = (demo.path("orders.csv"), demo.path("lines.csv"));
    fs::write(&orders, orders_text).unwrap();
    fs::write(&lines, lines_text).unwrap();
    demo.command
        .arg("--orders")
        .arg(&orders)
        .arg("--lines")
        .arg(&lines);
    let output = demo.run();
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{says:?}: {stderr}");
    assert!(output.stdout.is_empty());
    for part in says {
        assert!(stderr.contains(part), "expected {part:?} in {stderr}");
    }
    assert_nothing_saved(&demo.path("work"));
}

#[track_caller]
pub(crate) fn assert_nothing_saved(work: &Path) {
    assert!(!work.exists(), "something was saved before the input was checked");
}
