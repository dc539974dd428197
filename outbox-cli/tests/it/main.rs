//! The program `outbox`: its configuration, and its relay on real servers.

#![expect(
    clippy::unwrap_used,
    reason = "a test says with it what it does not expect to fail"
)]

mod config;
mod deploy;
mod guide;
mod place;
mod program;
