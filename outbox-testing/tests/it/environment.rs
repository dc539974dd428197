//! Skipped tests are reported. The environment of a running process cannot be changed safely, so these tests run this
//! binary again.

use std::env;
use std::process::{Command, Output};

use outbox_testing::{backend_url, compiler_is_pinned};

/// An environment variable that marks the second run. Its value is the expected address, or [`COMPILER`].
const SECOND_RUN: &str = "OUTBOX_TEST_SECOND_RUN";
const VARIABLE: &str = "OUTBOX_TEST_NOWHERE_URL";
/// Value of [`SECOND_RUN`] that asks for the compiler instead of a server.
const COMPILER: &str = "compiler";

#[test]
fn second_run() {
    if env::var_os(SECOND_RUN).is_some_and(|asked| asked == COMPILER) {
        assert!(!compiler_is_pinned());
    } else if env::var_os(SECOND_RUN).is_some() {
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
fn a_server_that_is_given_is_used() {
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

/// A newer compiler is not a mistake, so the test is skipped under `CI=true` as well.
#[cfg(unix)]
#[test]
fn messages_of_another_compiler_are_not_compared() {
    use std::os::unix::fs::PermissionsExt as _;

    let folder = env::temp_dir().join(format!("outbox-compiler-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let compiler = folder.join("rustc");
    std::fs::write(&compiler, "#!/bin/sh\necho 'rustc 1.999.0 (0 2030-01-01)'\n").unwrap();
    std::fs::set_permissions(&compiler, std::fs::Permissions::from_mode(0o755)).unwrap();
    let output = run_again(COMPILER, &[("PATH", folder.to_str().unwrap()), ("CI", "true")]);
    std::fs::remove_dir_all(&folder).unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(
        stderr(&output).contains("this is rustc 1.999.0"),
        "{}",
        stderr(&output)
    );
}
