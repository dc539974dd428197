//! The program `outbox`. All it does is in the library.

use std::process::ExitCode;

use clap::Parser;
use outbox_cli::OutboxCommand;

/// Publishes what services record in their databases, and says why something does not arrive.
#[derive(Debug, Parser)]
#[command(name = "outbox", version)]
struct Program {
    #[command(subcommand)]
    command: OutboxCommand,
}

#[tokio::main]
async fn main() -> ExitCode {
    outbox_cli::exit_code(Program::parse().command.run().await)
}
