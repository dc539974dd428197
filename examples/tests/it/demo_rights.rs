//! The demo under the rights that `outbox print` prints: each of its programs has a login of the database and a user of NATS of its own, and what it needs beyond these
//! rights is denied.

use std::path::{Path, PathBuf};

use outbox::testing::backend_url;

use crate::demo::{Demo, check, text};

/// A nats-server that the demo starts for itself.
const NATS: &str = "OUTBOX_TEST_NATS_CLUSTER_BIN";

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
    let (Some(url), Some(nats_server)) = (backend_url(variable), backend_url(NATS)) else {
        return;
    };
    let mut demo = demo(database, &url, &printer());
    demo.command.args(["--nats-server", &nats_server]).args(more);
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

/// A run in which NATS refuses anything fails: here consumers get everything but the permission to ask for messages.
#[cfg(unix)]
#[test]
fn a_program_that_lacks_a_permission_is_denied_by_nats() {
    use std::process::Command;

    let (Some(url), Some(nats_server)) = (backend_url("OUTBOX_TEST_POSTGRES_URL"), backend_url(NATS)) else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let prints_less = folder.path().join("outbox");
    let script = format!(
        "#!/bin/sh\n'{}' \"$@\" | sed 's/CONSUMER[.]MSG[.]NEXT/CONSUMER.MSG.NONE/'\n",
        printer().display()
    );
    // Written by another process: a file that this one had open could not be run while a child of another test still has it.
    let written = Command::new("/bin/sh")
        .args([
            "-c",
            "printf '%s' \"$1\" > \"$2\" && chmod +x \"$2\"",
            "sh",
            &script,
        ])
        .arg(&prints_less)
        .status()
        .unwrap();
    assert!(written.success());
    let mut demo = demo("postgres", &url, &prints_less).args(["--nats-server", &nats_server]);
    let output = demo.run();
    let said = text(&output.stderr);
    assert!(!output.status.success(), "{said}");
    assert!(
        said.contains("nats has refused") && said.contains("$JS.API.CONSUMER.MSG.NEXT."),
        "{said}"
    );
}

#[test]
fn a_database_without_logins_is_refused() {
    let mut demo = Demo::new("sqlite", None).args(["--grants-by", "outbox", "--broker", "memory"]);
    let output = demo.run();
    let said = text(&output.stderr);
    assert!(said.contains("SQLite has no logins"), "{said}");
    assert!(!demo.path("work").exists(), "nothing is made before the refusal");
}
