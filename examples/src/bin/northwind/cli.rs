//! The command line: `run` for people, the rest for the processes that `run` starts.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::setup::{DatabaseKind, Part, RelayKind};

/// The flag by which a process ends together with the process that started it.
pub(crate) const UNTIL_STDIN_CLOSES: &str = "--until-stdin-closes";

/// Runs a small shop over a transactional outbox, and shows that no message is lost, invented or handled twice.
#[derive(Debug, Parser)]
#[command(name = "northwind")]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Creates databases and a stream, runs service, relays and consumers as processes, and prints the ledger.
    ///
    /// Exit status: 0 if the ledger balances, 2 if the input is malformed (nothing is saved then), 1 for everything else.
    Run(RunArgs),
    /// Saves the orders with their events.
    #[command(hide = true)]
    Service(ProgramArgs),
    /// Publishes the messages that a part recorded.
    #[command(hide = true)]
    Relay {
        /// The part whose outbox is relayed.
        #[arg(long)]
        outbox: Part,
        #[command(flatten)]
        program: ProgramArgs,
    },
    /// Handles the messages of one consumer.
    #[command(hide = true)]
    Consumer {
        /// The consumer.
        part: Part,
        #[command(flatten)]
        program: ProgramArgs,
    },
}

/// The arguments of `run`.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// The database system.
    #[arg(long)]
    pub(crate) database: DatabaseKind,
    /// Address: `sqlite://<empty folder>`, or the address of a server on which databases may be created.
    #[arg(long)]
    pub(crate) database_url: String,
    /// What the relays read; `log` needs PostgreSQL with `wal_level = logical`.
    #[arg(long, default_value = "polling")]
    pub(crate) relay: RelayKind,
    /// The broker; `memory` runs everything as tasks of one process.
    #[arg(long, default_value = "nats")]
    pub(crate) broker: BrokerKind,
    /// Address of the NATS server.
    #[arg(long, default_value = "nats://127.0.0.1:4222")]
    pub(crate) nats_url: String,
    /// An empty folder for logs, notices and the setup; created if it is missing.
    #[arg(long)]
    pub(crate) work_dir: PathBuf,
    /// Orders as CSV: orderID, customerID, orderDate, shippedDate.
    #[arg(long, requires = "lines", conflicts_with = "generate")]
    pub(crate) orders: Option<PathBuf>,
    /// Order lines as CSV: orderID, productID, unitPrice, quantity, discount.
    #[arg(long, requires = "orders")]
    pub(crate) lines: Option<PathBuf>,
    /// Generates this many orders instead of reading files.
    #[arg(long, default_value_t = 200)]
    pub(crate) generate: u32,
    /// Writes inventory.csv, billing.csv and shipments.csv into this folder.
    #[arg(long)]
    pub(crate) export: Option<PathBuf>,
    /// Prints the ledger as one JSON object, and no progress bars.
    #[arg(long)]
    pub(crate) json: bool,
}

/// The arguments of the processes of a run.
#[derive(Debug, Args)]
pub(crate) struct ProgramArgs {
    /// The file that `run` wrote.
    #[arg(long)]
    pub(crate) setup: PathBuf,
    /// End when standard input closes, as it does at the end of the process that started this one.
    #[arg(long)]
    pub(crate) until_stdin_closes: bool,
}

/// A broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum BrokerKind {
    Nats,
    Memory,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
        let flag = UNTIL_STDIN_CLOSES;
        assert!(
            Cli::try_parse_from(["northwind", "relay", "--outbox", "shipping", "--setup", "x", flag]).is_ok()
        );
        let files = [
            "northwind",
            "run",
            "--database",
            "sqlite",
            "--database-url",
            "x",
            "--work-dir",
            "y",
            "--orders",
            "o",
        ];
        assert!(Cli::try_parse_from(files).is_err());
    }
}
