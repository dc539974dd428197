//! Connects to NATS with the caller's options for authentication and TLS.
//!
//! Invariants: a wrong address or password is an error at start, not an endless retry. Asynchronous
//! server errors are logged. No secret is formatted.

pub(crate) mod address;
pub(crate) mod connection;
pub(crate) mod credentials;
pub(crate) mod denials;
pub(crate) mod events;

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_nats::{Client, ConnectErrorKind, ConnectOptions, Event, ServerAddr};
use percent_encoding::percent_decode_str;

use crate::connect::connection::Origin;
use crate::connect::denials::Reports;
use crate::connect::events::Notices;
use crate::publish::WINDOW;
use crate::stream::subject::encode_token;

const PAUSE_MIN: Duration = Duration::from_millis(100);

const PAUSE_MAX: Duration = Duration::from_secs(2);

const REASONS_MAX: usize = 32;

const PING_INTERVAL: Duration = Duration::from_secs(10);

/// Recommended connection options.
///
/// * Connection name: `outbox`.
/// * Send buffer: 1024 messages. async-nats sends buffered messages after a reconnection.
/// * Ping interval: 10 s. A server is disconnected after two unanswered pings.
///
/// Add the credentials that the server requires:
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
/// Tokens, NKeys, client certificates and a `rustls` configuration are further options. TLS is used
/// when the server, the address (`tls://`) or the options require it. Set `require_tls(true)` for
/// every remote server.
///
/// Keep `retry_on_initial_connect` off: with this option, [`connect`] returns before the connection
/// is open, and a wrong password is retried without limit. To wait for a broker, use
/// [`EventStream::connect_with`](crate::EventStream::connect_with).
#[must_use]
pub fn connect_options() -> ConnectOptions {
    with_defaults(ConnectOptions::new())
}

pub(crate) fn with_defaults(options: ConnectOptions) -> ConnectOptions {
    options
        .name("outbox")
        .client_capacity(WINDOW)
        .ping_interval(PING_INTERVAL)
}

/// The subject prefix for a user's replies: `_INBOX.<user>`, for
/// [`ConnectOptions::custom_inbox_prefix`].
///
/// A user with permission for `_INBOX.>` can read the replies of all users. With its own prefix,
/// each user needs only `_INBOX.<user>.>`, as `docs/reference/permissions.md` lists.
/// [`EventStream::connect`](crate::EventStream::connect) and
/// [`connect_options_with_credentials`](crate::connect_options_with_credentials) set the prefix.
///
/// ```
/// assert_eq!(outbox_nats::inbox_prefix("billing"), "_INBOX.billing");
/// ```
#[must_use]
pub fn inbox_prefix(user: &str) -> String {
    format!("_INBOX.{}", encode_token(user))
}

