//! Detects whether the server or compiler for a test is available. Each skip is printed and logged
//! for `cargo xtask test`.

use std::env;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::process::Command;
use std::thread;

/// The environment variable of the file that collects one line per skipped test.
const SKIP_LOG: &str = "OUTBOX_SKIP_LOG";

const NOT_APPLICABLE: &str = "does not apply: ";

/// The compiler whose messages the UI tests expect.
const COMPILER: &str = "rustc 1.95.";

/// The address of a back end, from an environment variable such as `OUTBOX_TEST_POSTGRES_URL`.
/// `None` means that the test must be skipped.
///
/// # Panics
///
/// Panics if the variable is unset or empty and `CI=true`.
#[must_use]
pub fn backend_url(variable: &'static str) -> Option<String> {
    if let Ok(url) = env::var(variable)
        && !url.is_empty()
    {
        return Some(url);
    }
    assert!(
        env::var("CI").as_deref() != Ok("true"),
        "a skip is a failure under CI=true: set {variable} or run `cargo xtask test`"
    );
    skip(
        &format!("{variable} is not set"),
        "set it or run `cargo xtask test`",
    );
    None
}

/// Whether compiler messages can be compared. Otherwise the test is skipped, even under `CI=true`.
#[must_use]
pub fn compiler_is_pinned() -> bool {
    let output = Command::new("rustc").arg("--version").output();
    let version = output.map_or_else(
        |error| error.to_string(),
        |output| String::from_utf8_lossy(&output.stdout).trim().to_owned(),
    );
    let pinned = version.starts_with(COMPILER);
    if !pinned {
        skip(
            &format!("messages of {COMPILER}* are compared, this is {version}"),
            "use that version",
        );
    }
    pinned
}

/// Reports that a test does not apply to this back end: neither passed nor skipped. For a missing
/// server, use [`backend_url`].
pub fn not_applicable(reason: &str) {
    log(NOT_APPLICABLE, reason, "");
}

fn skip(reason: &str, advice: &str) {
    log("", reason, &format!("; {advice}"));
}

#[expect(
    clippy::print_stderr,
    reason = "the line belongs to the output of the test that is skipped"
)]
fn log(kind: &str, reason: &str, advice: &str) {
    let thread = thread::current();
    let test = thread.name().unwrap_or("unnamed test");
    let printed = if kind.is_empty() { "skipped: " } else { kind };
    eprintln!("{printed}{test}: {reason}{advice}");
    if let Some(path) = env::var_os(SKIP_LOG) {
        let line = format!("{kind}{test}: {reason}\n");
        // Lines of concurrent tests must not mix.
        let written = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&path)
            .and_then(|mut log| log.write_all(line.as_bytes()));
        if let Err(error) = written {
            eprintln!("cannot write to {SKIP_LOG} ({}): {error}", path.display());
        }
    }
}
