//! `cargo xtask test`: every test of the workspace, against private instances of what the tests need.
//!
//! The closing line, `N passed, N failed, N skipped`, counts a run that did not compile as a failure. A test that skipped itself counts as skipped and
//! not as passed, although its harness calls it passed. A test of a promise that does not apply to a back end counts as neither and is listed.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{ChildStderr, ChildStdout, ExitCode, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Error, Result, bail};

use crate::durations::{Durations, source_of};
use crate::failures::Failures;
use crate::process::{Manners, Process};
use crate::services::{Availability, FOR_TESTS, Services};
use crate::unfinished::Unfinished;
use crate::workspace::{Workspace, cargo_command};

/// Tests append one line, `name: reason`, for each skip.
const SKIP_LOG: &str = "OUTBOX_SKIP_LOG";
/// The start of such a line if nothing was left out: the promise does not apply to what was tested.
const NOT_APPLICABLE: &str = "does not apply: ";
const TEST_THREADS: &str = "RUST_TEST_THREADS";
/// Longest wait for what was said on standard error until cargo ended. A program that outlives it may hold that output open.
const LAST_WORDS: Duration = Duration::from_secs(2);

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
        return Err(Error::msg(reason));
    }
    let skip_log = services.folder().join("skipped");
    let mut totals = Totals::default();
    let pass = pass(arguments);
    let outcome = run_pass(&pass, &services, &skip_log, &workspace)?;
    totals.add(outcome.totals);
    if !outcome.status.success() && outcome.totals.failed == 0 {
        // It did not compile, or a test program was killed.
        println!(
            "cargo {} failed ({}) without a failed test; see above",
            pass.join(" "),
            outcome.status
        );
        totals.failed += 1;
    }
    let log = fs::read_to_string(&skip_log).unwrap_or_default();
    drop(services);
    for line in outcome.slowest {
        println!("among the longest: {line}");
    }
    let seconds = began.elapsed().as_secs();
    println!("the run took {seconds} s, with compiling and the start of servers");
    report_missing(&missing);
    for line in outcome.failures.lines() {
        println!("{line}");
    }
    for line in totals.closing_lines(&log) {
        println!("{line}");
    }
    Ok(if totals.failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
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

#[derive(Debug)]
struct Outcome {
    status: ExitStatus,
    totals: Totals,
    failures: Failures,
    /// The test programs that took longest.
    slowest: Vec<String>,
}

fn run_pass(pass: &[String], services: &Services, skip_log: &Path, workspace: &Workspace) -> Result<Outcome> {
    println!("cargo {}", pass.join(" "));
    let mut command = cargo_command();
    command
        .args(pass)
        .current_dir(&workspace.root)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command.env(SKIP_LOG, skip_log).envs(services.variables());
    if env::var_os(TEST_THREADS).is_none() {
        command.env(TEST_THREADS, test_threads().to_string());
    }
    let mut process = Process::launch(command, Manners::GROUP)?;
    let (Some(output), Some(errors)) = (process.stdout(), process.stderr()) else {
        bail!("cargo test has no output");
    };
    let durations = Arc::new(Mutex::new(Durations::default()));
    let errors = pass_on(errors, durations.clone());
    let (mut totals, mut unfinished) = (Totals::default(), Unfinished::default());
    let mut failures = Failures::default();
    let mut stdout = std::io::stdout();
    let lines = lines_of(output, durations.clone());
    loop {
        let line = match unfinished.patience() {
            Some(patience) => lines.recv_timeout(patience),
            None => lines.recv().map_err(RecvTimeoutError::from),
        };
        let mut line = match line {
            Ok(line) => line.context("cannot read the output of cargo test")?,
            Err(RecvTimeoutError::Disconnected) => break,
            // The process ends with this function, and its children with it.
            Err(RecvTimeoutError::Timeout) => return Err(Error::msg(unfinished.describe())),
        };
        let text = String::from_utf8_lossy(&line);
        totals.add(Totals::parse(&text).unwrap_or_default());
        unfinished.read(&text);
        failures.read(&text);
        line.push(b'\n');
        stdout
            .write_all(&line)
            .context("cannot print the output of cargo test")?;
    }
    let status = process.wait()?;
    // What cargo has started and left behind ends here, and its last words are on their way.
    drop(process);
    errors.recv_timeout(LAST_WORDS).ok();
    let slowest = lock(&durations).lines(|program| source_of(&workspace.root, program));
    Ok(Outcome {
        status,
        totals,
        failures,
        slowest,
    })
}

fn lock(durations: &Mutex<Durations>) -> MutexGuard<'_, Durations> {
    durations.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Passes on what cargo and the tests say on standard error, where cargo names each test program that it starts. The receiver's channel is closed when all was
/// passed on.
fn pass_on(errors: ChildStderr, durations: Arc<Mutex<Durations>>) -> Receiver<()> {
    let (sender, ended) = mpsc::channel();
    thread::spawn(move || {
        let (mut errors, mut line) = (BufReader::new(errors), Vec::new());
        while errors.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
            lock(&durations).read_cargo(&String::from_utf8_lossy(&line));
            // If that fails, nobody reads it.
            std::io::stderr().write_all(&line).ok();
            line.clear();
        }
        drop(sender);
    });
    ended
}

