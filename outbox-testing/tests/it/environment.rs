//! Skipped tests are reported. The tests set the environment of a second run of this binary.

use std::env;
use std::process::{Command, Output};

use outbox_testing::backend_url;

const SECOND_RUN: &str = "OUTBOX_TEST_SECOND_RUN";
const VARIABLE: &str = "OUTBOX_TEST_NOWHERE_URL";

#[test]
fn second_run() {
    if env::var_os(SECOND_RUN).is_some() {
        assert_eq!(
            backend_url(VARIABLE).as_deref(),
            env::var(SECOND_RUN).ok().filter(|url| !url.is_empty()).as_deref()
        );
    }
}

fn run_again(expected_url: &str, variables: &[(&str, &str)]) -> Output {
    Command::new(env::current_exe().unwrap())
        .args(["--exact", "environment::second_run", "--nocapture"])
        .env_remove("CI")
        .env_remove("OUTBOX_SKIP_LOG")
        .env(SECOND_RUN, expected_url)
        .envs(variables.iter().copied())
        .output()
        .unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_configured_server_is_used() {
    let output = run_again("db://x", &[(VARIABLE, "db://x"), ("CI", "true")]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(!stderr(&output).contains("skipped"), "{}", stderr(&output));
}

#[test]
fn a_skip_is_printed_and_logged() {
    let log = env::temp_dir().join(format!("outbox-skip-log-{}", std::process::id()));
    for (run, value) in ["", "unset"].into_iter().enumerate() {
        let mut variables = vec![("OUTBOX_SKIP_LOG", log.to_str().unwrap())];
        if value.is_empty() {
            variables.push((VARIABLE, ""));
        }
        let output = run_again("", &variables);
        assert!(output.status.success(), "{}", stderr(&output));
        assert!(
            stderr(&output).contains("skipped: environment::second_run: OUTBOX_TEST_NOWHERE_URL is not set")
        );
        let lines = std::fs::read_to_string(&log).unwrap();
        let line = "environment::second_run: OUTBOX_TEST_NOWHERE_URL is not set\n";
        assert_eq!(lines, line.repeat(run + 1), "one line per skip");
    }
    std::fs::remove_file(&log).unwrap();
}

#[test]
fn a_skip_is_a_failure_in_ci() {
    let output = run_again("", &[("CI", "true")]);
    assert!(!output.status.success());
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &stderr(&output);
    assert!(
        text.contains("a skip is a failure under CI=true: set OUTBOX_TEST_NOWHERE_URL"),
        "{text}"
    );
}
