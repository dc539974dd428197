//! The command line: `run` for people, `program` for the processes that `run` starts.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::input::Source;
use crate::setup::{RelayKind, Role};

/// Runs a small shop over a transactional outbox, and shows that no message is lost, invented or
/// handled twice.
#[derive(Debug, Parser)]
#[command(name = "northwind")]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Creates databases and a stream, runs service, relays and consumers as processes, and prints
    /// the ledger.
    ///
    /// Exit status: 0 if the ledger balances, 2 if the input is malformed (nothing is saved then),
    /// 1 for everything else.
    Run(RunArgs),
    /// Runs a program of the shop.
    #[command(hide = true)]
    Program(ProgramArgs),
}

/// The arguments of `run`.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// A server of PostgreSQL, MariaDB or MySQL on which databases may be created. Default: SQLite
    /// files in the work folder.
    #[arg(long)]
    pub(crate) database_url: Option<String>,
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
    #[command(flatten)]
    pub(crate) source: Source,
    /// Writes inventory.csv, billing.csv and shipments.csv into this folder.
    #[arg(long)]
    pub(crate) export: Option<PathBuf>,
    /// Prints the ledger as one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

/// The arguments of the processes of a run.
#[derive(Debug, Args)]
pub(crate) struct ProgramArgs {
    /// The program, for example `relay-shipping`.
    pub(crate) role: Role,
    /// The file that `run` wrote.
    pub(crate) setup: PathBuf,
}

/// A broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum BrokerKind {
    Nats,
    Memory,
}
