//! Tests of the facade: no test imports a crate that the facade re-exports.
#![expect(clippy::unwrap_used, reason = "helpers of tests may panic")]

mod end_to_end;
mod monitoring;
mod one_dependency;
mod runner;
mod tables;
