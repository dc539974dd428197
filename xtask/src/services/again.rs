//! Tries again what needs servers on the network: one that is away or breaks off often answers a moment later.
//!
//! Invariant: it ends. There are three tries, and none begins when the time is over. Not here: telling why a try has failed, so what does not exist is
//! looked for three times too.

use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::services::quiet;

pub(super) const TRIES_MAX: u32 = 3;
const PAUSE: Duration = Duration::from_secs(10);

/// Runs a tool to its end, again if it fails. `limit` is for each run.
pub(super) fn run(command: &Command, limit: Duration) -> Result<()> {
    patiently(limit, || quiet::run(copy(command), limit))
}

/// Tries until a try succeeds. After `limit` no other one begins.
pub(super) fn patiently(limit: Duration, attempt: impl FnMut() -> Result<()>) -> Result<()> {
    with_pauses(PAUSE, limit, attempt)
}

fn with_pauses(pause: Duration, limit: Duration, mut attempt: impl FnMut() -> Result<()>) -> Result<()> {
    let begun = Instant::now();
    for _ in 1..TRIES_MAX {
        match attempt() {
            Err(failure) if begun.elapsed() + pause < limit => {
                eprintln!("{failure:#}\ntrying again in {pause:?}");
                thread::sleep(pause);
            }
            outcome => return outcome,
        }
    }
    attempt()
}

/// A command is used up by its run.
fn copy(command: &Command) -> Command {
    let mut copy = Command::new(command.get_program());
    copy.args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => copy.env(name, value),
            None => copy.env_remove(name),
        };
    }
    if let Some(folder) = command.get_current_dir() {
        copy.current_dir(folder);
    }
    copy
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    /// Tries something that fails `failures` times and then succeeds. Returns the outcome and the number of tries.
    fn try_out(failures: u32, limit: Duration) -> (Result<()>, u32) {
        let mut tries = 0;
        let outcome = with_pauses(Duration::ZERO, limit, || {
            tries += 1;
            match tries > failures {
                true => Ok(()),
                false => Err(anyhow!("try {tries}")),
            }
        });
        (outcome, tries)
    }

    #[test]
    fn what_fails_is_tried_three_times() {
        for failures in 0..TRIES_MAX {
            let (outcome, tries) = try_out(failures, MINUTE);
            outcome.unwrap();
            assert_eq!(tries, failures + 1);
        }
        let (outcome, tries) = try_out(TRIES_MAX, MINUTE);
        assert_eq!((outcome.unwrap_err().to_string().as_str(), tries), ("try 3", 3));
    }

    #[test]
    fn what_fails_too_late_is_not_tried_again() {
        let (outcome, tries) = try_out(1, Duration::ZERO);
        outcome.unwrap_err();
        assert_eq!(tries, 1);
    }

    #[test]
    fn each_try_runs_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        command
            .args(["-c", "test -e \"$MARK\" || { touch \"$MARK\"; exit 1; }"])
            .env("MARK", "mark")
            .current_dir(folder.path());
        quiet::run(copy(&command), MINUTE).unwrap_err();
        assert!(folder.path().join("mark").exists());
        quiet::run(copy(&command), MINUTE).unwrap();
    }
}
