//! Integration tests of outbox-testing, in one binary.

#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests are tests, but the exemption in clippy.toml excludes helpers"
)]

mod conformance;
mod environment;
mod fixtures;
mod memory;
mod memory_broker;
mod wrong;
