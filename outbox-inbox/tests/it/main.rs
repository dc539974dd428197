//! Integration tests through the public API of the crate.
#![expect(clippy::unwrap_used, reason = "helpers of tests may panic")]

mod orders;
mod support;

mod batch;
mod batch_of_types;
mod consumer_settings;
mod consumers;
mod crash;
mod dead_letter;
mod delivery;
mod doubt;
mod drain;
mod effect;
mod expiring;
mod failure;
mod follow_up;
mod health;
mod hostile;
mod http;
mod isolation;
mod layers;
mod limits;
mod lost_acks;
mod migration;
mod moving;
mod names;
mod not_yet;
mod numbering;
mod operators;
mod order;
mod outage_log;
mod panics;
mod panics_elsewhere;
mod pausing;
mod pausing_at_the_broker;
mod raw;
mod retried_dead_letters;
mod rights;
mod runtime;
mod sensitive;
mod start;
mod starting;
mod stop;
mod strategies;
mod ui;
