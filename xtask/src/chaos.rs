//! `cargo xtask chaos`: starts a database and a broker, builds the program `chaos` in release mode, and lets it torment relays or consumers.
//!
//! It takes minutes, so it is no test. The program in `stress` decides on the faults and checks the result.

use std::process::ExitCode;

use clap::{Args, ValueEnum};

use crate::failure::{Failure, Result};
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
    Relay,
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
            (Database::Postgres, _) => Ok(Some(Backend::Postgres)),
            (Database::MariaDb, _) => Ok(Some(Backend::MariaDb)),
            (Database::Sqlite, What::Inbox) => Ok(None),
            (Database::Sqlite, What::Relay) => Err(Failure::new(
                "several relays on one SQLite file are not supported; use --database postgres or mariadb",
            )),
        }
    }
}

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let database = options.backend()?;
    let workspace = Workspace::load()?;
    let program = program::build(&workspace, program::STRESS, "chaos", &["--release"])?;
    let wanted: Vec<Backend> = database.into_iter().chain([Backend::Nats]).collect();
    let services = Services::start(&wanted, &workspace)?;
    let mut command = tied(program);
    command.arg(match options.what {
        What::Relay => "relay",
        What::Inbox => "inbox",
    });
    // The program makes a file of its own.
    let database_url = database.map_or(Ok("sqlite"), |database| services.url(database))?;
    command
        .args(["--database-url", database_url])
        .args(["--nats-url", services.url(Backend::Nats)?])
        .args(&options.arguments);
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
    }
}
