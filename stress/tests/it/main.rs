//! Integration tests of the simulation, of killed, paused and stopped relays and consumers, and of
//! killed or read-only databases.

#![cfg_attr(
    feature = "servers",
    expect(clippy::unwrap_used, reason = "a test uses it for calls that must not fail")
)]

#[cfg(all(unix, feature = "servers"))]
mod chaos;
#[cfg(all(unix, feature = "servers"))]
mod database;
#[cfg(all(unix, feature = "servers"))]
mod durable;
#[cfg(all(unix, feature = "servers"))]
mod log;
#[cfg(all(unix, feature = "servers"))]
mod read_only;
mod simulation;
#[cfg(all(unix, feature = "servers"))]
mod stops;
#[cfg(all(unix, feature = "servers"))]
mod undone;
