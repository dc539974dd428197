//! Integration tests of the simulation, and of consumers that are killed, paused and stopped.

#![cfg_attr(
    feature = "servers",
    expect(
        clippy::unwrap_used,
        reason = "a test says with it what it does not expect to fail"
    )
)]

#[cfg(all(unix, feature = "servers"))]
mod chaos;
mod simulation;
#[cfg(all(unix, feature = "servers"))]
mod stops;
