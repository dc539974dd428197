//! NATS servers of an outbox and their connection options.

use outbox::Failure;
use outbox::nats::async_nats::{ConnectOptions, ServerAddr};
use outbox::nats::{connect_options, connect_options_with_credentials, inbox_prefix_of, servers};

use crate::config::Outbox;

/// An error omits the server address, which may contain a password.
pub(super) fn of(outbox: &Outbox) -> Result<Vec<ServerAddr>, Failure> {
    servers(outbox.nats_url.expose())
        .map_err(|_| "the address of nats is malformed; use `nats://host:port`".into())
}

pub(super) async fn options(outbox: &Outbox) -> Result<ConnectOptions, Failure> {
    let section = &outbox.section;
    let mut options = match &outbox.nats_credentials {
        Some(path) => connect_options_with_credentials(path).map_err(|error| {
            format!(
                "the credentials file {} of nats cannot be used: {error}",
                path.display()
            )
        })?,
        None => connect_options(),
    };
    if let Some(prefix) = inbox_prefix_of(&of(outbox)?) {
        options = options.custom_inbox_prefix(prefix);
    }
    options = options
        .name(format!("outbox {}", section.stream.name))
        .require_tls(of(outbox)?.iter().any(ServerAddr::tls_required));
    if let Some(path) = &section.nats_ca {
        options = options.add_root_certificates(path.clone());
    }
    Ok(options)
}
