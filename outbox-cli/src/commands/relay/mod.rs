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

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::arguments::EXIT_CODES;
use crate::config::{Config, Environment};
use crate::failure::{CommandError, Outcome};
use crate::invocation;
pub use list::ListRelaysCommand;
pub use log::{LogChangeCommand, LogCommand};

/// Subcommands.
#[derive(Debug, Subcommand)]
pub enum RelayCommand {
    /// Publish until SIGTERM or Ctrl-C; a second signal ends the program at once.
    Run(ConfigArguments),
    /// List live relays, and dead relays with unowned partitions.
    List(ListRelaysCommand),
    /// The database's log, for a relay that reads it instead of polling the table.
    #[command(subcommand)]
    Log(LogCommand),
}

/// Arguments.
#[derive(Debug, Clone, Args)]
#[command(after_help = EXIT_CODES)]
pub struct ConfigArguments {
    /// Configuration file. Without a file, all settings have their defaults.
    #[arg(long, value_name = "FILE", env = "OUTBOX_CONFIG")]
    pub config: Option<PathBuf>,
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
        let arguments = match self {
            Self::Run(arguments) => arguments,
            Self::List(command) => return command.run().await,
            Self::Log(command) => return command.run().await,
        };
        invocation::remember(arguments.config.as_deref(), None);
        let environment = Environment::of_process();
        let config =
            Config::load(arguments.config.as_deref(), &environment).map_err(CommandError::configuration)?;
        let filter = logging::filter(&environment).map_err(CommandError::configuration)?;
        for outbox in &config.outboxes {
            check::check(outbox).await.map_err(CommandError::configuration)?;
        }
        logging::start(&config.log, filter);
        run::run(config, &environment).await?;
        Ok(Outcome::Done)
    }
}
