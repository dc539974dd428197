//! `outbox relay`: the relay as a program, for services in any language.

mod check;
mod http;
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
use crate::failure::CommandError;
use crate::{hint, output};

/// The commands of the relay.
#[derive(Debug, Subcommand)]
#[non_exhaustive]
pub enum RelayCommand {
    /// Publish what is recorded, until SIGTERM or Ctrl-C; a second one ends it at once.
    Run(ConfigArguments),
    /// Check file and environment as `run` does, and connect to nothing.
    CheckConfig(ConfigArguments),
}

/// Where the configuration is.
#[derive(Debug, Clone, Args)]
#[command(after_help = EXIT_CODES)]
#[non_exhaustive]
pub struct ConfigArguments {
    /// The configuration file; without it all settings have their defaults, and the environment says where the servers are.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

impl RelayCommand {
    /// Does it.
    ///
    /// # Errors
    ///
    /// [`CommandError::Configuration`] if file or environment are wrong, [`CommandError::Failed`] if a server refuses what a relay needs.
    ///
    /// # Cancellation
    ///
    /// Dropping the future asks the relays to stop and does not wait for them.
    pub async fn run(self) -> Result<(), CommandError> {
        let (Self::Run(arguments) | Self::CheckConfig(arguments)) = &self;
        hint::remember(arguments.config.as_deref(), None, None);
        let environment = Environment::of_process();
        let config =
            Config::load(arguments.config.as_deref(), &environment).map_err(CommandError::configuration)?;
        let filter = logging::filter(&config.log, &environment).map_err(CommandError::configuration)?;
        for outbox in &config.outboxes {
            check::check(outbox).await.map_err(CommandError::Configuration)?;
        }
        match self {
            Self::CheckConfig(_) => output::write(&check::summary(&config)),
            Self::Run(_) => {
                logging::start(&config.log, filter);
                run::run(config, &environment).await
            }
        }
    }
}
