//! Starts one server on a free port and waits until it is ready.
//!
//! Another program may take the port before the server. The server then fails to bind, and gets
//! another port. Readiness is read from the server's output or files, never from the port alone:
//! another server may answer there.

use std::fs::{self, File};
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use crate::process::{Manners, Process};
use crate::services::programs::{redirect, tail};

const READY_LIMIT: Duration = Duration::from_secs(90);
const PORT_ATTEMPTS: u32 = 5;
const POLL: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub(super) struct Server {
    pub(super) process: Process,
    pub(super) url: String,
}

pub(super) struct Recipe<'a> {
    pub(super) manners: Manners,
    pub(super) log: &'a Path,
    pub(super) command: &'a dyn Fn(u16) -> Command,
    pub(super) is_ready: &'a dyn Fn(u16, &str) -> bool,
}

pub(super) fn start(recipe: &Recipe<'_>) -> Result<(Process, u16)> {
    start_on(recipe, &mut free_port)
}

fn start_on(recipe: &Recipe<'_>, next_port: &mut dyn FnMut() -> Result<u16>) -> Result<(Process, u16)> {
    let mut attempt = 1;
    loop {
        let port = next_port()?;
        let log =
            File::create(recipe.log).with_context(|| format!("cannot write {}", recipe.log.display()))?;
        let mut command = (recipe.command)(port);
        redirect(&mut command, &log)?;
        let process = Process::launch(command, recipe.manners)?;
        let log = wait_until_ready(recipe, &process, port)?;
        let Some(log) = log else {
            return Ok((process, port));
        };
        if !log.to_lowercase().contains("in use") || attempt == PORT_ATTEMPTS {
            bail!("the server ended at once; its log ends with:\n{}", tail(&log));
        }
        attempt += 1;
    }
}

fn wait_until_ready(recipe: &Recipe<'_>, process: &Process, port: u16) -> Result<Option<String>> {
    let deadline = Instant::now() + READY_LIMIT;
    while Instant::now() < deadline {
        let has_ended = process.exited()?.is_some();
        let log = fs::read(recipe.log).unwrap_or_default();
        let log = String::from_utf8_lossy(&log).into_owned();
        if has_ended {
            return Ok(Some(log));
        }
        if (recipe.is_ready)(port, &log) {
            return Ok(None);
        }
        thread::sleep(POLL);
    }
    let log = fs::read(recipe.log).unwrap_or_default();
    let log = String::from_utf8_lossy(&log);
    bail!(
        "the server was not ready within {READY_LIMIT:?}; its log ends with:\n{}",
        tail(&log)
    )
}

pub(crate) fn free_port() -> Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
    let address = listener.and_then(|listener| listener.local_addr());
    Ok(address.context("no free port on 127.0.0.1")?.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start_fake(ports: &[u16]) -> Result<u16> {
        let folder = tempfile::tempdir().unwrap();
        let command = |port: u16| {
            let mut command = Command::new("sh");
            command.arg("-c").arg(match port {
                1 => "echo 'bind: Address already in use'; exit 1",
                2 => "echo 'no such folder'; exit 1",
                _ => "echo serving; sleep 600",
            });
            command
        };
        let recipe = Recipe {
            manners: Manners::GROUP,
            log: &folder.path().join("log"),
            command: &command,
            is_ready: &|_, log| log.contains("serving"),
        };
        let mut ports = ports.iter().copied();
        start_on(&recipe, &mut || Ok(ports.next().unwrap())).map(|(_, port)| port)
    }

    #[test]
    fn lost_port_is_replaced_some_times() {
        assert_eq!(start_fake(&[1, 1, 3]).unwrap(), 3);
        assert!(start_fake(&[1; 5]).is_err());
        let failure = start_fake(&[2]).unwrap_err();
        assert!(failure.to_string().contains("no such folder"), "{failure}");
    }
}
