//! The addresses of the NATS servers of an outbox.

use outbox::Failure;
use outbox::nats::async_nats::ServerAddr;

use crate::config::Outbox;

/// The servers of NATS. An address may hold a password, so the error does not quote it.
pub(super) fn of(outbox: &Outbox) -> Result<Vec<ServerAddr>, Failure> {
    let servers = outbox.nats_url.expose().split(',').map(str::trim);
    let servers: Result<_, _> = servers.map(str::parse).collect();
    servers.map_err(|_| "the address of nats is malformed; use `nats://host:port`".into())
}
