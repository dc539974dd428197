//! Integration tests of outbox-core, in one binary.

#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests are tests; the exemption in clippy.toml does not reach them"
)]

mod catalogue;
mod relay;
mod wire_format;
