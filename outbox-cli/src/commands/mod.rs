//! The commands, one module each.

pub mod print;
pub mod relay;

use clap::Subcommand;

use crate::failure::CommandError;

/// All commands of the program `outbox`, to be mounted in another program as well.
#[derive(Debug, Subcommand)]
#[non_exhaustive]
pub enum OutboxCommand {
    /// The relay as a program.
    #[command(subcommand)]
    Relay(relay::RelayCommand),
    /// Print files to start from.
    #[command(subcommand)]
    Print(print::PrintCommand),
}

impl OutboxCommand {
    /// Does it. Call it inside a Tokio runtime.
    ///
    /// # Errors
    ///
    /// [`CommandError`]; [`exit_code`](crate::exit_code) prints it.
    ///
    /// # Cancellation
    ///
    /// Dropping the future of `relay run` asks its relays to stop and does not wait for them.
    pub async fn run(self) -> Result<(), CommandError> {
        match self {
            Self::Relay(command) => command.run().await,
            Self::Print(command) => command.run(),
        }
    }
}
