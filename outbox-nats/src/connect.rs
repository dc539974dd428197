//! Connects to NATS with the caller's own options for authentication and TLS.
//!
//! Invariants: a wrong address or password is an error at start and not an endless retry. Whatever the server reports asynchronously reaches the log; a denied
//! permission shows nowhere else, because the publish just times out. No secret is formatted. There are no options of our own for credentials or certificates:
//! `async_nats::ConnectOptions` has them all.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_nats::{Client, ConnectErrorKind, ConnectOptions, Event, ServerAddr, ServerError, ToServerAddrs};

use crate::connection::Origin;
use crate::publisher::DEFAULT_WINDOW;
use crate::reports::{Reports, Violation};
use crate::stream::EventStream;
use crate::subject::percent_decode;

/// Time between pings on an otherwise silent connection.
const PING_INTERVAL: Duration = Duration::from_secs(10);

/// Options to start from.
///
/// The connection is called `outbox`. Its send buffer holds one window of 1024 messages, because messages that are in there when the connection breaks are
/// sent after the reconnection. A silent server is given up after two pings of 10 s without an answer; the default of async-nats is 60 s.
///
/// Add the credentials that the server asks for:
///
/// ```no_run
/// # async fn demo() -> Result<(), Box<dyn std::error::Error>> {
/// let options = outbox_nats::connect_options()
///     .user_and_password("relay".into(), std::env::var("NATS_PASSWORD")?)
///     .add_root_certificates("/etc/nats/ca.pem".into())
///     .require_tls(true);
/// let client = outbox_nats::connect("nats.example.com", options).await?;
/// # Ok(())
/// # }
/// ```
///
/// Tokens, NKeys, credential files, client certificates and a `rustls` configuration are options of the same kind. TLS is used when the
/// server, the address (`tls://`) or the options ask for it. It is not forced, so set `require_tls(true)` for every server that is not on
/// this machine. Keep `retry_on_initial_connect` off unless the service may start without its broker: with it a wrong address or
/// password is retried for ever instead of being reported.
#[must_use]
pub fn connect_options() -> ConnectOptions {
    ConnectOptions::new()
        .name("outbox")
        .client_capacity(DEFAULT_WINDOW)
        .ping_interval(PING_INTERVAL)
}

impl EventStream {
    /// Connects to the servers that hold this stream, with [`connect_options`], as [`connect`](fn@connect) does. Nothing is asked of the stream.
    ///
    /// It is for servers that want nothing but an address, which may hold a password or a token. For other credentials, TLS settings or callbacks use
    /// [`connect`](fn@connect).
    ///
    /// # Errors
    ///
    /// As [`connect`](fn@connect).
    ///
    /// # Cancellation
    ///
    /// Dropping the future closes the connection if it was open already.
    pub async fn connect(&self, servers: impl ToServerAddrs) -> Result<Client, ConnectError> {
        connect(servers, connect_options().name(format!("outbox {}", self.name))).await
    }
}

/// Connects, and logs what happens to the connection.
///
/// `servers` is an address such as `nats://127.0.0.1:4222`, or several of one cluster. The options are used as they are, with two
/// exceptions. The event callback is replaced by our logging, because async-nats keeps only one; to see events too, use
/// [`connect_with_events`]. Credentials in the first address that has some, `nats://user:password@host` or `nats://token@host`, are
/// used for all servers; async-nats itself ignores them.
///
/// A [`JetStreamPublisher`](crate::JetStreamPublisher) of this client opens one more connection with the same options at its first use. It can drop that
/// connection with all queued messages, and it learns of denied permissions from both. A client that was made in another way works too, but then a denied
/// permission looks like a silent server, and an abandoned message may arrive later.
///
/// # Errors
///
/// [`ConnectError`] if no server can be reached or the server refuses the credentials. Never while `retry_on_initial_connect` is set.
pub async fn connect(servers: impl ToServerAddrs, options: ConnectOptions) -> Result<Client, ConnectError> {
    connect_with_events(servers, options, |_| {}).await
}

/// As [`connect`], and calls `on_event` for each event after it was logged. Events of the connections that publishers open are included. The callback must
/// not block: an event is dropped if 128 others are waiting.
///
/// # Errors
///
/// As [`connect`].
pub async fn connect_with_events(
    servers: impl ToServerAddrs,
    options: ConnectOptions,
    on_event: impl Fn(&Event) + Send + Sync + 'static,
) -> Result<Client, ConnectError> {
    let servers: Vec<ServerAddr> = servers
        .to_server_addrs()
        .map_err(|error| {
            ConnectError::new(
                "?".to_owned(),
                async_nats::ConnectError::with_source(ConnectErrorKind::ServerParse, error),
            )
        })?
        .collect();
    let names = servers.iter().map(name).collect::<Vec<_>>().join(", ");
    let reports = Arc::new(Reports::new());
    let options = with_credentials_of(&servers, options);
    let on_event = Arc::new(on_event);
    let watched = |options: ConnectOptions, connection: &'static str| {
        let (reports, on_event) = (reports.clone(), on_event.clone());
        options.event_callback(move |event| {
            log(&event, connection);
            reports.record(&event);
            on_event(&event);
            std::future::ready(())
        })
    };
    let client = watched(options.clone(), "shared")
        .connect(servers.clone())
        .await
        .map_err(|error| ConnectError::new(names, error))?;
    let origin = Origin {
        servers,
        options: watched(options, "publisher"),
        reports: reports.clone(),
    };
    origin.remember(&client);
    Ok(client)
}

