//! `cargo xtask test`: every test of the workspace, against private back ends.
//!
//! The closing line, `N passed, N failed, N skipped`, counts a run that did not compile as a
//! failure. A test that skipped itself counts as skipped, although its harness reports it as
//! passed.

use std::env;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::process::{ChildStdout, Command, ExitCode, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};

use crate::harness::Output;
use crate::process::{Manners, Process};
use crate::services::{Services, for_tests};
use crate::workspace::{Workspace, cargo_command};

/// The file to which tests append one line, `name: reason`, for each skip.
const SKIP_LOG: &str = "OUTBOX_SKIP_LOG";
const TEST_THREADS: &str = "RUST_TEST_THREADS";

pub(crate) fn run(arguments: &[String]) -> Result<ExitCode> {
    let began = Instant::now();
    let workspace = Workspace::load()?;
    let services = Services::start(&for_tests(), &workspace)?;
    services.report();
    let (missing, broken) = services.unavailable();
    let is_ci = env::var("CI").is_ok_and(|value| value == "true" || value == "1");
    check(&missing, &broken, is_ci)?;
    let skip_log = services.folder().join("skipped");
    let words = words(arguments);
    println!("cargo {}", words.join(" "));
    let mut command = cargo_command();
    command.args(&words).current_dir(&workspace.root);
    command.env(SKIP_LOG, &skip_log).envs(services.variables());
    if env::var_os(TEST_THREADS).is_none() {
        // More threads than processors, because most tests wait for servers and timers.
        let threads = 4 * thread::available_parallelism().map_or(1, usize::from);
        command.env(TEST_THREADS, threads.to_string());
    }
    let (status, mut output) = run_tests(command)?;
    if !status.success() && output.failed == 0 {
        println!("cargo test failed ({status}) without a failed test; see above");
        output.failed += 1;
    }
    let log = fs::read_to_string(&skip_log).unwrap_or_default();
    drop(services);
    let seconds = began.elapsed().as_secs();
    println!("the run took {seconds} s, with compilation and server start");
    let missing = missing.iter().map(|line| format!("not available: {line}"));
    let failures = output.failures.iter().cloned();
    for line in missing.chain(failures).chain(output.closing_lines(&log)) {
        println!("{line}");
    }
    Ok(ExitCode::from(u8::from(output.failed > 0)))
}

fn check(missing: &[String], broken: &[String], is_ci: bool) -> Result<()> {
    if !broken.is_empty() {
        bail!("installed, and does not start: {}", broken.join("; "));
    }
    if is_ci && !missing.is_empty() {
        bail!(
            "with CI=true every back end must be available: {}",
            missing.join("; ")
        );
    }
    Ok(())
}

/// The arguments of cargo, without `--all-targets`. With this option, cargo would build the
/// examples as test harnesses, but tests run the examples as programs.
fn words(arguments: &[String]) -> Vec<&str> {
    let mut for_cargo = arguments.iter().take_while(|argument| *argument != "--");
    let has_packages = for_cargo.any(|name| name.starts_with("--package") || name.starts_with("-p"));
    let mut words = vec!["test"];
    words.extend((!has_packages).then_some("--workspace"));
    words.extend(["--all-features", "--no-fail-fast"]);
    words.extend(arguments.iter().map(String::as_str));
    words
}

fn run_tests(mut command: Command) -> Result<(ExitStatus, Output)> {
    command.stdout(Stdio::piped());
    let mut process = Process::launch(command, Manners::GROUP)?;
    let lines = lines_of(process.stdout().context("cargo test has no output")?);
    let mut output = Output::default();
    loop {
        let line = match output.patience() {
            Some(patience) => lines.recv_timeout(patience),
            None => lines.recv().map_err(RecvTimeoutError::from),
        };
        match line {
            Ok(line) => {
                println!("{line}");
                output.read(&line);
            }
            Err(RecvTimeoutError::Disconnected) => return Ok((process.wait()?, output)),
            Err(RecvTimeoutError::Timeout) => bail!("{}", output.silence()),
        }
    }
}

fn lines_of(output: ChildStdout) -> Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
            if sender.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                return;
            }
        }
    });
    receiver
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broken_servers_fail_and_missing_servers_skip_without_ci() {
        let one = ["NATS: exits".to_owned()];
        for is_ci in [false, true] {
            assert!(check(&[], &one, is_ci).is_err());
            assert_eq!(check(&one, &[], is_ci).is_err(), is_ci);
        }
        check(&[], &[], true).unwrap();
    }

    #[test]
    fn package_narrows_the_run() {
        let check = |arguments: &str, expected| {
            let arguments: Vec<String> = arguments.split_whitespace().map(str::to_owned).collect();
            assert_eq!(words(&arguments).join(" "), expected);
        };
        check("", "test --workspace --all-features --no-fail-fast");
        check("-- -p", "test --workspace --all-features --no-fail-fast -- -p");
        check("-p a b", "test --all-features --no-fail-fast -p a b");
    }
}
