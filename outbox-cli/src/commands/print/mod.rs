//! `outbox print`: built-in files, and rights for a deployment.

mod grants;

use clap::Subcommand;

pub use self::grants::{DatabaseArgument, GrantsCommand, TablesArgument};
use crate::config::DEFAULT_FILE;
use crate::failure::CommandError;
use crate::output;

/// Subcommands.
#[derive(Debug, Subcommand)]
pub enum PrintCommand {
    /// A configuration with every setting, its default and its meaning.
    Config,
    /// A unit file for systemd.
    Systemd,
    /// A Containerfile.
    Containerfile,
    /// A manifest for Kubernetes.
    Kubernetes,
    /// Alert rules for Prometheus, for the metrics of relays and inboxes.
    Alerts,
    /// A board for Grafana, as a file to import.
    Grafana,
    /// The GRANT statements that a login of the database needs for its role.
    Grants(GrantsCommand),
}

const UNIT: &str = include_str!("../../../deploy/outbox-relay.service");
const CONTAINERFILE: &str = include_str!("../../../deploy/Containerfile");
const MANIFEST: &str = include_str!("../../../deploy/kubernetes.yaml");
const ALERTS: &str = include_str!("../../../monitoring/alerts.yml");
const BOARD: &str = include_str!("../../../monitoring/grafana.json");

impl PrintCommand {
    /// Prints to standard output.
    ///
    /// # Errors
    ///
    /// Exit code 2 for invalid names, 1 if standard output fails.
    pub fn run(self) -> Result<(), CommandError> {
        let text = match self {
            Self::Config => DEFAULT_FILE.to_owned(),
            Self::Systemd => UNIT.to_owned(),
            Self::Containerfile => CONTAINERFILE.to_owned(),
            Self::Kubernetes => MANIFEST.to_owned(),
            Self::Alerts => ALERTS.to_owned(),
            Self::Grafana => BOARD.to_owned(),
            Self::Grants(command) => command.text()?,
        };
        output::write(&text)
    }
}
