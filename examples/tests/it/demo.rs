//! Runs the demo's program as a user does, and checks the ledger that it prints.
//!
//! Method: the orders are few and generated. The broker in memory is always tested, each database and NATS server only if its address is in the
//! environment. The program's own unit tests check that the ledger detects mistakes; here it must find none.

#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests are tests; the exemption in clippy.toml does not reach them"
)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use outbox::testing::backend_url;
use serde_json::{Value, json};
use tempfile::TempDir;

const ORDERS: u64 = 30;

/// The number of generated orders that have been shipped.
const SHIPPED: u64 = 28;

/// A run in a folder of its own.
pub(crate) struct Demo {
    folder: TempDir,
    pub(crate) command: Command,
}

impl Demo {
    pub(crate) fn new(database: &str, database_url: Option<&str>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let sqlite = format!("sqlite://{}", folder.path().join("databases").display());
        let mut command = Command::new(env!("CARGO_BIN_EXE_northwind"));
        command.args([
            "run",
            "--json",
            "--database",
            database,
            "--database-url",
            database_url.unwrap_or(&sqlite),
        ]);
        command.arg("--work-dir").arg(folder.path().join("work"));
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

    /// Runs the demo and returns the ledger, which must balance.
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

    /// Waits until the last consumer in the chain has its first message, so that all parts are at work.
    #[cfg(unix)]
    pub(crate) fn wait_for_notices(&self) {
        let notices = self.path("work/notices.txt");
        self.wait_for("the first notice", || {
            fs::metadata(&notices).is_ok_and(|notices| notices.len() > 0)
        });
    }

    /// Waits until a program was started so many times, and returns its process ids in turn.
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

/// The expected report of every run over [`ORDERS`], whatever happened to the servers.
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

fn check_with_nats(nats_variable: &'static str, database: &str, database_url: Option<&str>) {
    let Some(nats_url) = backend_url(nats_variable) else {
        return;
    };
    check(
        Demo::new(database, database_url)
            .args(["--generate", "30", "--nats-url", &nats_url])
            .ledger(),
    );
}

#[test]
fn balances_in_one_process_without_any_server() {
    let mut demo = Demo::new("sqlite", None).args(["--generate", "30", "--broker", "memory"]);
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
    // Each notice has a key and a line of its own.
    assert_eq!(
        fs::read_to_string(demo.path("work/notices.txt"))
            .unwrap()
            .lines()
            .count() as u64,
        SHIPPED
    );

    // A second run is refused, because it would count the messages of the first as ghosts.
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
    check_with_nats("OUTBOX_TEST_NATS_URL", "sqlite", None);
}

#[test]
fn balances_on_sqlite_and_an_old_nats() {
    check_with_nats("OUTBOX_TEST_NATS_OLD_URL", "sqlite", None);
}

#[test]
fn balances_on_postgres_and_nats() {
    let Some(url) = backend_url("OUTBOX_TEST_POSTGRES_URL") else {
        return;
    };
    check_with_nats("OUTBOX_TEST_NATS_URL", "postgres", Some(&url));
}

#[test]
fn balances_on_mariadb_and_nats() {
    let Some(url) = backend_url("OUTBOX_TEST_MARIADB_URL") else {
        return;
    };
    check_with_nats("OUTBOX_TEST_NATS_URL", "mariadb", Some(&url));
}

/// Kills three programs while they work: a relay, a consumer that writes to a database, and one that writes to a file. The orchestrator restarts
/// them, and the ledger must not change. There are so many orders that the run does not end before.
#[cfg(unix)]
#[test]
fn balances_although_programs_are_killed() {
    let Some(nats_url) = backend_url("OUTBOX_TEST_NATS_URL") else {
        return;
    };
    let mut demo = Demo::new("sqlite", None).args(["--generate", "400", "--nats-url", &nats_url]);
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

/// Finds the process ids in lines such as `started relay-service pid=17`.
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

const ORDER_HEADER: &str = "orderID,customerID,employeeID,orderDate,shippedDate";
const LINE_HEADER: &str = "orderID,productID,unitPrice,quantity,discount";
const ORDER: &str = "1,ALFKI,5,1996-07-04 00:00:00.000,NULL";
const LINE: &str = "1,11,14.00,12,0.05";

/// A malformed input: the two files, and the parts of the error message that it must cause.
#[derive(Clone)]
struct Malformed {
    orders: Vec<u8>,
    lines: Vec<u8>,
    says: &'static [&'static str],
}

fn file(rows: &[&str]) -> Vec<u8> {
    rows.iter()
        .flat_map(|row| [row.as_bytes(), b"\n"].concat())
        .collect()
}

fn bad_order(row: &str, says: &'static [&'static str]) -> Malformed {
    Malformed {
        orders: file(&[ORDER_HEADER, ORDER, row]),
        lines: file(&[LINE_HEADER, LINE, "2,11,1.00,1,0"]),
        says,
    }
}

fn bad_line(row: &str, says: &'static [&'static str]) -> Malformed {
    Malformed {
        orders: file(&[ORDER_HEADER, ORDER]),
        lines: file(&[LINE_HEADER, LINE, row]),
        says,
    }
}

#[test]
fn malformed_input_stops_with_file_line_and_reason() {
    for case in [malformed_orders(), malformed_lines(), malformed_files()].concat() {
        check_malformed(&case);
    }
}

