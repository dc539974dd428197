//! `outbox relay`: the relay as a program.

mod check;
mod http;
mod list;
pub(super) mod log;
pub(super) mod log_row;
pub(super) mod logging;
mod metrics;
mod one;
mod probes;
mod run;
mod systemd;

use clap::{Args, Subcommand};

use super::arguments::{EXIT_CODES, FileArguments};
use crate::config::Environment;
use crate::failure::{CommandError, Outcome};
pub use list::ListRelaysCommand;
pub use log::{LogChangeCommand, LogCommand};

/// Subcommands.
#[derive(Debug, Subcommand)]
pub enum RelayCommand {
    /// Publish until SIGTERM or Ctrl-C; a second signal ends the program at once.
    Run(RunRelayCommand),
    /// List live relays, and dead relays with unowned partitions.
    List(ListRelaysCommand),
    /// The database's log, for a relay that reads it instead of polling the table.
    #[command(subcommand)]
    Log(LogCommand),
}

/// Arguments.
#[derive(Debug, Clone, Args)]
#[command(after_help = EXIT_CODES)]
pub struct RunRelayCommand {
    /// The file.
    #[command(flatten)]
    pub file: FileArguments,
}

impl RelayCommand {
    /// Runs the command.
    ///
    /// # Errors
    ///
    /// Exit code 2 for a wrong file or environment, 1 if a server rejects the relay.
    ///
    /// # Cancellation
    ///
    /// Dropping the future stops the relays without waiting for them.
    pub async fn run(self) -> Result<Outcome, CommandError> {
        let file = match self {
            Self::Run(command) => command.file,
            Self::List(command) => return command.run().await,
            Self::Log(command) => return command.run().await,
        };
        let environment = Environment::of_process();
        let config = file.load()?;
        let filter = logging::filter(&environment).map_err(CommandError::configuration)?;
        for outbox in &config.outboxes {
            check::check(outbox).await.map_err(CommandError::configuration)?;
        }
        logging::start(&config.log, filter);
        run::run(config, &environment).await?;
        Ok(Outcome::Done)
    }
}
