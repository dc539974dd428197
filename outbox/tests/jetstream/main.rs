//! Tests of consumers on a JetStream server.
#![expect(clippy::unwrap_used, reason = "helpers of tests may panic")]

mod place;

mod audit;
mod carrier;