fn malformed_orders() -> Vec<Malformed> {
    vec![
        bad_order(
            "2,ALFKI,5,1996-07-04",
            &["orders.csv:3: ", "has 4 columns, but the header has 5"],
        ),
        bad_order(
            "2,ALFKI,5,1996-07-04,NULL,x",
            &["orders.csv:3: ", "has 6 columns"],
        ),
        bad_order("x,ALFKI,5,1996-07-04,NULL", &["orders.csv:3: ", "orderID `x`"]),
        bad_order(
            "0,ALFKI,5,1996-07-04,NULL",
            &["orders.csv:3: ", "orderID 0 is not positive"],
        ),
        bad_order(
            "2,,5,1996-07-04,NULL",
            &["orders.csv:3: ", "customerID is missing"],
        ),
        bad_order(
            "2,NULL,5,1996-07-04,NULL",
            &["orders.csv:3: ", "customerID is missing"],
        ),
        bad_order("2, ALFKI,5,1996-07-04,NULL", &["orders.csv:3: ", "white space"]),
        bad_order(
            "2,ALFKI,5,1996-02-30,NULL",
            &["orders.csv:3: ", "orderDate `1996-02-30`"],
        ),
        bad_order("2,ALFKI,5,NULL,NULL", &["orders.csv:3: ", "orderDate `NULL`"]),
        bad_order(
            "2,ALFKI,5,1996-07-04,soon",
            &["orders.csv:3: ", "shippedDate `soon`"],
        ),
        bad_order("2,ALFKI,5,1996-07-04,", &["orders.csv:3: ", "shippedDate"]),
        bad_order(
            "1,ALFKI,5,1996-07-04,NULL",
            &["orders.csv:3: ", "order 1 is already on line 2"],
        ),
        bad_order(
            "3,ALFKI,5,1996-07-04,NULL",
            &["lines.csv:3: ", "order 2 is not in"],
        ),
    ]
}

fn malformed_lines() -> Vec<Malformed> {
    vec![
        bad_line("9,11,1.00,1,0", &["lines.csv:3: ", "order 9 is not in"]),
        bad_line("1,11,1.00,1", &["lines.csv:3: ", "has 4 columns"]),
        bad_line("1,x,1.00,1,0", &["lines.csv:3: ", "productID `x`"]),
        bad_line("1,11,1.005,1,0", &["lines.csv:3: ", "unitPrice `1.005`"]),
        bad_line("1,11,-1.00,1,0", &["lines.csv:3: ", "unitPrice `-1.00`"]),
        bad_line("1,11,cheap,1,0", &["lines.csv:3: ", "unitPrice `cheap`"]),
        bad_line("1,11,1.00,0,0", &["lines.csv:3: ", "quantity 0"]),
        bad_line("1,11,1.00,-3,0", &["lines.csv:3: ", "quantity -3"]),
        bad_line("1,11,1.00,1.5,0", &["lines.csv:3: ", "quantity `1.5`"]),
        bad_line(
            "1,11,1.00,1,1.01",
            &["lines.csv:3: ", "discount `1.01` is outside 0 to 1"],
        ),
        bad_line("1,11,1.00,1,-0.1", &["lines.csv:3: ", "discount `-0.1`"]),
        bad_line("1,11,1.00,1,NULL", &["lines.csv:3: ", "discount `NULL`"]),
    ]
}

fn malformed_files() -> Vec<Malformed> {
    vec![
        Malformed {
            orders: file(&["orderID,customerID,orderDate", "1,ALFKI,1996-07-04"]),
            lines: file(&[LINE_HEADER, LINE]),
            says: &["orders.csv:1: ", "column shippedDate is missing"],
        },
        Malformed {
            orders: file(&[ORDER_HEADER, ORDER]),
            lines: file(&[
                "orderID,productID,unitPrice,discount,quantity,discount",
                "1,11,1.00,0,1,0",
            ]),
            says: &["lines.csv:1: ", "column discount is there twice"],
        },
        Malformed {
            orders: file(&[ORDER_HEADER, ORDER, "2,ALFKI,5,1996-07-04,NULL"]),
            lines: file(&[LINE_HEADER, LINE]),
            says: &["orders.csv:3: ", "order 2 has no line"],
        },
        Malformed {
            orders: [
                file(&[ORDER_HEADER, ORDER]),
                b"2,M\xfcller,5,1996-07-04,NULL\n".to_vec(),
            ]
            .concat(),
            lines: file(&[LINE_HEADER, LINE]),
            says: &["orders.csv:3: ", "UTF-8"],
        },
        Malformed {
            orders: Vec::new(),
            lines: file(&[LINE_HEADER]),
            says: &["orders.csv:1: ", "column orderID is missing"],
        },
    ]
}

#[track_caller]
fn check_malformed(case: &Malformed) {
    let mut demo = Demo::new("sqlite", None).args(["--broker", "memory"]);
    let (orders, lines) = (demo.path("orders.csv"), demo.path("lines.csv"));
    fs::write(&orders, &case.orders).unwrap();
    fs::write(&lines, &case.lines).unwrap();
    demo.command
        .arg("--orders")
        .arg(&orders)
        .arg("--lines")
        .arg(&lines);
    let output = demo.run();
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{:?}: {stderr}", case.says);
    assert!(output.stdout.is_empty());
    for part in case.says {
        assert!(stderr.contains(part), "expected {part:?} in {stderr}");
    }
    assert_nothing_saved(&demo.path("databases"), &demo.path("work"));
}

#[track_caller]
pub(crate) fn assert_nothing_saved(databases: &Path, work: &Path) {
    assert!(
        !databases.exists() && !work.exists(),
        "something was saved before the input was checked"
    );
}

#[test]
fn a_file_that_is_missing_is_malformed_input_too() {
    let output = Demo::new("sqlite", None)
        .args([
            "--broker",
            "memory",
            "--orders",
            "no-such-file.csv",
            "--lines",
            "no-such-file.csv",
        ])
        .run();
    assert_eq!(output.status.code(), Some(2));
    assert!(
        text(&output.stderr).contains("no-such-file.csv: cannot be read"),
        "{}",
        text(&output.stderr)
    );
}
