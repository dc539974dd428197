//! Finds programs, their versions and users, and runs tools.

use std::env;
use std::fs::File;
use std::io::{Read as _, Seek as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::process::{Manners, Process, tied, words};

const SYSTEM_FOLDERS: [&str; 3] = ["/usr/local/sbin", "/usr/sbin", "/sbin"];

#[derive(Clone, Copy, Debug)]
pub(super) struct User {
    pub(super) uid: u32,
    pub(super) gid: u32,
}

pub(super) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// The user for a server that refuses root: `name` if it exists, else `nobody`. `None` unless this
/// task runs as root.
pub(super) fn unprivileged(name: &str) -> Result<Option<User>> {
    if !is_root() {
        return Ok(None);
    }
    let user = [name, "nobody"].into_iter().find_map(lookup_user);
    let advice = || format!("neither the user {name} nor nobody exists; add one (useradd --system {name})");
    user.map(Some).with_context(advice)
}

fn lookup_user(name: &str) -> Option<User> {
    let id = |option: &str| -> Option<u32> {
        let output = Command::new("id").args([option, name]).output().ok()?;
        String::from_utf8(output.stdout).ok()?.trim().parse().ok()
    };
    let (uid, gid) = (id("-u")?, id("-g")?);
    Some(User { uid, gid })
}

/// A command that runs as `user`. A server that changes its user itself would lose the signal of
/// [`tied`].
pub(super) fn tied_as(program: &Path, user: Option<User>) -> Command {
    let mut command = tied(program);
    if let Some(user) = user {
        command.uid(user.uid).gid(user.gid);
    }
    command
}

pub(crate) fn find(program: &str) -> Option<PathBuf> {
    find_all(program).next()
}

pub(super) fn find_all(program: &str) -> impl Iterator<Item = PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let folders: Vec<PathBuf> = env::split_paths(&path).collect();
    let folders = folders.into_iter().chain(SYSTEM_FOLDERS.map(PathBuf::from));
    let paths = folders.map(move |folder| folder.join(program));
    paths.filter(|path| is_executable(path))
}

pub(super) fn is_executable(path: &Path) -> bool {
    path.metadata()
        .is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

pub(super) fn version_of(program: &Path) -> Option<String> {
    let mut command = Command::new(program);
    command
        .arg("--version")
        .stdin(Stdio::null())
        .stderr(Stdio::null());
    version_in(&String::from_utf8_lossy(&command.output().ok()?.stdout))
}

fn version_in(text: &str) -> Option<String> {
    let mut words = text.split(|letter: char| !letter.is_ascii_digit() && letter != '.');
    let version =
        words.find(|word| word.starts_with(|first: char| first.is_ascii_digit()) && word.contains('.'));
    version.map(str::to_owned)
}

pub(super) fn run_quietly(mut command: Command, limit: Duration, manners: Manners) -> Result<()> {
    let name = words(&command);
    let mut log = tempfile::tempfile().context("cannot make a temporary file")?;
    redirect(&mut command, &log)?;
    let status = Process::launch(command, manners)?.wait_at_most(limit)?;
    let how = match status {
        Some(status) if status.success() => return Ok(()),
        Some(status) => format!("failed ({status})"),
        None => format!("did not end within {limit:?}"),
    };
    let mut text = Vec::new();
    let read = log.rewind().and_then(|()| log.read_to_end(&mut text));
    read.with_context(|| format!("cannot read the output of {name}"))?;
    bail!(
        "{name} {how}; its output ends with:\n{}",
        tail(&String::from_utf8_lossy(&text))
    )
}

pub(super) fn redirect(command: &mut Command, log: &File) -> Result<()> {
    let clone = || log.try_clone().context("cannot share a log file");
    command.stdout(clone()?).stderr(clone()?);
    Ok(())
}

pub(super) fn tail(log: &str) -> String {
    let lines: Vec<&str> = log.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(12)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_found_in_the_output_of_programs() {
        let check = |text, expected| assert_eq!(version_in(text).as_deref(), expected, "{text}");
        check("nats-server: v2.9.10", Some("2.9.10"));
        check("nats-server: v2.12.0-RC.3", Some("2.12.0"));
        check(
            "postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)",
            Some("15.18"),
        );
        check("command not found.", None);
    }

    #[test]
    fn failed_or_hanging_tool_is_reported() {
        let run = |script: &str, limit| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            run_quietly(command, Duration::from_millis(limit), Manners::GROUP)
        };
        let failure = run("echo out; echo err >&2; exit 2", 60_000).unwrap_err();
        assert!(failure.to_string().ends_with("out\nerr"), "{failure}");
        let failure = run("sleep 600", 100).unwrap_err();
        assert!(failure.to_string().contains("did not end within"), "{failure}");
    }
}