pub(crate) async fn connect_when_up(
    servers: Vec<ServerAddr>,
    options: ConnectOptions,
) -> Result<Client, ConnectError> {
    let (mut pause, mut said) = (PAUSE_MIN, HashSet::new());
    loop {
        let error = match open(servers.clone(), options.clone(), |_| {}).await {
            Err(error) if error.is_out_of_reach() => error,
            outcome => return outcome,
        };
        let reason = outbox_core::describe(&error);
        if !said.contains(&reason) && said.len() < REASONS_MAX {
            tracing::warn!(reason, "waiting for nats; start it, or correct its address");
            said.insert(reason);
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// Connects, and logs connection events.
///
/// `servers` is an address such as `nats://127.0.0.1:4222`, or several, separated by commas.
/// The options are used unchanged, with two exceptions:
///
/// * The event callback is replaced by logging; see [`connect_with_events`].
/// * Credentials in the first address with credentials, `nats://user:password@host` or
///   `nats://token@host`, are used for all servers and removed from the addresses.
///
/// A [`JetStreamPublisher`](crate::JetStreamPublisher) of this client opens a second connection
/// with the same options at its first use. The publisher can drop this connection with all queued
/// messages. A publisher with a client that the program created itself has no second connection.
/// Such a publisher reports a denied permission as a timeout, and an abandoned message may arrive
/// later.
///
/// # Errors
///
/// [`ConnectError`] if no server can be reached or the server rejects the credentials. While
/// `retry_on_initial_connect` is set, the call never fails.
pub async fn connect(servers: impl AsRef<str>, options: ConnectOptions) -> Result<Client, ConnectError> {
    connect_with_events(servers, options, |_| {}).await
}

/// Connects as [`connect`], and calls `on_event` for each event after logging the event, also for
/// publisher connections. The callback must not block: an event is dropped if 128 other events are
/// waiting.
///
/// # Errors
///
/// The same errors as [`connect`].
pub async fn connect_with_events(
    servers: impl AsRef<str>,
    options: ConnectOptions,
    on_event: impl Fn(&Event) + Send + Sync + 'static,
) -> Result<Client, ConnectError> {
    open(parse(servers)?, options, on_event).await
}

async fn open(
    servers: Vec<ServerAddr>,
    options: ConnectOptions,
    on_event: impl Fn(&Event) + Send + Sync + 'static,
) -> Result<Client, ConnectError> {
    let names = servers.iter().map(name).collect::<Vec<_>>().join(", ");
    let (reports, notices) = (Arc::new(Reports::new()), Arc::new(Notices::new(names.clone())));
    let user = user_of(&servers);
    let options = with_credentials_of(&servers, options);
    let servers = without_credentials(servers)?;
    let on_event = Arc::new(on_event);
    let watched = |options: ConnectOptions, connection: &'static str| {
        let (reports, notices, on_event) = (reports.clone(), notices.clone(), on_event.clone());
        options.event_callback(move |event| {
            notices.tell(&event, connection, reports.record(&event));
            on_event(&event);
            std::future::ready(())
        })
    };
    let client = watched(options.clone(), "shared")
        .connect(servers.clone())
        .await
        .map_err(|error| ConnectError::new(names, user, error))?;
    let origin = Origin {
        servers,
        options: watched(options, "publisher"),
        reports: reports.clone(),
    };
    origin.remember(&client);
    Ok(client)
}

/// Parses server addresses. A malformed address may hold a password, so the error omits the
/// address.
pub(crate) fn parse(servers: impl AsRef<str>) -> Result<Vec<ServerAddr>, ConnectError> {
    address::servers(servers.as_ref()).map_err(malformed)
}

fn malformed(error: std::io::Error) -> ConnectError {
    let source = async_nats::ConnectError::with_source(ConnectErrorKind::ServerParse, error);
    ConnectError::new("?".to_owned(), None, source)
}

fn name(server: &ServerAddr) -> String {
    format!("{}:{}", server.host(), server.port())
}

/// Returns the [`inbox_prefix`] of the user in the addresses, or `None` without a user and
/// password.
#[must_use]
pub fn inbox_prefix_of(servers: &[ServerAddr]) -> Option<String> {
    user_of(servers).map(|user| inbox_prefix(&user))
}

fn user_of(servers: &[ServerAddr]) -> Option<String> {
    let named = servers.iter().find(|server| server.password().is_some())?;
    let user = named.username()?;
    Some(decode(user))
}

/// A text with a malformed escape, or without UTF-8 after decoding, is used as written.
fn decode(text: &str) -> String {
    let is_escape = |rest: &str| rest.len() >= 2 && rest.bytes().take(2).all(|byte| byte.is_ascii_hexdigit());
    let decoded = percent_decode_str(text).decode_utf8().ok();
    decoded
        .filter(|_| text.split('%').skip(1).all(is_escape))
        .map_or_else(|| text.to_owned(), Cow::into_owned)
}

fn with_credentials_of(servers: &[ServerAddr], options: ConnectOptions) -> ConnectOptions {
    let credentials = servers
        .iter()
        .find_map(|server| Some((server.username()?, server.password())));
    match credentials {
        Some((user, Some(password))) => options.user_and_password(decode(user), decode(password)),
        Some((token, None)) => options.token(decode(token)),
        None => options,
    }
}

/// Removes credentials from addresses, because async-nats logs addresses at level debug.
fn without_credentials(servers: Vec<ServerAddr>) -> Result<Vec<ServerAddr>, ConnectError> {
    let bare = servers.into_iter().map(|server| {
        let mut url = server.into_inner();
        // Removing the password fails only for an address without a host, which has no credentials.
        let _ = url.set_password(None);
        let _ = url.set_username("");
        ServerAddr::from_url(url)
    });
    bare.collect::<Result<_, _>>().map_err(malformed)
}

/// Why the connection failed.
#[derive(Debug)]
pub struct ConnectError {
    servers: String,
    user: Option<String>,
    source: async_nats::ConnectError,
}

impl ConnectError {
    fn new(servers: String, user: Option<String>, source: async_nats::ConnectError) -> Self {
        Self {
            servers,
            user,
            source,
        }
    }

    fn is_out_of_reach(&self) -> bool {
        matches!(
            self.kind(),
            ConnectErrorKind::Io | ConnectErrorKind::TimedOut | ConnectErrorKind::Dns
        )
    }

    /// The kind of failure, as async-nats classifies the failure. Exception: a failed TLS handshake
    /// is always [`ConnectErrorKind::Tls`].
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
                write!(f, "nats server {servers} refused the credentials")?;
                if let Some(user) = &self.user {
                    write!(f, " of user `{user}`")?;
                }
                f.write_str("; check user, password, token or credentials file")
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
    fn malformed_escapes_are_used_as_written() {
        assert_eq!(decode("p%2Cw%c3%bc"), "p,wü");
        for raw in ["100%", "50%2", "a%zz%2C", "%C3%2C"] {
            assert_eq!(decode(raw), raw);
        }
    }

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
    async fn connect_error_names_the_server_without_password() {
        let error = connect("nats://relay:hunter2@127.0.0.1:1", connect_options())
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ConnectErrorKind::Io);
        assert!(error.to_string().contains("127.0.0.1:1"), "{error}");
        assert!(!format!("{error:?} {error}").contains("hunter2"));
    }
}
