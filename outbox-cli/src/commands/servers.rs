//! The NATS servers of an outbox: their addresses, and how they are to be connected to.

use outbox::Failure;
use outbox::nats::async_nats::{ConnectOptions, ServerAddr};
use outbox::nats::connect_options;

use crate::config::Outbox;

/// The servers of NATS. An address may hold a password, so the error does not quote it.
pub(super) fn of(outbox: &Outbox) -> Result<Vec<ServerAddr>, Failure> {
    let servers = outbox.nats_url.expose().split(',').map(str::trim);
    let servers: Result<_, _> = servers.map(str::parse).collect();
    servers.map_err(|_| "the address of nats is malformed; use `nats://host:port`".into())
}

/// Credentials and TLS as the configuration has them. The connection has the name of the stream.
pub(super) async fn options(outbox: &Outbox) -> Result<ConnectOptions, Failure> {
    let section = &outbox.section;
    let mut options = connect_options()
        .name(format!("outbox {}", section.stream.name))
        .require_tls(section.nats_require_tls);
    if let Some(path) = &section.nats_ca {
        options = options.add_root_certificates(path.clone());
    }
    if let Some(path) = &outbox.nats_credentials {
        let read = options.credentials_file(path).await;
        options = read.map_err(|error| {
            format!(
                "the credentials file {} of nats cannot be used: {error}",
                path.display()
            )
        })?;
    }
    Ok(options)
}
