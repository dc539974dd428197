//! `cargo xtask test`: every test of the workspace, against private instances of what the tests need.
//!
//! The closing line, `N passed, N failed, N skipped`, counts a run that did not compile as a failure. A test that skipped itself counts as skipped and
//! not as passed, although its harness calls it passed. A test of a promise that does not apply to a back end counts as neither and is listed.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::io::{self, Write as _};
use std::path::Path;
use std::process::ExitCode;
use std::thread;
use std::time::Instant;

use crate::durations::source_of;
use crate::failure::{Context, Failure, Result};
use crate::lane::{Lane, Outcome};
use crate::services::{Availability, FOR_TESTS, Services};
use crate::workspace::Workspace;

/// Tests append one line, `name: reason`, for each skip.
const SKIP_LOG: &str = "OUTBOX_SKIP_LOG";

pub(crate) fn run(arguments: &[String]) -> Result<ExitCode> {
    let began = Instant::now();
    let workspace = Workspace::load()?;
    let services = Services::start(&FOR_TESTS, &workspace)?;
    for (backend, availability) in services.backends() {
        if let Availability::Ready { origin, .. } = availability {
            println!("{}: {origin}", backend.name());
        }
    }
    let (missing, broken) = (with_reasons(services.missing()), with_reasons(services.broken()));
    report_missing(&missing);
    if let Some(reason) = refusal(&missing, &broken, is_ci()) {
        return Err(Failure::new(reason));
    }
    let skip_log = services.folder().join("skipped");
    let mut variables = vec![(SKIP_LOG.into(), skip_log.clone().into())];
    variables.extend(
        services
            .variables()
            .map(|(name, value)| (name.into(), value.into())),
    );
    let outcome = run_tests(arguments, &variables, &workspace.root)?;
    let log = fs::read_to_string(&skip_log).unwrap_or_default();
    drop(services);
    for line in outcome
        .durations
        .lines(|program| source_of(&workspace.root, program))
    {
        println!("among the longest: {line}");
    }
    let seconds = began.elapsed().as_secs();
    println!("the run took {seconds} s, with compiling and the start of servers");
    report_missing(&missing);
    for line in &outcome.failures {
        println!("{line}");
    }
    for line in outcome.totals.closing_lines(&log) {
        println!("{line}");
    }
    Ok(if outcome.totals.failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Runs the tests that `arguments` choose. All tests run in two lanes once they are built: where one waits for the end of a few long tests, the other has work.
fn run_tests(arguments: &[String], variables: &[(OsString, OsString)], root: &Path) -> Result<Outcome> {
    let lane = |calls, threads, is_kept| Lane {
        calls,
        threads,
        variables,
        is_kept,
    };
    if !arguments.is_empty() {
        return Ok(lane(vec![pass(arguments)], test_threads(), false).run(root));
    }
    let mut outcome = lane(vec![chosen(&["--no-run"])], test_threads(), false).run(root);
    if outcome.totals.failed > 0 {
        return Ok(outcome);
    }
    let [calls, others] = lanes();
    let (shown, kept) = (
        lane(calls, test_threads(), false),
        lane(others, test_threads() / 2, true),
    );
    let (shown, kept) = thread::scope(|scope| {
        let kept = scope.spawn(|| kept.run(root));
        (shown.run(root), kept.join())
    });
    let kept = kept.map_err(|_| Failure::new("a lane of the tests panicked"))?;
    io::stdout()
        .write_all(&kept.kept)
        .context(|| "cannot print the output of cargo test".to_owned())?;
    outcome.add(shown);
    outcome.add(kept);
    Ok(outcome)
}

/// The calls of both lanes: the programs of integration tests, and all others.
fn lanes() -> [Vec<Vec<String>>; 2] {
    [
        vec![chosen(&["--test", "*"])],
        vec![chosen(&["--lib", "--bins"]), chosen(&["--doc"])],
    ]
}

/// A call with these arguments.
fn chosen(arguments: &[&str]) -> Vec<String> {
    let arguments: Vec<String> = arguments.iter().map(|&argument| argument.to_owned()).collect();
    pass(&arguments)
}

/// Continuous integration systems say so; there a skip is a failure.
pub(crate) fn is_ci() -> bool {
    env::var("CI").is_ok_and(|value| value == "true" || value == "1")
}

fn with_reasons<'a>(backends: impl Iterator<Item = (&'static str, &'a str)>) -> Vec<String> {
    backends
        .map(|(name, reason)| format!("{name}: {reason}"))
        .collect()
}

/// Why the tests must not run without these back ends: what they skip would seem checked.
fn refusal(missing: &[String], broken: &[String], is_ci: bool) -> Option<String> {
    if !broken.is_empty() {
        // Skipping its tests would hide that something is wrong with this machine, or with us.
        return Some(format!("installed, and does not start: {}", broken.join("; ")));
    }
    // Nobody looks at a skip there.
    let is_refused = is_ci && !missing.is_empty();
    is_refused.then(|| "with CI=true every back end must be available; see the reasons above".to_owned())
}

fn report_missing(missing: &[String]) {
    for line in missing {
        println!("not available: {line}");
    }
}

/// The call of cargo that runs everything. Without a choice of targets cargo runs unit, integration and documentation tests, and builds
/// the examples as the programs that the tests of their output run (`--all-targets` would build them as test harnesses).
fn pass(arguments: &[String]) -> Vec<String> {
    let for_cargo = arguments.iter().take_while(|argument| *argument != "--");
    let has_packages = for_cargo
        .map(|argument| argument.split('=').next().unwrap_or(argument))
        .any(|name| name == "--package" || name.starts_with("-p"));
    let mut pass = vec!["test"];
    // Together with `--workspace` the choice of a package would be ignored.
    pass.extend((!has_packages).then_some("--workspace"));
    pass.extend(["--all-features", "--no-fail-fast"]);
    pass.extend(arguments.iter().map(String::as_str));
    pass.into_iter().map(str::to_owned).collect()
}

/// Tests wait for servers and timers most of their time, so more of them run at a time than there are processors.
fn test_threads() -> usize {
    4 * thread::available_parallelism().map_or(1, usize::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_does_not_start_is_never_a_skip() {
        let (missing, broken) = (["Redis: not installed".to_owned()], ["NATS: exits".to_owned()]);
        for is_ci in [false, true] {
            let reason = refusal(&missing, &broken, is_ci).unwrap();
            assert_eq!(reason, "installed, and does not start: NATS: exits");
        }
    }

    #[test]
    fn a_missing_server_is_a_skip_unless_nobody_looks() {
        let missing = ["Redis: not installed".to_owned()];
        assert_eq!(refusal(&missing, &[], false), None);
        assert!(refusal(&missing, &[], true).unwrap().starts_with("with CI=true"));
        assert_eq!(refusal(&[], &[], true), None);
    }

    #[track_caller]
    fn check_pass(arguments: &str, expected: &str) {
        let arguments: Vec<String> = arguments.split_whitespace().map(str::to_owned).collect();
        assert_eq!(pass(&arguments).join(" "), expected);
    }

    #[test]
    fn everything_runs_by_default() {
        check_pass("", "test --workspace --all-features --no-fail-fast");
        check_pass("-- -p", "test --workspace --all-features --no-fail-fast -- -p");
    }

    #[test]
    fn lanes_run_everything() {
        let words: Vec<String> = lanes().concat().iter().map(|call| call.join(" ")).collect();
        let all = "test --workspace --all-features --no-fail-fast";
        let expected = ["--test *", "--lib --bins", "--doc"].map(|targets| format!("{all} {targets}"));
        assert_eq!(words, expected);
    }

    #[test]
    fn a_package_narrows_the_run() {
        check_pass(
            "-p outbox-core some_test",
            "test --all-features --no-fail-fast -p outbox-core some_test",
        );
    }
}
