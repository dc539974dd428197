//! Finds programs, their versions and the users they should run as. Installs nothing.

use std::env;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Result, anyhow};

use crate::process::tied;

/// Servers often live where only the administrator's PATH leads.
const SYSTEM_FOLDERS: [&str; 3] = ["/usr/local/sbin", "/usr/sbin", "/sbin"];

/// The user a server runs as.
#[derive(Clone, Copy, Debug)]
pub(crate) struct User {
    pub(crate) name: &'static str,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

pub(super) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// The user that a server which refuses root should run as: `name` if it exists, else `nobody`.
///
/// `None` when we are not root: then it runs as we do.
pub(super) fn unprivileged(name: &'static str) -> Result<Option<User>> {
    if !is_root() {
        return Ok(None);
    }
    let user = [name, "nobody"].into_iter().find_map(lookup_user);
    let missing = || anyhow!("neither the user {name} nor nobody exists; add one (useradd --system {name})");
    user.map(Some).ok_or_else(missing)
}

fn lookup_user(name: &'static str) -> Option<User> {
    let id = |option: &str| -> Option<u32> {
        let output = Command::new("id")
            .args([option, name])
            .stderr(Stdio::null())
            .output()
            .ok()?;
        String::from_utf8(output.stdout).ok()?.trim().parse().ok()
    };
    Some(User {
        name,
        uid: id("-u")?,
        gid: id("-g")?,
    })
}

/// A command that runs as `user`, or as we do.
///
/// Some servers could change their user themselves, but then the kernel would forget to kill them when we die.
pub(super) fn tied_as(program: &Path, user: Option<User>) -> Command {
    let mut command = tied(program);
    if let Some(user) = user {
        command.uid(user.uid).gid(user.gid);
    }
    command
}

/// The full path of a program on the PATH or in a folder for system programs.
pub(super) fn find(program: &str) -> Option<PathBuf> {
    find_all(program).next()
}

/// All paths of a program. The first is the one that a shell would run.
pub(super) fn find_all(program: &str) -> impl Iterator<Item = PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let folders: Vec<PathBuf> = env::split_paths(&path)
        .chain(SYSTEM_FOLDERS.map(PathBuf::from))
        .collect();
    folders
        .into_iter()
        .map(move |folder| folder.join(program))
        .filter(|path| is_executable(path))
}

pub(super) fn find_in(program: &str, folders: impl IntoIterator<Item = PathBuf>) -> Option<PathBuf> {
    folders
        .into_iter()
        .map(|folder| folder.join(program))
        .find(|path| is_executable(path))
}

pub(super) fn is_executable(path: &Path) -> bool {
    path.metadata()
        .is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

/// Whether a command knows its own version, which a missing module or a broken installation does not.
pub(super) fn answers(words: &[&str]) -> bool {
    let Some((program, arguments)) = words.split_first() else {
        return false;
    };
    let mut probe = Command::new(program);
    probe.args(arguments).arg("--version");
    probe
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    probe.status().is_ok_and(|status| status.success())
}

/// The version that a program prints for `--version`.
pub(super) fn version_of(program: &Path) -> Option<Version> {
    let output = Command::new(program)
        .arg("--version")
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .ok()?;
    Version::find_in(&String::from_utf8_lossy(&output.stdout))
}

/// A program's name and version, for people.
pub(super) fn label(name: &str, program: &Path) -> String {
    version_of(program).map_or_else(|| name.to_owned(), |version| format!("{name} {version}"))
}

/// A version as far as we compare it.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct Version {
    pub(super) major: u32,
    pub(super) minor: u32,
    /// PostgreSQL has only two numbers.
    pub(super) patch: Option<u32>,
}

impl Version {
    /// The first thing in a sentence that looks like a version: `nats-server: v2.9.10`, `postgres (PostgreSQL) 15.18`.
    pub(super) fn find_in(text: &str) -> Option<Self> {
        text.split(|character: char| !character.is_ascii_digit() && character != '.')
            .find_map(|word| {
                let mut numbers = word.split('.').map(str::parse::<u32>);
                let major = numbers.next()?.ok()?;
                let minor = numbers.next()?.ok()?;
                let patch = numbers.next().and_then(|patch| patch.ok());
                Some(Self { major, minor, patch })
            })
    }
}

impl std::fmt::Display for Version {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}.{}", self.major, self.minor)?;
        self.patch.map_or(Ok(()), |patch| write!(formatter, ".{patch}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: Option<&str>) {
        let found = Version::find_in(text).map(|version| version.to_string());
        assert_eq!(found.as_deref(), expected, "{text}");
    }

    #[test]
    fn versions_are_found_in_what_programs_print() {
        check("nats-server: v2.9.10", Some("2.9.10"));
        check("nats-server: v2.15.1\n", Some("2.15.1"));
        check("nats-server: v2.12.0-RC.3", Some("2.12.0"));
        check(
            "postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)",
            Some("15.18"),
        );
        check(
            "mariadbd  Ver 10.11.19-MariaDB-0+deb12u1 for debian-linux-gnu on x86_64 (Debian 12)",
            Some("10.11.19"),
        );
        check("command not found.", None);
        check("", None);
    }

    #[test]
    fn versions_compare_as_numbers() {
        assert!(Version::find_in("v2.9.10") < Version::find_in("v2.15.1"));
        assert!(Version::find_in("v2.9.9") < Version::find_in("v2.9.10"));
    }

    #[test]
    fn a_program_is_found_where_it_is_executable() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("program");
        std::fs::write(&path, "#!/bin/sh\n").unwrap();
        assert_eq!(find_in("program", [folder.path().to_path_buf()]), None);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(find_in("program", [folder.path().to_path_buf()]), Some(path));
    }
}
