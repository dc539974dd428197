//! Tests against real servers: OUTBOX_TEST_NATS_URL (2.10 or newer) and OUTBOX_TEST_NATS_OLD_URL
//! (2.9).
//!
//! Each test has its own stream and subject prefix. Tests that stop a server start a private
//! server: OUTBOX_TEST_NATS_OLD_BIN, the program of 2.9. Cluster tests start three nodes:
//! OUTBOX_TEST_NATS_CLUSTER_BIN, 2.10 or newer.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod environment;
mod event_stream;
mod printed_users;
mod private_cluster;
mod private_server;
mod proxy;

mod abandoning;
mod answers;
mod authentication;
mod cluster;
mod conformance;
mod consuming;
mod durables;
mod fencing;
mod hints;
mod interest;
mod keys;
mod log;
mod old_store;
mod outage;
mod permissions;
mod predecessors;
mod preflight;
mod printed_permissions;
mod provisioning;
mod publishing;
mod pulling;
mod tls;
mod unparsable;
