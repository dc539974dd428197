//! `cargo xtask postgres18`: the tests that use PostgreSQL, on version 18.
//!
//! It runs `cargo xtask test` once more, with the programs of version 18 first on the PATH.

use std::env;
use std::process::ExitCode;

use clap::Args;

use anyhow::{Context as _, Result};

use crate::process::{self, tied};
use crate::services::postgres18_programs;
use crate::workspace::Workspace;

#[derive(Args, Debug)]
pub(crate) struct Options {
    /// Arguments for cargo test. Default: the log relay and the store, `-p outbox-log -p outbox-sea-orm -p outbox-stress`.
    #[arg(last = true)]
    arguments: Vec<String>,
}

/// What depends on the version of PostgreSQL.
const PACKAGES: [&str; 6] = ["-p", "outbox-log", "-p", "outbox-sea-orm", "-p", "outbox-stress"];

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let workspace = Workspace::load()?;
    let programs = postgres18_programs(&workspace.tools())?;
    let path = env::var_os("PATH").unwrap_or_default();
    let path = env::join_paths([programs].into_iter().chain(env::split_paths(&path)))
        .context("the PATH cannot be extended")?;
    let task = env::current_exe().context("this program cannot be found")?;
    let mut command = tied(task);
    command.args(["test", "--"]).env("PATH", path);
    // A server that is given by its address has a version of its own.
    for variable in [
        "OUTBOX_TEST_POSTGRES_URL",
        "OUTBOX_TEST_POSTGRES_LOGICAL_URL",
        "OUTBOX_TEST_POSTGRES_BIN",
    ] {
        command.env_remove(variable);
    }
    match options.arguments.is_empty() {
        true => command.args(PACKAGES),
        false => command.args(&options.arguments),
    };
    process::run(&mut command)
}
