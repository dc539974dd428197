//! Tests of the public API.

#![expect(clippy::unwrap_used, reason = "an unexpected failure must fail the test")]

mod proxy;
mod shop;
mod support;

mod addresses;
mod aggregate;
mod audit;
mod bytes;
mod cancellation;
mod commit;
mod connecting;
mod damaged;
#[cfg(unix)]
mod durable;
mod failover;
mod insert;
mod joined;
mod many;
mod many_checks;
mod migration;
#[cfg(unix)]
mod odd;
mod operators;
mod pauses;
#[cfg(unix)]
mod planted;
mod pooler;
mod printed_rights;
mod refused;
mod relays;
mod repeat;
mod replay;
mod roles;
mod row_security;
mod save;
mod session;
mod sharing;
mod silent;
mod store;
mod transaction;
mod undone;
mod untrusted;
mod writers;
mod writers_limits;
mod writers_refused;
