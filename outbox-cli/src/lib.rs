//! The program `outbox`: the relay for services in any language, and the commands of operators, as a program and for a program of your own.
//!
//! `outbox relay run --config outbox.toml` publishes what services record in their databases; `outbox status`, `outbox why` and others say how that goes.
//! [`OutboxCommand`] is the same for programs that have a command line already:
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
//! Data goes to the standard output, words to the standard error. Exit codes: those of [`Outcome`], 1 if it failed, 2 if the command line or the
//! configuration is wrong. No secret is taken from the command line, and none is printed. Nothing is changed without `--yes`.
//!
//! A program of your own shows payloads (`outbox show --payload`) of the event types that are linked into it, with their sensitive fields masked.

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
