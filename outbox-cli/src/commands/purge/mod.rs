//! `outbox purge`: deletes published messages, expired records of inboxes, and everything about aggregates.
//!
//! Invariant: nothing is deleted without `--yes`, nor without an operation.

mod aggregate;
mod inbox;
mod published;

use std::num::NonZeroU64;

use clap::{Args, Subcommand};
use outbox::core::{Operation, OperationId, OperationKind};

use super::arguments::PlaceArguments;
use super::audit::parse_operation;
use super::intent::MakeArguments;
use crate::failure::{CommandError, Outcome};
use crate::output::say;

pub use aggregate::PurgeAggregateCommand;
pub use published::PurgePublishedCommand;

/// The commands that delete.
#[derive(Debug, Clone, Subcommand)]
#[non_exhaustive]
pub enum PurgeCommand {
    /// Delete published messages whose retention has passed. Prints a preview; `--yes` does it.
    Published(PurgePublishedCommand),
    /// Delete what consumers have remembered for long enough. Their tables are beside the outbox. Prints a preview; `--yes` does it.
    Inbox(PurgeArguments),
    /// Delete what the outbox holds of aggregates. Prints a preview with its price; `--yes` does it.
    Aggregate(PurgeAggregateCommand),
}

/// What the purges by age share.
#[derive(Debug, Clone, Args)]
#[non_exhaustive]
pub struct PurgeArguments {
    /// The outbox.
    #[command(flatten)]
    pub place: PlaceArguments,
    /// Only so many: try a few before the rest.
    #[arg(long = "limit", value_name = "N")]
    pub first: Option<NonZeroU64>,
    /// Continue this operation, which broke off, instead of a new one.
    #[arg(long, value_name = "OPERATION", value_parser = parse_operation, conflicts_with_all = ["first", "actor", "reason"])]
    pub operation: Option<OperationId>,
    /// How the change is made.
    #[command(flatten)]
    pub make: MakeArguments,
}

impl PurgeCommand {
    pub(super) async fn run(self) -> Result<Outcome, CommandError> {
        match self {
            Self::Published(command) => command.run().await,
            Self::Inbox(arguments) => inbox::run(&arguments).await,
            Self::Aggregate(command) => command.run().await,
        }
    }
}

impl PurgeArguments {
    /// The operation that `--operation` names.
    fn begun(&self, found: Option<Operation>, kind: &OperationKind) -> Result<Operation, CommandError> {
        found.filter(|begun| begun.kind == *kind).ok_or_else(|| {
            let id = self.operation.map(|id| id.to_string()).unwrap_or_default();
            CommandError::configuration(format!(
                "there is no operation {id} that does `{kind}`; `outbox audit --kind {kind}` lists those that are there"
            ))
        })
    }
}

/// Says how to go on after an error.
fn broke_off(what: &str, id: OperationId) {
    say(&format!(
        "if `outbox audit show {id}` knows the operation, go on with `outbox purge {what} --operation {id} --yes`; otherwise nothing was deleted"
    ));
}
