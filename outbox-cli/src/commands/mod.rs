//! The commands, one module each.

mod advice;
pub mod arguments;
pub mod audit;
pub mod change;
pub mod confirm;
pub mod consumers;
pub mod contexts;
pub mod doctor;
mod foresee;
pub mod forget;
mod http_server;
pub mod intent;
pub mod letters;
pub mod log;
mod log_looks;
mod log_row;
pub mod messages;
pub mod migrate;
pub mod pause;
mod place;
pub mod print;
mod progress;
pub mod prove;
pub mod purge;
mod readers;
mod recheck;
pub mod reconcile;
mod record;
pub mod relay;
pub mod relays;
pub mod serve;
mod servers;
mod sessions;
pub mod status;
mod stream;
pub mod tail;
mod takers;
mod text;
pub mod timeline;
#[cfg(feature = "tui")]
pub mod top;
pub mod why;

use clap::Subcommand;
use futures_util::FutureExt as _;
use outbox_admin::Change;

use crate::failure::{CommandError, Outcome};
use crate::hint;

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
    /// Follow what is recorded and published, until it is interrupted.
    Tail(tail::TailCommand),
    /// Show a message; with `--payload` its payload, masked.
    Show(messages::ShowCommand),
    /// List aggregates whose messages wait: those that are halted first.
    Blocked(relays::BlockedCommand),
    /// List the relays that are alive, and those that have died and whose partitions nobody has taken yet.
    Relays(relays::RelaysCommand),
    /// List the partitions and their owners.
    Partitions(relays::PartitionsCommand),
    /// Publish dead letters again. Says what it would do; `--yes` does it.
    Retry(change::ChangeCommand),
    /// Let aggregates go on without the dead letters that halt them. Says what it would do; `--yes` does it.
    Skip(change::ChangeCommand),
    /// Publish copies of published messages or dead letters. Says what it would do; `--yes` does it.
    Replay(change::ChangeCommand),
    /// End the back-off of an aggregate. Says what it would do; `--yes` does it.
    Resume(change::ResumeCommand),
    /// Stop publishing, of everything or of an aggregate type, without a deploy. Says what it would do; `--yes` does it.
    Pause(pause::PauseCommand),
    /// End a pause. Says what it would do; `--yes` does it.
    Unpause(pause::UnpauseCommand),
    /// List who has changed what and why, the last change first; `show` says what became of one.
    Audit(audit::AuditCommand),
    /// Count published messages that the stream has lost; `--yes` publishes them again.
    Reconcile(reconcile::ReconcileCommand),
    /// Delete published messages whose retention has passed; with `--inbox` what consumers have remembered for long enough. Says what it would do; `--yes` does it.
    Purge(purge::PurgeCommand),
    /// Delete what the outbox holds of aggregates. Says what it would do, and its price; `--yes` does it.
    Forget(forget::ForgetCommand),
    /// Say which tables are there, and print the SQL that makes them; `--yes` makes what is missing.
    Migrate(migrate::MigrateCommand),
    /// The dead letters of consumers.
    #[command(subcommand)]
    DeadLetters(letters::LettersCommand),
    /// How far consumers are behind, and their pauses.
    #[command(subcommand)]
    Consumers(consumers::ConsumersCommand),
    /// The database's log, for a relay that reads it instead of polling the table.
    #[command(subcommand)]
    Log(log::LogCommand),
    /// The same as `status` and the lists, live in a terminal. It changes nothing.
    #[cfg(feature = "tui")]
    Top(top::TopCommand),
    /// The dashboard, for people with a browser. On this machine only, unless it is given users.
    Serve(serve::ServeCommand),
    /// The relay as a program.
    #[command(subcommand)]
    Relay(relay::RelayCommand),
    /// The named contexts of a person: which configuration, and whether it is production.
    Contexts(contexts::ContextsCommand),
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
        hint::know_mounted(|| Self::augment_subcommands(clap::Command::new("outbox")));
        // Each in a box of its own: together they are nested too deeply for the compiler to lay out in an optimised build.
        match self {
            Self::Status(command) => command.run().boxed_local().await,
            Self::Doctor(command) => command.run().boxed_local().await,
            Self::Why(command) => command.run().boxed_local().await,
            Self::Timeline(command) => command.run().boxed_local().await,
            Self::Prove(command) => command.run().boxed_local().await,
            Self::List(command) => command.run().boxed_local().await,
            Self::Tail(command) => command.run().boxed_local().await,
            Self::Show(command) => command.run().boxed_local().await,
            Self::Blocked(command) => command.run().boxed_local().await,
            Self::Relays(command) => command.run().boxed_local().await,
            Self::Partitions(command) => command.run().boxed_local().await,
            Self::Retry(command) => command.run(Change::Retry).boxed_local().await,
            Self::Skip(command) => command.run(Change::Skip).boxed_local().await,
            Self::Replay(command) => command.run(Change::Replay).boxed_local().await,
            Self::Resume(command) => command.run().boxed_local().await,
            Self::Pause(command) => command.run().boxed_local().await,
            Self::Unpause(command) => command.run().boxed_local().await,
            Self::Audit(command) => command.run().boxed_local().await,
            Self::Reconcile(command) => command.run().boxed_local().await,
            Self::Purge(command) => command.run().boxed_local().await,
            Self::Forget(command) => command.run().boxed_local().await,
            Self::Migrate(command) => command.run().boxed_local().await,
            Self::DeadLetters(command) => command.run().boxed_local().await,
            Self::Consumers(command) => command.run().boxed_local().await,
            Self::Log(command) => command.run().boxed_local().await,
            #[cfg(feature = "tui")]
            Self::Top(command) => command.run().boxed_local().await,
            Self::Serve(command) => command.run().boxed_local().await,
            Self::Relay(command) => command.run().boxed_local().await.map(|()| Outcome::Well),
            Self::Contexts(command) => command.run(),
            Self::Print(command) => command.run().map(|()| Outcome::Well),
        }
    }
}
