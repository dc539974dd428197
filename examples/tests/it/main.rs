//! Integration tests of the examples, of the demo, and of tormented consumers.

#![expect(
    clippy::unwrap_used,
    reason = "a test says with it what it does not expect to fail"
)]

#[cfg(unix)]
mod chaos;
mod demo;
mod examples;
