//! Chooses at run time whether a test has the server it needs.
//!
//! Invariant: a skip is never silent. It is printed, it is written to the log that `cargo xtask test` counts, and under `CI=true` it is
//! a failure. Absent here: starting servers; that is the job of `cargo xtask test`, or of whoever sets the variable.

use std::env;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::thread;

/// Set to a file name to collect one line per skipped test.
const SKIP_LOG: &str = "OUTBOX_SKIP_LOG";

/// The address of a back end under test, from an environment variable such as `OUTBOX_TEST_POSTGRES_URL`. `None` means: skip the test.
///
/// # Panics
///
/// If the variable is unset or empty while `CI=true`: what is not tested there must not look tested.
#[must_use]
#[expect(
    clippy::print_stderr,
    reason = "the line belongs to the output of the test that is skipped"
)]
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
    let thread = thread::current();
    let test = thread.name().unwrap_or("unnamed test");
    eprintln!("skipped: {test}: {variable} is not set; set it or run `cargo xtask test`");
    if let Some(path) = env::var_os(SKIP_LOG) {
        let line = format!("{test}: {variable} is not set\n");
        // One write call in append mode: lines of tests that run at the same time do not mix.
        let written = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&path)
            .and_then(|mut log| log.write_all(line.as_bytes()));
        if let Err(error) = written {
            eprintln!("cannot write to {SKIP_LOG} ({}): {error}", path.display());
        }
    }
    None
}
