//! Tests of the crate through its public API.
#![expect(clippy::unwrap_used, reason = "helpers of tests may panic")]

mod support;

mod crash;
mod dead_letter;
mod effect;
mod failure;
mod follow_up;
mod migration;
mod runtime;
mod start;
mod ui;
