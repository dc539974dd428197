//! The commands, one module each.

mod advice;
pub mod arguments;
pub mod audit;
pub mod change;
pub mod confirm;
pub mod consumers;
pub mod doctor;
mod foresee;
mod http_server;
pub mod intent;
pub mod letters;
pub mod messages;
pub mod migrate;
pub mod pause;
mod place;
pub mod print;
pub mod prove;
pub mod purge;
mod readers;
mod recheck;
pub mod reconcile;
mod record;
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

use clap::Subcommand;
use futures_util::FutureExt as _;
use outbox_admin::Change;

use crate::failure::{CommandError, Outcome};
use crate::invocation;

/// All commands of the program `outbox`, to be mounted in another program as well.
#[derive(Debug, Subcommand)]
#[non_exhaustive]
pub enum OutboxCommand {
    /// How each outbox stands, and what somebody should look at.
    Status(status::StatusCommand),
    /// Whether database, stream, consumers and settings fit together, and what mends what does not.
    Doctor(doctor::DoctorCommand),
    /// Why a message, or the events of an aggregate, do not arrive.
    Why(why::WhyCommand),
    /// What became of the events of an aggregate: recorded, published, and what each consumer has made of them.
    Timeline(timeline::TimelineCommand),
    /// Whether what was committed is on the stream, in order, and has had its effects: the ledger of a span.
    Prove(prove::ProveCommand),
    /// List messages, oldest first.
    List(messages::ListCommand),
    /// Show a message; with `--payload` its payload, masked.
    Show(messages::ShowCommand),
    /// Publish dead letters again; with `--skip` let their aggregates go on without them. Prints a preview; `--yes` does it.
    Retry(change::RetryCommand),
    /// Publish copies of published messages or dead letters. Says what it would do; `--yes` does it.
    Replay(change::ChangeCommand),
    /// End the back-off of an aggregate, or a pause. Prints a preview; `--yes` does it.
    Resume(resume::ResumeCommand),
    /// Stop publishing, of everything or of an aggregate type, without a deploy. Says what it would do; `--yes` does it.
    Pause(pause::PauseCommand),
    /// List who has changed what and why, the last change first; `show` says what became of one.
    Audit(audit::AuditCommand),
    /// Count published messages that the stream has lost; `--yes` publishes them again.
    Reconcile(reconcile::ReconcileCommand),
    /// Delete what outbox and inbox hold of aggregates. Prints a preview; `--yes` does it.
    Purge(purge::PurgeCommand),
    /// Say which tables are there, and print the SQL that makes them; `--yes` makes what is missing.
    Migrate(migrate::MigrateCommand),
    /// The dead letters of consumers.
    #[command(subcommand)]
    DeadLetters(letters::LettersCommand),
    /// How far consumers are behind, and their pauses.
    #[command(subcommand)]
    Consumers(consumers::ConsumersCommand),
    /// The dashboard, for people with a browser. On this machine only, unless it is given users.
    Serve(serve::ServeCommand),
    /// The relay as a program, the relays that run, and the database's log.
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
    /// Dropping the future of `relay run` asks its relays to stop and does not wait for them. Dropping that of a change leaves the transactions that were
    /// completed; the outcome of the last one is unknown, and `outbox audit` shows the operation with which it can go on.
    pub async fn run(self) -> Result<Outcome, CommandError> {
        invocation::know_mounted(|| Self::augment_subcommands(clap::Command::new("outbox")));
        // Each in a box of its own: together they are nested too deeply for the compiler to lay out in an optimised build.
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
            Self::Print(command) => command.run().map(|()| Outcome::Well),
        }
    }
}
