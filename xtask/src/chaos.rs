//! `cargo xtask chaos`: starts a database and a broker, and runs the program `chaos` in release
//! mode.

use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::Args;

use crate::process::{self, tied};
use crate::program;
use crate::services::{Backend, Services};
use crate::workspace::Workspace;

#[derive(Args, Debug)]
pub(crate) struct Options {
    /// Processes to kill and pause: polling relays, log relays (and their servers), or consumers.
    #[arg(value_parser = ["relay", "log", "inbox"], default_value = "relay")]
    what: String,
    /// The database that holds the outbox or the inbox. SQLite is for `inbox` only.
    #[arg(long, value_parser = ["postgres", "mariadb", "sqlite"], default_value = "postgres")]
    database: String,
    /// Arguments for the program, for example `-- --messages 50000 --relays 2 --seed 7`, or `--
    /// --only kills --kills 50` for an inbox.
    #[arg(last = true)]
    arguments: Vec<String>,
}

fn backend(what: &str, database: &str) -> Result<Option<Backend>> {
    match (database, what) {
        ("postgres", "log") => Ok(Some(Backend::PostgresProgram)),
        ("postgres", _) => Ok(Some(Backend::Postgres)),
        (_, "log") => bail!("only PostgreSQL's log can be read; use --database postgres"),
        ("mariadb", _) => Ok(Some(Backend::MariaDb)),
        (_, "relay") => bail!("several relays on one SQLite file are not supported"),
        _ => Ok(None),
    }
}

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let what = options.what.as_str();
    let database = backend(what, &options.database)?;
    let workspace = Workspace::load()?;
    let program = program::build(&workspace, program::STRESS, "chaos", &["--release"])?;
    let nats = match what {
        "log" => Backend::NatsProgram,
        _ => Backend::Nats,
    };
    let wanted: Vec<Backend> = database.into_iter().chain([nats]).collect();
    let services = Services::start(&wanted, &workspace)?;
    let database = database.map_or(Ok("sqlite"), |database| services.url(database))?;
    let nats = services.url(nats)?;
    let mut command = tied(program);
    if what == "log" {
        command.args(["relay", "--relay", "log", "--hand-overs", "12", "--faults", "120"]);
        command.args(["--postgres-program", database, "--nats-program", nats]);
    } else {
        command.args([what, "--database-url", database, "--nats-url", nats]);
    }
    process::run(command.args(&options.arguments))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsupported_databases_are_refused() {
        assert!(backend("relay", "sqlite").is_err());
        assert!(backend("log", "mariadb").is_err());
        assert_eq!(backend("inbox", "sqlite").unwrap(), None);
    }
}