/// Host and port of a server. Its URL may hold a password, so the URL is never shown.
fn name(server: &ServerAddr) -> String {
    format!("{}:{}", server.host(), server.port())
}

/// Moves credentials from an address, where they are percent-encoded, into the options.
fn with_credentials_of(servers: &[ServerAddr], options: ConnectOptions) -> ConnectOptions {
    let decode = |text: &str| percent_decode(text).unwrap_or_else(|| text.to_owned());
    let credentials = servers
        .iter()
        .find_map(|server| Some((server.username()?, server.password())));
    match credentials {
        Some((user, Some(password))) => options.user_and_password(decode(user), decode(password)),
        Some((token, None)) => options.token(decode(token)),
        None => options,
    }
}

/// Logs an event, with the connection that it is about: the one that [`connect`] returned, or that of a publisher.
fn log(event: &Event, connection: &str) {
    match event {
        Event::Connected => tracing::info!(connection, "connected to nats"),
        Event::Draining | Event::Closed | Event::LameDuckMode => {
            tracing::info!(connection, "nats connection: {event}")
        }
        Event::Disconnected | Event::SlowConsumer(_) => {
            tracing::warn!(connection, "nats connection: {event}")
        }
        Event::ServerError(ServerError::Other(reason)) if Violation::parse(reason).is_some() => {
            tracing::error!(
                connection,
                reason,
                "nats denies a permission; messages on this subject wait until the server's permissions allow it"
            )
        }
        Event::ServerError(_) | Event::ClientError(_) => {
            tracing::error!(connection, "nats connection: {event}")
        }
    }
}

/// Why there is no connection.
#[derive(Debug)]
pub struct ConnectError {
    servers: String,
    source: async_nats::ConnectError,
}

impl ConnectError {
    fn new(servers: String, source: async_nats::ConnectError) -> Self {
        Self { servers, source }
    }

    /// The kind of failure, as async-nats classifies it. One exception: a failed TLS handshake is always [`ConnectErrorKind::Tls`], where async-nats says `Io`.
    #[must_use]
    pub fn kind(&self) -> ConnectErrorKind {
        let is_handshake = std::error::Error::source(&self.source)
            .and_then(|source| source.downcast_ref::<std::io::Error>())
            .and_then(std::io::Error::get_ref)
            .is_some_and(|inner| inner.is::<async_nats::rustls::Error>());
        if is_handshake {
            return ConnectErrorKind::Tls;
        }
        self.source.kind()
    }
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { servers, .. } = self;
        match self.kind() {
            ConnectErrorKind::ServerParse => f.write_str("nats address is malformed; use `nats://host:port`"),
            ConnectErrorKind::AuthorizationViolation | ConnectErrorKind::Authentication => {
                write!(
                    f,
                    "nats server {servers} refused the credentials; check user, password, token or credentials file"
                )
            }
            ConnectErrorKind::Tls => write!(
                f,
                "no TLS connection to nats server {servers}; check the certificates of both sides, the host name, and that the server has TLS"
            ),
            _ => write!(
                f,
                "no connection to nats server {servers}; check that it runs and that the address is right"
            ),
        }
    }
}

impl std::error::Error for ConnectError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_in_addresses_are_not_shown() {
        let server: ServerAddr = "nats://relay:hunter2@db.internal:4333".parse().unwrap();
        assert_eq!(name(&server), "db.internal:4333");
    }

    #[tokio::test]
    async fn a_malformed_address_is_reported_at_once() {
        let error = connect("http://relay:hunter2@x", connect_options())
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ConnectErrorKind::ServerParse);
        assert!(!format!("{error:?} {error}").contains("hunter2"));
    }

    #[tokio::test]
    async fn a_refused_connection_names_the_server_and_no_password() {
        // Port 1 is reserved and closed on any machine that runs tests.
        let error = connect("nats://relay:hunter2@127.0.0.1:1", connect_options())
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ConnectErrorKind::Io);
        assert!(error.to_string().contains("127.0.0.1:1"), "{error}");
        assert!(!format!("{error:?} {error}").contains("hunter2"));
    }
}
