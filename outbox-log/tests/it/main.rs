//! The log relay over memory, and the log of a real PostgreSQL, with its own schema, slot and publication for each test.

#![expect(
    clippy::unwrap_used,
    reason = "a test says with it what it does not expect to fail"
)]

mod conformance;
mod hand_over;
mod lost;
#[cfg(unix)]
mod odd;
#[cfg(unix)]
mod planted;
mod published;
mod reading;
mod relay;
mod set_up;
mod support;
mod unclaimed;
