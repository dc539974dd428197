//! The program `outbox`: relay and operator commands.
//!
//! `outbox relay run --config outbox.toml` publishes recorded events; `outbox status`, `outbox
//! why` and others report on them.
//!
//! Data goes to standard output, messages to standard error. Exit codes: see [`Outcome`], 1 for
//! a failure, 2 for a wrong command line or configuration. Secrets are neither accepted on the
//! command line nor printed. Nothing changes without `--yes`.

#![warn(unreachable_pub)]

pub mod admin;
pub mod commands;
pub mod config;
mod failure;
mod invocation;
mod output;
mod plain;
mod program;

pub use commands::OutboxCommand;
pub use failure::{CommandError, Outcome, exit_code};
pub use output::Format;
pub use program::Program;
