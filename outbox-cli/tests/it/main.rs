//! Tests of the program `outbox`: configuration, relay and operator commands on real servers.

#![expect(
    clippy::unwrap_used,
    reason = "a panic of unwrap fails the test with its line"
)]

mod admin;
mod config;
mod deploy;
mod flood;
mod guide;
mod hostile;
mod log;
mod log_page;
mod operate;
mod place;
mod planted;
mod print;
mod program;
mod reference_page;
mod secrets;
mod settings_page;
mod systemd;
mod to_production;
