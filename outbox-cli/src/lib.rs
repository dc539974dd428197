//! The program `outbox`: relay and operator commands, as a program or inside your own.
//!
//! `outbox relay run --config outbox.toml` publishes recorded events; `outbox status`, `outbox
//! why` and others report on them. [`OutboxCommand`] adds the same commands to an existing
//! command line:
//!
//! ```no_run
//! use clap::Parser;
//! use outbox_cli::OutboxCommand;
//!
//! #[derive(Parser)]
//! enum Shop {
//!     /// The outbox of the shop.
//!     #[command(subcommand)]
//!     Outbox(OutboxCommand),
//! }
//!
//! #[tokio::main]
//! async fn main() -> std::process::ExitCode {
//!     let Shop::Outbox(command) = Shop::parse();
//!     outbox_cli::called_as("shop outbox");
//!     outbox_cli::exit_code(command.run().await)
//! }
//! ```
//!
//! Data goes to standard output, messages to standard error. Exit codes: see [`Outcome`], 1 for
//! a failure, 2 for a wrong command line or configuration. Secrets are neither accepted on the
//! command line nor printed. Nothing changes without `--yes`.
//!
//! Your own program shows payloads (`outbox show --payload`) of linked event types, with
//! sensitive fields masked.

#![warn(unreachable_pub)]

pub mod commands;
pub mod config;
mod failure;
mod invocation;
mod output;
mod plain;
mod program;

pub use commands::OutboxCommand;
pub use failure::{CommandError, Outcome, exit_code};
pub use invocation::called_as;
pub use output::Format;
pub use program::Program;
