//! `cargo xtask chaos`: starts a database and a broker, builds the program `chaos` in release mode, and lets it torment relays.
//!
//! Takes minutes, so it is no test. What is done and how it is checked is the business of the program in `examples`.

use std::process::ExitCode;

use clap::{Args, ValueEnum};

use crate::failure::Result;
use crate::process::{Manners, Process, tied};
use crate::program;
use crate::services::{Backend, Services};
use crate::workspace::Workspace;

#[derive(Args, Debug)]
pub(crate) struct Options {
    /// The database that holds the outbox.
    #[arg(long, value_enum, default_value_t = Database::Postgres)]
    database: Database,
    /// Arguments for the program, for example `-- --messages 50000 --relays 2 --seed 7`.
    #[arg(last = true)]
    arguments: Vec<String>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
enum Database {
    Postgres,
    #[value(name = "mariadb")]
    MariaDb,
}

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let workspace = Workspace::load()?;
    let program = program::build(&workspace, "chaos", &["--release"])?;
    let database = match options.database {
        Database::Postgres => Backend::Postgres,
        Database::MariaDb => Backend::MariaDb,
    };
    let services = Services::start(&[database, Backend::Nats], &workspace)?;
    let mut command = tied(program);
    command
        .args(["relay", "--database-url", services.url(database)?])
        .args(["--nats-url", services.url(Backend::Nats)?])
        .args(&options.arguments);
    let status = Process::launch(command, Manners::FOREGROUND)?.wait()?;
    Ok(program::forward(status))
}
