//! `cargo xtask chaos`: starts a database and a broker, builds the program `chaos` in release mode, and lets it torment
//! relays or consumers.
//!
//! It takes minutes, so it is no test. The program in `stress` decides on the faults and checks the result.

use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};

use crate::process::{self, tied};
use crate::program;
use crate::services::{Backend, Services};
use crate::workspace::Workspace;

#[derive(Args, Debug)]
pub(crate) struct Options {
    /// The processes to torment.
    #[arg(value_enum, default_value_t = What::Relay)]
    what: What,
    /// The database that holds the outbox or the inbox.
    #[arg(long, value_enum, default_value_t = Database::Postgres)]
    database: Database,
    /// Arguments for the program, for example `-- --messages 50000 --relays 2 --seed 7`, or `-- --only kills --kills 50` for an inbox.
    #[arg(last = true)]
    arguments: Vec<String>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
enum What {
    /// Polling relays.
    Relay,
    /// Log relays, with polling relays beside them for the hand-overs. PostgreSQL and nats-server are killed as well.
    Log,
    Inbox,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
enum Database {
    Postgres,
    #[value(name = "mariadb")]
    MariaDb,
    /// Inbox only.
    Sqlite,
}

/// The server of the database, if it needs one.
fn backend(what: What, database: Database) -> Result<Option<Backend>> {
    match (database, what) {
        (Database::Postgres, What::Log) => Ok(Some(Backend::PostgresProgram)),
        (Database::Postgres, _) => Ok(Some(Backend::Postgres)),
        (Database::MariaDb, What::Relay | What::Inbox) => Ok(Some(Backend::MariaDb)),
        (Database::Sqlite, What::Inbox) => Ok(None),
        (_, What::Log) => bail!("only PostgreSQL's log can be read; use --database postgres"),
        (Database::Sqlite, What::Relay) => {
            bail!("several relays on one SQLite file are not supported; use --database postgres or mariadb")
        }
    }
}

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let database = backend(options.what, options.database)?;
    let workspace = Workspace::load()?;
    let program = program::build(&workspace, program::STRESS, "chaos", &["--release"])?;
    let nats = match options.what {
        What::Log => Backend::NatsProgram,
        What::Relay | What::Inbox => Backend::Nats,
    };
    let wanted: Vec<Backend> = database.into_iter().chain([nats]).collect();
    let services = Services::start(&wanted, &workspace)?;
    // Without a database the program makes a file of its own.
    let database = database.map_or(Ok("sqlite"), |database| services.url(database))?;
    let nats = services.url(nats)?;
    let mut command = tied(program);
    match options.what {
        What::Relay => command.args(["relay", "--database-url", database, "--nats-url", nats]),
        What::Inbox => command.args(["inbox", "--database-url", database, "--nats-url", nats]),
        What::Log => {
            command.args(["relay", "--relay", "log", "--hand-overs", "12", "--faults", "120"]);
            command.args(["--postgres-program", database, "--nats-program", nats])
        }
    };
    process::run(command.args(&options.arguments))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsupported_databases_are_refused() {
        assert!(backend(What::Relay, Database::Sqlite).is_err());
        assert!(backend(What::Log, Database::MariaDb).is_err());
        assert_eq!(backend(What::Inbox, Database::Sqlite).unwrap(), None);
    }
}
