//! `cargo xtask debezium`: Debezium's engine over our tables, by `examples/debezium/check.py`.
//!
//! It downloads 200 MB and takes minutes, so it is no test: run it every night. The script makes the tables, and decides what is right.

use std::process::ExitCode;

use clap::Args;

use anyhow::Result;

use crate::process::{self, tied};
use crate::services::{Backend, Debezium, Services};
use crate::workspace::Workspace;

#[derive(Args, Debug)]
pub(crate) struct Options {
    /// The parts to check, for example `messages moving`. Default: all.
    parts: Vec<String>,
}

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let workspace = Workspace::load()?;
    let debezium = Debezium::install(&workspace)?;
    let services = Services::start(&[Backend::PostgresLogical], &workspace)?;
    let mut command = tied(&debezium.python);
    command
        .arg(workspace.root.join("examples/debezium/check.py"))
        .args(&options.parts)
        .env("DATABASE_URL", services.url(Backend::PostgresLogical)?)
        .env("DEBEZIUM_JARS", &debezium.jars)
        .env("PYTHONPATH", &debezium.modules)
        .env("PYTHONDONTWRITEBYTECODE", "1");
    process::run(&mut command)
}
