//! A lane of a test run: calls of cargo, one after the other, whose output is passed on, and read for what became of the tests.
//!
//! Invariant: a call that fails without a failed test counts as a failed test, and the lane goes on.

use std::env;
use std::ffi::OsString;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{ChildStderr, ChildStdout, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use crate::durations::Durations;
use crate::failure::{Context, Failure, Result};
use crate::failures::Failures;
use crate::process::{Manners, Process};
use crate::totals::Totals;
use crate::unfinished::Unfinished;
use crate::workspace::cargo_command;

const TEST_THREADS: &str = "RUST_TEST_THREADS";
/// Longest wait for what was said on standard error until cargo ended. A program that outlives it may hold that output open.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// How long cargo may take to end after a test that hangs. Then it is killed.
const LAST_DEEDS: Duration = Duration::from_secs(10);

/// What a lane does.
#[derive(Debug)]
pub(crate) struct Lane<'a> {
    /// The arguments of each call of cargo.
    pub(crate) calls: Vec<Vec<String>>,
    /// Tests that run at a time, unless the environment says how many.
    pub(crate) threads: usize,
    pub(crate) variables: &'a [(OsString, OsString)],
    /// Whether what is said is kept, because another lane is shown meanwhile.
    pub(crate) is_kept: bool,
}

/// What became of the tests of a lane.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) totals: Totals,
    pub(crate) durations: Durations,
    /// What failed tests said.
    pub(crate) failures: Vec<String>,
    /// What was said, if it was kept.
    pub(crate) kept: Vec<u8>,
}

impl Outcome {
    /// Counts something that was no test as one that failed.
    fn fail(&mut self, why: String) {
        self.totals.failed += 1;
        self.failures.push(why);
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.totals.add(other.totals);
        self.durations.add(other.durations);
        self.failures.extend(other.failures);
    }
}

impl Lane<'_> {
    pub(crate) fn run(&self, root: &Path) -> Outcome {
        let mut outcome = Outcome::default();
        let voice = Arc::new(if self.is_kept {
            Voice::Kept(Mutex::default())
        } else {
            Voice::Shown
        });
        for call in &self.calls {
            outcome.add(self.call(call, root, &voice).unwrap_or_else(|failure| {
                let mut lost = Outcome::default();
                lost.fail(format!("cargo {}: {}", call.join(" "), failure.report()));
                lost
            }));
        }
        if let Voice::Kept(kept) = &*voice {
            outcome.kept = std::mem::take(&mut lock(kept));
        }
        outcome
    }

    fn call(&self, call: &[String], root: &Path, voice: &Arc<Voice>) -> Result<Outcome> {
        voice.say(format!("cargo {}\n", call.join(" ")).as_bytes())?;
        let mut command = cargo_command();
        command
            .args(call)
            .current_dir(root)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        if env::var_os(TEST_THREADS).is_none() {
            command.env(TEST_THREADS, self.threads.to_string());
        }
        let mut process = Process::launch(command, Manners::GROUP)?;
        let (Some(output), Some(errors)) = (process.stdout(), process.stderr()) else {
            return Err(Failure::new("cargo test has no output"));
        };
        let durations = Arc::new(Mutex::new(Durations::default()));
        let errors = pass_on(errors, durations.clone(), voice.clone());
        let (mut outcome, mut unfinished) = (Outcome::default(), Unfinished::default());
        let (mut failures, mut hangs) = (Failures::default(), None);
        let lines = lines_of(output, durations.clone());
        loop {
            let line = match unfinished.patience() {
                Some(patience) => lines.recv_timeout(patience),
                None => lines.recv().map_err(RecvTimeoutError::from),
            };
            let mut line = match line {
                Ok(line) => line.context(|| "cannot read the output of cargo test".to_owned())?,
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    hangs = Some(unfinished.describe());
                    process.ask_to_stop();
                    break;
                }
            };
            let text = String::from_utf8_lossy(&line);
            outcome.totals.add(Totals::parse(&text).unwrap_or_default());
            unfinished.read(&text);
            failures.read(&text);
            line.push(b'\n');
            voice.say(&line)?;
        }
        let status = match hangs {
            Some(_) => process.wait_at_most(LAST_DEEDS)?,
            None => Some(process.wait()?),
        };
        // What cargo has started and left behind ends here, and its last words are on their way.
        drop(process);
        errors.recv_timeout(LAST_WORDS).ok();
        outcome.failures = failures.lines().to_vec();
        let words = call.join(" ");
        match (hangs, status) {
            (Some(hangs), _) => outcome.fail(format!("{hangs}; the rest of cargo {words} did not run")),
            // It did not compile, or a test program was killed.
            (None, Some(status)) if !status.success() && outcome.totals.failed == 0 => {
                outcome.fail(format!(
                    "cargo {words} failed ({status}) without a failed test; see above"
                ));
            }
            _ => {}
        }
        outcome.durations = std::mem::take(&mut lock(&durations));
        Ok(outcome)
    }
}

/// Where a lane speaks.
#[derive(Debug)]
enum Voice {
    Shown,
    Kept(Mutex<Vec<u8>>),
}

impl Voice {
    fn say(&self, words: &[u8]) -> Result<()> {
        let said = match self {
            Self::Shown => io::stdout().write_all(words),
            Self::Kept(kept) => lock(kept).write_all(words),
        };
        said.context(|| "cannot print the output of cargo test".to_owned())
    }

    /// As [`Self::say`], of what was said on standard error. If that fails, nobody reads it.
    fn complain(&self, words: &[u8]) {
        match self {
            Self::Shown => io::stderr().write_all(words).ok(),
            Self::Kept(kept) => lock(kept).write_all(words).ok(),
        };
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Passes on what cargo and the tests say on standard error, where cargo names each test program that it starts. The receiver's channel is closed when all was
/// passed on.
fn pass_on(errors: ChildStderr, durations: Arc<Mutex<Durations>>, voice: Arc<Voice>) -> Receiver<()> {
    let (sender, ended) = mpsc::channel();
    thread::spawn(move || {
        let (mut errors, mut line) = (BufReader::new(errors), Vec::new());
        while errors.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
            lock(&durations).read_cargo(&String::from_utf8_lossy(&line));
            voice.complain(&line);
            line.clear();
        }
        drop(sender);
    });
    ended
}

/// The lines of an output, read by a thread of their own, so that the wait for the next one can end.
fn lines_of(output: ChildStdout, durations: Arc<Mutex<Durations>>) -> Receiver<io::Result<Vec<u8>>> {
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
