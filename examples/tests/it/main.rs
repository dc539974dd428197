//! Integration tests of the examples, the guide and the demo, and tests that need both a database
//! and a broker.

#![expect(clippy::unwrap_used, reason = "a test uses it for calls that must not fail")]

mod demo;
mod demo_log;
mod examples;
mod first_days;
mod guide;
mod lossy;
mod lost_acks;
mod order_files;
mod own_database;
mod polyglot;
mod versions;
