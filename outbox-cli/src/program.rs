//! The command line of the program `outbox`.

use clap::Parser;

use crate::commands::OutboxCommand;
use crate::failure::{CommandError, Outcome};

/// Publishes recorded events, and explains missing deliveries.
#[derive(Debug, Parser)]
#[command(name = "outbox", version)]
pub struct Program {
    #[command(subcommand)]
    command: OutboxCommand,
}

impl Program {
    /// Runs the command. Requires a Tokio runtime.
    ///
    /// # Errors
    ///
    /// As [`OutboxCommand::run`].
    ///
    /// # Cancellation
    ///
    /// As [`OutboxCommand::run`].
    pub async fn run(self) -> Result<Outcome, CommandError> {
        self.command.run().await
    }
}
