//! Relays or consumers that are killed and paused while they work; `cargo xtask chaos` starts the servers and runs this.
//!
//! Invariant: the books are drawn up from database and broker, never from the reports of the tormented processes, and the exit status is 0 only
//! if they balance.

mod inbox;
mod processes;
mod relay;
mod servers;
mod stopped;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tracing_subscriber::EnvFilter;

/// Why a run ended early, in words.
pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;
/// The result of a step.
pub(crate) type Result<T> = std::result::Result<T, Failure>;

/// Torments relays or consumers and balances the books.
#[derive(Debug, Parser)]
#[command(name = "chaos")]
struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Relays that are killed and paused.
    Relay(relay::Options),
    /// Consumers that are given copies, killed, paused, and fail by themselves.
    Inbox(inbox::Options),
    /// One relay, as a child process.
    #[command(hide = true)]
    RelayChild(relay::Child),
    /// One consumer, as a child process.
    #[command(hide = true)]
    InboxChild(inbox::Child),
    /// One consumer that is going to be stopped, for a test.
    #[command(hide = true)]
    StoppedChild(stopped::Child),
}

#[tokio::main]
async fn main() -> ExitCode {
    // Handlers that fail are wanted here, and would drown everything else.
    let filter =
        EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("error,outbox_inbox=off"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .init();
    let done = match Arguments::parse().what {
        What::Relay(options) => relay::run(&options).await,
        What::Inbox(options) => inbox::run(&options).await,
        What::RelayChild(options) => relay::child(&options).await.map(|()| true),
        What::InboxChild(options) => inbox::child(&options).await.map(|()| true),
        What::StoppedChild(options) => stopped::child(&options).await.map(|()| true),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
