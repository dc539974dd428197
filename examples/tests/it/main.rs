//! Integration tests of the examples and of the demo.

#![expect(
    clippy::unwrap_used,
    reason = "a test says with it what it does not expect to fail"
)]

mod demo;
mod examples;
