//! Consumers on a real JetStream.
#![expect(clippy::unwrap_used, reason = "helpers of tests may panic")]

mod place;

mod audit;
mod carrier;