/// The lines of an output, read by a thread of their own, so that the wait for the next one can end.
fn lines_of(output: ChildStdout, durations: Arc<Mutex<Durations>>) -> Receiver<std::io::Result<Vec<u8>>> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(output).split(b'\n') {
            // Here and not by the receiver, which may lag behind what cargo says.
            if let Ok(line) = &line {
                lock(&durations).read(&String::from_utf8_lossy(line));
            }
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    receiver
}

/// The counts of the harnesses.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
struct Totals {
    passed: usize,
    failed: usize,
    ignored: usize,
}

impl Totals {
    /// Reads a line such as `test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished …`.
    fn parse(line: &str) -> Option<Self> {
        let (_verdict, counts) = line.strip_prefix("test result: ")?.split_once(". ")?;
        let mut totals = Self::default();
        for count in counts.split(';') {
            let Some((number, what)) = count.trim().split_once(' ') else {
                continue;
            };
            match what {
                "passed" => totals.passed = number.parse().ok()?,
                "failed" => totals.failed = number.parse().ok()?,
                "ignored" => totals.ignored = number.parse().ok()?,
                _ => {}
            }
        }
        Some(totals)
    }

    fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.ignored += other.ignored;
    }

    /// What is printed at the end, given the log of the skips.
    fn closing_lines(self, log: &str) -> Vec<String> {
        let (mut lines, mut skipped, mut not_applicable) = (Vec::new(), 0, 0);
        for (line, times) in count_lines(log) {
            if let Some(line) = line.strip_prefix(NOT_APPLICABLE) {
                not_applicable += times;
                lines.push(format!("does not apply: {line} ({times} times)"));
            } else {
                skipped += times;
                lines.push(format!("skipped: {line} ({times} times)"));
            }
        }
        if self.ignored > 0 {
            lines.push(format!("skipped: {} ignored tests", self.ignored));
        }
        // The harness has counted those of the log as passed.
        let passed = self.passed.saturating_sub(skipped + not_applicable);
        let skipped = skipped + self.ignored;
        lines.push(format!(
            "{passed} passed, {} failed, {skipped} skipped",
            self.failed
        ));
        lines
    }
}

/// Each line with the number of times it occurs.
fn count_lines(text: &str) -> BTreeMap<&str, usize> {
    let mut counts = BTreeMap::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        *counts.entry(line).or_insert(0) += 1;
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_line(line: &str, expected: Option<(usize, usize, usize)>) {
        let totals = Totals::parse(line).map(|totals| (totals.passed, totals.failed, totals.ignored));
        assert_eq!(totals, expected, "{line}");
    }

    #[test]
    fn result_lines_are_counted() {
        let ok =
            "test result: ok. 12 passed; 0 failed; 3 ignored; 0 measured; 1 filtered out; finished in 0.01s";
        check_line(ok, Some((12, 0, 3)));
        let failed = "test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.00s";
        check_line(failed, Some((1, 2, 0)));
        check_line("test tests::result ... ok", None);
        check_line("running 3 tests", None);
        // A nested run inside the output of a test is indented or prefixed, and was counted by its own test.
        check_line("  test result: ok. 5 passed; 0 failed; 0 ignored", None);
        check_line("", None);
    }

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
    fn a_package_narrows_the_run() {
        check_pass(
            "-p outbox-core some_test",
            "test --all-features --no-fail-fast -p outbox-core some_test",
        );
    }

    #[test]
    fn what_was_skipped_is_not_counted_as_passed() {
        let totals = Totals {
            passed: 10,
            failed: 1,
            ignored: 2,
        };
        let log = "a: no NATS\na: no NATS\ndoes not apply: b: one writer at a time\n";
        let expected = [
            "skipped: a: no NATS (2 times)",
            "does not apply: b: one writer at a time (1 times)",
            "skipped: 2 ignored tests",
            "7 passed, 1 failed, 4 skipped",
        ];
        assert_eq!(totals.closing_lines(log), expected);
    }

    #[test]
    fn repeated_skips_are_printed_once() {
        let counts = count_lines("store: no PostgreSQL\nbroker: no NATS\n\nstore: no PostgreSQL\n");
        assert_eq!(
            counts.into_iter().collect::<Vec<_>>(),
            [("broker: no NATS", 1), ("store: no PostgreSQL", 2)]
        );
    }
}
