//! Tests through the public API of the crate.
#![expect(clippy::unwrap_used, reason = "helpers of tests may panic")]

mod orders;
mod support;

mod aggregate_start;
mod batch;
mod batch_of_types;
mod broker_pause;
mod compile_fail;
mod consumers;
mod crash;
mod database_outage;
mod databases;
mod dead_letter;
mod dead_letter_retry;
mod deferral;
mod delivery;
mod drain;
mod effect;
mod failure;
mod fixed_subjects;
mod follow_up;
mod foreign_headers;
mod frozen_process;
mod health;
mod http;
mod ignored_errors;
mod isolation;
mod layers;
mod lost_acknowledgements;
mod lost_transaction;
#[cfg(feature = "metrics")]
mod metrics;
mod migration;
mod names;
mod numbering;
mod operators;
mod order;
mod panics;
mod pause;
mod raw_messages;
mod recreated_stream;
mod rights;
mod runtime;
mod sensitive_fields;
#[cfg(unix)]
mod server_settings;
mod session;
mod shutdown;
mod start;
mod start_position;
mod strategies;
mod subscriber_panics;
mod traces;
