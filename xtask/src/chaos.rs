//! `cargo xtask chaos`: starts a database and a broker, builds the program `chaos` in release mode, and lets it torment relays or consumers.
//!
//! It takes minutes, so it is no test. The program in `stress` decides on the faults and checks the result.

use std::process::ExitCode;

use clap::{Args, ValueEnum};

use anyhow::{Result, anyhow};

use crate::process::{Manners, Process, tied};
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

impl Options {
    fn backend(&self) -> Result<Option<Backend>> {
        match (self.database, self.what) {
            (Database::Sqlite, What::Inbox) => Ok(None),
            (Database::MariaDb | Database::Sqlite, What::Log) => Err(anyhow!(
                "only PostgreSQL's log can be read; use --database postgres"
            )),
            (Database::Postgres, What::Log) => Ok(Some(Backend::PostgresProgram)),
            (Database::Postgres, _) => Ok(Some(Backend::Postgres)),
            (Database::MariaDb, _) => Ok(Some(Backend::MariaDb)),
            (Database::Sqlite, What::Relay) => Err(anyhow!(
                "several relays on one SQLite file are not supported; use --database postgres or mariadb"
            )),
        }
    }
}

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let database = options.backend()?;
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
    command.args(&options.arguments);
    let status = Process::launch(command, Manners::FOREGROUND)?.wait()?;
    Ok(program::forward(status))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        options: Options,
    }

    #[track_caller]
    fn check(arguments: &str, what: What, backend: Option<Option<Backend>>) {
        let words = std::iter::once("chaos").chain(arguments.split_whitespace());
        let options = Cli::try_parse_from(words).unwrap().options;
        assert_eq!((options.what, options.backend().ok()), (what, backend));
    }

    #[test]
    fn relays_need_a_server_and_consumers_do_not() {
        check("", What::Relay, Some(Some(Backend::Postgres)));
        check(
            "--database mariadb -- --relays 2",
            What::Relay,
            Some(Some(Backend::MariaDb)),
        );
        check("inbox", What::Inbox, Some(Some(Backend::Postgres)));
        check("inbox --database sqlite -- --only kills", What::Inbox, Some(None));
        check("relay --database sqlite", What::Relay, None);
        check("log", What::Log, Some(Some(Backend::PostgresProgram)));
        check("log --database mariadb", What::Log, None);
    }
}
