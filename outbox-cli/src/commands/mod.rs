//! The commands, one module each.

mod advice;
pub mod arguments;
pub mod audit;
pub mod change;
pub mod confirm;
pub mod consumers;
pub mod doctor;
mod http_server;
pub mod intent;
pub mod letters;
pub mod messages;
pub mod migrate;
mod outcome;
pub mod pause;
mod place;
pub mod print;
pub mod prove;
pub mod purge;
mod readers;
mod recheck;
pub mod reconcile;
pub mod relay;
pub mod resume;
pub mod serve;
mod servers;
mod sessions;
pub mod status;
mod stream;
mod stream_view;
mod text;
pub mod timeline;
pub mod why;

use crate::admin::Change;
use clap::Subcommand;
use futures_util::FutureExt as _;

use crate::failure::{CommandError, Outcome};
use crate::invocation;

/// All commands of the program `outbox`.
#[derive(Debug, Subcommand)]
pub enum OutboxCommand {
    /// Health of each outbox, relays and consumers, with causes.
    Status(status::StatusCommand),
    /// Check database, stream, consumers and settings, with the fix of each finding.
    Doctor(doctor::DoctorCommand),
    /// Explain why a message, or the events of an aggregate, do not arrive.
    Why(why::WhyCommand),
    /// Show the events of an aggregate: recorded, published, and their state at each consumer.
    Timeline(timeline::TimelineCommand),
    /// Prove that committed events of a span are on the stream, in order, and handled.
    Prove(prove::ProveCommand),
    /// List messages, newest first.
    List(messages::ListCommand),
    /// Show a message; with `--payload` also its masked payload.
    Show(messages::ShowCommand),
    /// Publish dead letters again, or let their aggregates continue without them (`--skip`).
    /// `--yes` changes.
    Retry(change::RetryCommand),
    /// Publish copies of published messages or dead letters. `--yes` changes.
    Replay(change::ChangeCommand),
    /// End the back-off of an aggregate, or a pause. `--yes` changes.
    Resume(resume::ResumeCommand),
    /// Pause publishing of all messages or of an aggregate type. `--yes` changes.
    Pause(pause::PauseCommand),
    /// List changes with actor and reason, newest first; `show` shows the result of one.
    Audit(audit::AuditCommand),
    /// Count published messages that the stream lacks; `--yes` publishes them again.
    Reconcile(reconcile::ReconcileCommand),
    /// Delete the data of aggregates from outbox and inbox. `--yes` deletes.
    Purge(purge::PurgeCommand),
    /// List migrations and print their SQL; `--yes` applies missing migrations.
    Migrate(migrate::MigrateCommand),
    /// Dead letters of consumers.
    #[command(subcommand)]
    DeadLetters(letters::LettersCommand),
    /// Lag and pauses of consumers.
    #[command(subcommand)]
    Consumers(consumers::ConsumersCommand),
    /// Serve the dashboard, on this machine only.
    Serve(serve::ServeCommand),
    /// The relay program, running relays, and the database's log.
    #[command(subcommand)]
    Relay(relay::RelayCommand),
    /// Print files for a deployment.
    #[command(subcommand)]
    Print(print::PrintCommand),
}

impl OutboxCommand {
    /// Runs the command. Requires a Tokio runtime.
    ///
    /// # Errors
    ///
    /// [`CommandError`]; [`exit_code`](crate::exit_code) prints it.
    ///
    /// # Cancellation
    ///
    /// Dropping the future of `relay run` stops its relays without waiting for them. Dropping a
    /// change keeps committed transactions; the outcome of the last one is unknown. `outbox audit`
    /// shows the operation to continue.
    pub async fn run(self) -> Result<Outcome, CommandError> {
        invocation::know(|| Self::augment_subcommands(clap::Command::new("outbox")));
        // Boxed, because the combined future is nested too deeply for an optimised build.
        match self {
            Self::Status(command) => command.run().boxed_local().await,
            Self::Doctor(command) => command.run().boxed_local().await,
            Self::Why(command) => command.run().boxed_local().await,
            Self::Timeline(command) => command.run().boxed_local().await,
            Self::Prove(command) => command.run().boxed_local().await,
            Self::List(command) => command.run().boxed_local().await,
            Self::Show(command) => command.run().boxed_local().await,
            Self::Retry(command) => command.run().boxed_local().await,
            Self::Replay(command) => command.run(Change::Replay).boxed_local().await,
            Self::Resume(command) => command.run().boxed_local().await,
            Self::Pause(command) => command.run().boxed_local().await,
            Self::Audit(command) => command.run().boxed_local().await,
            Self::Reconcile(command) => command.run().boxed_local().await,
            Self::Purge(command) => command.run().boxed_local().await,
            Self::Migrate(command) => command.run().boxed_local().await,
            Self::DeadLetters(command) => command.run().boxed_local().await,
            Self::Consumers(command) => command.run().boxed_local().await,
            Self::Serve(command) => command.run().boxed_local().await,
            Self::Relay(command) => command.run().boxed_local().await,
            Self::Print(command) => command.run().map(|()| Outcome::Done),
        }
    }
}
