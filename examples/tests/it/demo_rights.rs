//! The demo under the rights that `outbox print grants` prints: each of its programs has a login of its own, and what it needs beyond these rights is denied.

use std::path::{Path, PathBuf};

use outbox_core::testing::backend_url;

use crate::demo::{Demo, check, text};

/// The program `outbox`, which a test of the whole workspace builds beside the demo.
fn printer() -> PathBuf {
    let printer = Path::new(env!("CARGO_BIN_EXE_northwind")).with_file_name("outbox");
    assert!(
        printer.exists(),
        "there is no {}; run the tests of the whole workspace, or first `cargo build --package outbox-cli`",
        printer.display()
    );
    printer
}

fn demo(database: &str, url: &str, printer: &Path) -> Demo {
    let mut demo = Demo::new(database, Some(url)).args(["--generate", "30"]);
    demo.command.arg("--grants-by").arg(printer);
    demo
}

fn balances(database: &str, variable: &'static str, more: &[&str]) {
    let (Some(url), Some(nats_url)) = (backend_url(variable), backend_url("OUTBOX_TEST_NATS_URL")) else {
        return;
    };
    let mut demo = demo(database, &url, &printer());
    demo.command.args(["--nats-url", &nats_url]).args(more);
    check(demo.ledger());
}

#[test]
fn balances_under_the_printed_rights_on_postgres() {
    balances("postgres", "OUTBOX_TEST_POSTGRES_URL", &[]);
}

#[test]
fn balances_under_the_printed_rights_on_mariadb() {
    balances("mariadb", "OUTBOX_TEST_MARIADB_URL", &[]);
}

#[test]
fn balances_from_the_log_under_the_printed_rights() {
    balances(
        "postgres",
        "OUTBOX_TEST_POSTGRES_LOGICAL_URL",
        &["--relay", "log"],
    );
}

/// The rights are all that the programs have: without any, nothing is recorded.
#[test]
fn programs_that_were_given_no_rights_are_denied() {
    let Some(url) = backend_url("OUTBOX_TEST_POSTGRES_URL") else {
        return;
    };
    // It does nothing with its arguments, and succeeds.
    let prints_nothing = Path::new("true");
    let mut demo = demo("postgres", &url, prints_nothing).args(["--broker", "memory"]);
    let output = demo.run();
    let said = format!("{}{}", text(&output.stdout), text(&output.stderr));
    assert!(!output.status.success(), "{said}");
    // Consumers look at their rights before they begin, and the service only meets the refusal; whoever is first ends the run.
    let is_denied = ["permission denied", "lacks rights on"].map(|words| said.contains(words));
    assert!(is_denied.contains(&true), "{said}");
    assert!(
        !said.contains("\"messages_committed\"") || said.contains("\"messages_committed\":0,"),
        "{said}"
    );
    // What a run that failed leaves behind, so that somebody can look, nobody needs here. It is on the tests' own server.
    assert!(said.contains("their logins if it made some"), "{said}");
}

#[test]
fn a_database_without_logins_is_refused() {
    let mut demo = Demo::new("sqlite", None).args(["--grants-by", "outbox", "--broker", "memory"]);
    let output = demo.run();
    let said = text(&output.stderr);
    assert!(said.contains("SQLite has no logins"), "{said}");
    assert!(!demo.path("work").exists(), "nothing is made before the refusal");
}
