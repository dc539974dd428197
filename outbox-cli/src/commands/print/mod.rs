//! `outbox print`: files to start from, as they are built into the program, and rights that are made for a deployment.

mod grants;
mod permissions;

use clap::Subcommand;

pub use self::grants::{DatabaseArgument, GrantsCommand, RoleArgument, TablesArgument};
pub use self::permissions::{NatsRoleArgument, PermissionsCommand};
use crate::config::DEFAULT_FILE;
use crate::failure::CommandError;
use crate::output;

/// The files that can be printed.
#[derive(Debug, Subcommand)]
#[non_exhaustive]
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
    /// A user of nats-server with the permissions for its role.
    NatsPermissions(PermissionsCommand),
}

/// The unit file.
const UNIT: &str = include_str!("../../../deploy/outbox-relay.service");
/// The Containerfile.
const CONTAINERFILE: &str = include_str!("../../../deploy/Containerfile");
/// The manifest.
const MANIFEST: &str = include_str!("../../../deploy/kubernetes.yaml");
/// The alert rules, which are tested where they are.
const ALERTS: &str = include_str!("../../../../docs/monitoring/alerts.yml");
/// The board.
const BOARD: &str = include_str!("../../../../docs/monitoring/grafana.json");

impl PrintCommand {
    /// Prints the file to the standard output.
    ///
    /// # Errors
    ///
    /// Exit code 2 if the names cannot be names, 1 if the standard output takes no more.
    pub fn run(self) -> Result<(), CommandError> {
        let text = match self {
            Self::Config => DEFAULT_FILE.to_owned(),
            Self::Systemd => UNIT.to_owned(),
            Self::Containerfile => CONTAINERFILE.to_owned(),
            Self::Kubernetes => MANIFEST.to_owned(),
            Self::Alerts => ALERTS.to_owned(),
            Self::Grafana => BOARD.to_owned(),
            Self::Grants(command) => command.text()?,
            Self::NatsPermissions(command) => command.text()?,
        };
        output::write(&text)
    }
}
