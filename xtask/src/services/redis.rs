//! A private Redis.
//!
//! It keeps an append-only file, which a deduplication store needs, but never syncs it to disk.

use std::path::PathBuf;
use std::time::Duration;

use rustix::process::Signal;

use anyhow::{Result, anyhow};

use crate::process::{Manners, tied};
use crate::services::folder::Folder;
use crate::services::install;
use crate::services::programs::{find, label};
use crate::services::server::{Recipe, Server, start};

const NAME: &str = "Redis";
const PROGRAM: &str = "redis-server";
const MANNERS: Manners = Manners {
    signal: Signal::TERM,
    patience: Duration::from_secs(5),
    own_group: true,
};

pub(super) fn launch(folder: &Folder) -> Result<Server> {
    let program = program()?;
    let home = folder.subfolder("redis", None)?;
    let command = |port: u16| {
        let mut command = tied(&program);
        // Without a file to read it has no configuration but this one.
        command.current_dir(&home).args(["--port", &port.to_string()]);
        command.args(["--bind", "127.0.0.1", "--save", "", "--appendfsync", "no"]);
        command.args(["--appendonly", "yes"]).arg("--dir").arg(&home);
        command
    };
    let recipe = Recipe {
        name: NAME,
        manners: MANNERS,
        log: &folder.path().join("redis.log"),
        command: &command,
        is_ready: &|_, log| log.contains("Ready to accept connections"),
    };
    let (process, port) = start(&recipe)?;
    Ok(Server {
        process,
        url: format!("redis://127.0.0.1:{port}"),
        label: label(NAME, &program),
    })
}

/// Finds the program, or installs Debian's package of it.
pub(super) fn program() -> Result<PathBuf> {
    if find(PROGRAM).is_none() {
        install::debian_package(PROGRAM)?;
    }
    find(PROGRAM).ok_or_else(|| anyhow!("the package {PROGRAM} holds no {PROGRAM}"))
}
