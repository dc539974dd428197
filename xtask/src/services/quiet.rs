//! Runs tools whose output matters only when they fail.

use std::fs::File;
use std::io::{Read as _, Seek as _};
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;

use anyhow::{Context as _, Result, anyhow};

use crate::process::{Manners, Process, words};

/// Runs a tool to its end; a failure carries the end of its output.
pub(super) fn run(command: Command, limit: Duration) -> Result<()> {
    // Interrupting a package manager leaves half-installed packages, so it may take its time to end well.
    run_with(
        command,
        limit,
        Manners {
            signal: Signal::TERM,
            patience: Duration::from_secs(30),
            own_group: true,
        },
    )
}

/// The same for a tool that wants to be stopped in its own way.
pub(super) fn run_with(mut command: Command, limit: Duration, manners: Manners) -> Result<()> {
    let name = words(&command);
    // This file has no name, so it needs no removal.
    let mut log = tempfile::tempfile().context("cannot make a temporary file")?;
    redirect(&mut command, &log)?;
    let process = Process::launch(command, manners)?;
    let status = process.wait_at_most(limit)?;
    if status.is_some_and(|status| status.success()) {
        return Ok(());
    }
    let mut text = Vec::new();
    log.rewind()
        .and_then(|()| log.read_to_end(&mut text))
        .with_context(|| format!("cannot read the output of {name}"))?;
    let how = status.map_or_else(
        || format!("did not end within {limit:?}"),
        |status| format!("failed ({status})"),
    );
    Err(anyhow!(
        "{name} {how}; its last words:\n{}",
        tail(&String::from_utf8_lossy(&text))
    ))
}

/// Sends both outputs of a command to one file.
pub(super) fn redirect(command: &mut Command, log: &File) -> Result<()> {
    let clone = || log.try_clone().context("cannot share a log file");
    command.stdout(clone()?).stderr(clone()?);
    Ok(())
}

/// The end of a log, where a program prints the reason of its failure.
pub(super) fn tail(log: &str) -> String {
    let lines: Vec<&str> = log.lines().filter(|line| !line.trim().is_empty()).collect();
    let last: Vec<String> = lines[lines.len().saturating_sub(12)..]
        .iter()
        .map(|line| format!("    {line}"))
        .collect();
    if last.is_empty() {
        "    (nothing)".to_owned()
    } else {
        last.join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn a_failure_shows_the_last_words() {
        let failure = run(shell("echo out; echo err >&2; exit 2"), Duration::from_secs(60)).unwrap_err();
        assert!(failure.to_string().ends_with("    out\n    err"), "{failure}");
    }

    #[test]
    fn a_tool_that_hangs_is_stopped() {
        let failure = run(shell("sleep 600"), Duration::from_millis(100)).unwrap_err();
        assert!(failure.to_string().contains("did not end within"), "{failure}");
    }
}
