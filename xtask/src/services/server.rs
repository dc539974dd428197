//! Starts one server on a free port and waits until it answers.
//!
//! A free port is found by asking the kernel for one and giving it back, so somebody else may take it before the
//! server does. The server then fails to bind, and gets another port. Readiness is read from what *our* server wrote
//! or said, never from the port alone: behind a port that was lost somebody else's server answers too.

use std::fs::{self, File};
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use crate::process::{Manners, Process};
use crate::services::quiet;

/// A server on a loaded machine with a slow disk is ready long before this.
const READY_LIMIT: Duration = Duration::from_secs(90);
const PORT_ATTEMPTS: u32 = 5;
const POLL: Duration = Duration::from_millis(50);

/// A server of ours; dropping it stops it.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) process: Process,
    pub(super) url: String,
    /// Name and version, for people.
    pub(super) label: String,
}

/// How to run one kind of server.
pub(super) struct Recipe<'a> {
    pub(super) name: &'a str,
    pub(super) manners: Manners,
    /// Receives what the server prints.
    pub(super) log: &'a Path,
    pub(super) command: &'a dyn Fn(u16) -> Command,
    /// Whether the server on this port is ready, given its log so far.
    pub(super) is_ready: &'a dyn Fn(u16, &str) -> bool,
}

/// Starts the server and returns it with its port once it is ready.
pub(super) fn start(recipe: &Recipe<'_>) -> Result<(Process, u16)> {
    start_on(recipe, &mut free_port)
}

fn start_on(recipe: &Recipe<'_>, next_port: &mut dyn FnMut() -> Result<u16>) -> Result<(Process, u16)> {
    let name = recipe.name;
    let mut attempt = 1;
    loop {
        let port = next_port()?;
        let process = launch(recipe, port)?;
        match wait_until_ready(recipe, &process, port)? {
            Outcome::Ready => return Ok((process, port)),
            Outcome::Ended(log) if log.to_lowercase().contains("in use") && attempt < PORT_ATTEMPTS => {
                attempt += 1
            }
            Outcome::Ended(log) => {
                bail!("{name} ended at once; its last words:\n{}", quiet::tail(&log));
            }
            Outcome::Silent(log) => {
                let log = quiet::tail(&log);
                bail!(
                    "{name} was not ready within {READY_LIMIT:?}; is the machine overloaded? its last words:\n{log}"
                );
            }
        }
    }
}

enum Outcome {
    Ready,
    Ended(String),
    Silent(String),
}

fn launch(recipe: &Recipe<'_>, port: u16) -> Result<Process> {
    let log = File::create(recipe.log).with_context(|| format!("cannot write {}", recipe.log.display()))?;
    let mut command = (recipe.command)(port);
    quiet::redirect(&mut command, &log)?;
    Process::launch(command, recipe.manners)
}

fn wait_until_ready(recipe: &Recipe<'_>, process: &Process, port: u16) -> Result<Outcome> {
    let deadline = Instant::now() + READY_LIMIT;
    loop {
        let has_ended = process.exited()?.is_some();
        let log = fs::read(recipe.log)
            .map(|log| String::from_utf8_lossy(&log).into_owned())
            .unwrap_or_default();
        if has_ended {
            return Ok(Outcome::Ended(log));
        }
        if (recipe.is_ready)(port, &log) {
            return Ok(Outcome::Ready);
        }
        if Instant::now() >= deadline {
            return Ok(Outcome::Silent(log));
        }
        thread::sleep(POLL);
    }
}

fn free_port() -> Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
    let address = listener.and_then(|listener| listener.local_addr());
    Ok(address.context("no free port on 127.0.0.1")?.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that fails on port 1 like one whose port was taken, and runs on every other port.
    fn fake(port: u16) -> Command {
        let mut command = Command::new("sh");
        let script = match port {
            1 => "echo 'bind: Address already in use'; exit 1",
            2 => "echo 'no such folder'; exit 1",
            _ => "echo serving; sleep 600",
        };
        command.args(["-c", script]);
        command
    }

    fn start_fake(ports: &[u16]) -> Result<u16> {
        let folder = tempfile::tempdir().unwrap();
        let recipe = Recipe {
            name: "fake",
            manners: Manners::GROUP,
            log: &folder.path().join("log"),
            command: &fake,
            // Not "ready", which "already in use" contains.
            is_ready: &|_, log| log.contains("serving"),
        };
        let mut ports = ports.iter().copied();
        start_on(&recipe, &mut || Ok(ports.next().unwrap())).map(|(_, port)| port)
    }

    #[test]
    fn a_lost_port_is_replaced() {
        assert_eq!(start_fake(&[1, 1, 3]).unwrap(), 3);
    }

    #[test]
    fn ports_are_not_tried_forever() {
        assert!(start_fake(&[1; 5]).is_err());
    }

    #[test]
    fn another_failure_is_reported_at_once() {
        let failure = start_fake(&[2]).unwrap_err();
        assert!(failure.to_string().contains("no such folder"), "{failure}");
    }
}
