//! Kills and pauses relays or consumers, for `cargo xtask chaos`.
//!
//! Invariant: the result is derived from database and broker, never from killed processes. The exit
//! status is 0 only if recorded messages, stream and effects agree.

mod inbox;
mod processes;
mod relay;
mod servers;
mod stopped;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tracing_subscriber::EnvFilter;

pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;
pub(crate) type Result<T> = std::result::Result<T, Failure>;

/// Kills and pauses relays or consumers, and checks that no message is lost or repeated.
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
    /// Consumers that receive copies, are killed and paused, and fail by themselves.
    Inbox(inbox::Options),
    /// One relay, as a child process.
    #[command(hide = true)]
    RelayChild(relay::Child),
    /// One consumer, as a child process.
    #[command(hide = true)]
    InboxChild(inbox::Child),
    /// One consumer for a test that stops it.
    #[command(hide = true)]
    StoppedChild(stopped::Child),
}

#[tokio::main]
async fn main() -> ExitCode {
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
