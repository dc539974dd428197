//! Opens a pool for a program that may start before its database.
//!
//! A sqlx 0.9 pool reports only a timeout (after 30 s), not its cause. A separate connection finds
//! the cause.
//!
//! Invariant: temporary errors are retried; a refused login or failed TLS is returned. No error
//! text contains the address or a password.

mod address;
mod driver;
#[cfg(feature = "postgres")]
mod pooler;

pub(crate) mod memory;

use std::time::Duration;

use sea_orm::{ConnectOptions, Database, DatabaseConnection, DbErr};
use tokio::time::sleep;

use self::address::keep;
pub use self::address::{check as check_address, lazy as open_lazily};
use self::driver::{ask, is_broken_protocol, is_file_missing, is_of_pooler, server_of, shares_sessions, why};

const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// Time for the pool to connect before a separate connection tests the server.
const PATIENCE: Duration = Duration::from_secs(1);

/// Opens a connection pool, and waits for its database.
///
/// Differences from SeaORM's `Database::connect`:
///
/// * While the server is down or starting, `connect` retries without limit: after 100 ms, then with
///   doubled pauses of up to 2 s. Each reason is logged once. A refused login or failed TLS is
///   returned at once.
/// * Statements are logged at level debug instead of info. A level set in `options` is kept.
/// * Unknown address parameters are errors. IPv6 addresses (`[::1]`) work.
/// * A PostgreSQL pooler that shares sessions (PgBouncer with `pool_mode = transaction`) is
///   refused.
/// * An in-memory SQLite pool never closes a connection: no idle timeout, maximum lifetime or test
///   before use.
///
/// SeaORM logs the address with its password at level trace, target `sea_orm::driver`. Keep that
/// target at debug (`info,sea_orm=debug`), or use `PGPASSWORD` or `.pgpass`.
///
/// To start a service before its database, use `Database::connect` with `connect_lazy(true)`. Relay
/// and inbox then wait in `run`.
///
/// # Errors
///
/// [`ConnectError`], never [`ConnectError::OutOfReach`].
///
/// # Cancellation
///
/// Dropping the future closes its connections.
pub async fn connect(options: impl Into<ConnectOptions>) -> Result<DatabaseConnection, ConnectError> {
    let mut options = options.into();
    if let ("INFO", Ok(debug)) = (options.get_sqlx_logging_level().as_str(), "debug".parse()) {
        options.sqlx_logging_level(debug);
    }
    let mut asking = options.clone();
    asking
        .min_connections(0)
        .after_connect(|_| Box::pin(async { Ok(()) }));
    let asking = open_lazily(asking).await?;
    keep(&asking, &mut options);
    if is_in_memory(options.get_url()) {
        options
            .idle_timeout(None)
            .max_lifetime(None)
            .test_before_acquire(false);
    }
    let (mut pause, mut said) = (PAUSE_MIN, String::new());
    loop {
        let error = match try_once(&asking, &options).await {
            Err(error @ ConnectError::OutOfReach { .. }) => error,
            outcome => {
                if !said.is_empty() && outcome.is_ok() {
                    tracing::info!(server = server_of(&asking), "the database answers");
                }
                return outcome;
            }
        };
        let reason = outbox_core::describe(&error);
        if said != reason {
            tracing::warn!(
                reason,
                "waiting for the database; start the database or correct its address"
            );
            said = reason;
        }
        sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

fn is_in_memory(address: &str) -> bool {
    address.starts_with("sqlite:") && (address.contains(":memory:") || address.contains("mode=memory"))
}

async fn try_once(
    asking: &DatabaseConnection,
    options: &ConnectOptions,
) -> Result<DatabaseConnection, ConnectError> {
    reach(asking).await?;
    check_sessions(asking, None).await?;
    match Database::connect(options.clone()).await {
        Ok(opened) => Ok(opened),
        // The pool's error lacks the cause, so a separate connection tests the server.
        Err(source) => match reach(asking).await {
            Ok(()) if is_broken_protocol(&source) => Err(ConnectError::OutOfReach {
                server: server_of(asking),
                source,
            }),
            Ok(()) => Err(connect_error(asking, source)),
            Err(error) => Err(error),
        },
    }
}

/// Tests the server by a connection outside the pool. `Ok` for SQLite.
#[doc(hidden)]
pub async fn reach(pool: &DatabaseConnection) -> Result<(), ConnectError> {
    ask(pool).await.map_err(|source| connect_error(pool, source))
}

/// Returns [`ConnectError::Pooler`] if a pooler shares sessions. `Ok` if the server cannot be
/// tested, or if the error `failed` is an outage.
#[doc(hidden)]
pub async fn check_sessions(pool: &DatabaseConnection, failed: Option<&DbErr>) -> Result<(), ConnectError> {
    if failed.is_some_and(|error| is_out_of_reach(error) && !is_of_pooler(error)) {
        return Ok(());
    }
    match shares_sessions(pool).await {
        Some(source) => Err(connect_error(pool, source)),
        None => Ok(()),
    }
}

/// Why a database connection cannot be opened. The field `server` has the server's kind, host, user
/// and database.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The address is malformed, or the driver's feature is disabled.
    #[error(
        "the address of the database is malformed, or its driver is not enabled; use \
         `postgres://user:password@host:5432/database`, `mysql://…` or `sqlite://file?mode=rwc`, and enable the feature `postgres`, `mysql` or `sqlite`"
    )]
    Address,
    /// The driver does not support a parameter.
    #[error(
        "the address of the database has an unknown parameter `{parameter}`; correct or remove the parameter"
    )]
    Parameter {
        /// Parameter name, at most 64 characters.
        parameter: String,
    },
    /// The SQLite file cannot be opened.
    #[error(
        "the SQLite file `{file}` cannot be opened; create the file, add `?mode=rwc` to its address, or correct its path and permissions"
    )]
    File {
        /// Path of the file.
        file: String,
        /// SQLite's error.
        source: DbErr,
    },
    /// A pooler shares sessions, or rejects startup parameters.
    #[error(
        "{server} is behind a pooler that relays, consumers and migrations cannot use; connect to PostgreSQL directly, or use session pooling \
         (PgBouncer: `pool_mode = session`)"
    )]
    Pooler {
        /// The server.
        server: String,
        /// Cause of the rejection.
        source: DbErr,
    },
    /// The server rejects user, password or database.
    #[error(
        "{server} refuses the login; correct user, password and database name in the address, or allow this login on the server"
    )]
    Refused {
        /// The server.
        server: String,
        /// The server's error.
        source: DbErr,
    },
    /// Untrusted certificate, wrong name, missing certificate or key file, or no TLS on the server.
    #[error(
        "no TLS connection to {server}; check that the server supports TLS, and that its certificate is for this host name and from a public authority or \
         an authority in the address (`sslrootcert=FILE`, for MySQL and MariaDB `ssl-ca=FILE`)"
    )]
    Tls {
        /// The server.
        server: String,
        /// Cause of the TLS failure.
        source: DbErr,
    },
    /// The server does not answer, or accepts no connections now.
    #[error("{server} is unreachable")]
    OutOfReach {
        /// The server.
        server: String,
        /// Connection error.
        source: DbErr,
    },
    /// The connection failed for another reason, such as a server that is not a database.
    #[error("{server} cannot be used")]
    Failed {
        /// The server.
        server: String,
        /// Connection error.
        source: DbErr,
    },
}

impl ConnectError {
    /// Whether the error lasts until an operator acts.
    #[doc(hidden)]
    #[must_use]
    pub fn is_lasting(&self) -> bool {
        !matches!(self, Self::OutOfReach { .. } | Self::Failed { .. })
    }
}

/// Classifies a pool error.
#[doc(hidden)]
pub fn connect_error(pool: &DatabaseConnection, source: DbErr) -> ConnectError {
    let server = server_of(pool);
    match why(&source) {
        Some(Why::Login) => ConnectError::Refused { server, source },
        Some(Why::Tls) => ConnectError::Tls { server, source },
        Some(Why::Away) if is_file_missing(pool, &source) => ConnectError::Tls { server, source },
        Some(Why::Away) => ConnectError::OutOfReach { server, source },
        Some(Why::Pooler) => ConnectError::Pooler { server, source },
        None => ConnectError::Failed { server, source },
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Why {
    Login,
    Tls,
    Away,
    Pooler,
}

/// Whether the server is unreachable or the pool is exhausted.
pub(crate) fn is_out_of_reach(error: &DbErr) -> bool {
    why(error) == Some(Why::Away)
}

/// After 1 s, returns why connections fail. Stays pending forever if the server accepts a
/// connection, because then the pool is only busy. Cancel-safe.
#[doc(hidden)]
pub async fn why_no_connection(pool: &DatabaseConnection) -> DbErr {
    sleep(PATIENCE).await;
    match ask(pool).await {
        Err(source) => source,
        Ok(()) => std::future::pending().await,
    }
}

const OF_POOLER: &str = "08P01";

/// SQLSTATE classes and codes: login (28), database missing (3D000), connection (08), resources
/// (53), start or stop (57P).
fn why_of_sqlstate(code: &str) -> Option<Why> {
    match code {
        "3D000" => Some(Why::Login),
        code if code.len() != 5 => None,
        code if code.starts_with("28") => Some(Why::Login),
        code if ["08", "53"].contains(&&code[..2]) || code.starts_with("57P0") => Some(Why::Away),
        _ => None,
    }
}

/// MySQL errors: access, host, database or account refused; too many connections, shutdown, Galera
/// not ready.
fn why_of_mysql(number: u16) -> Option<Why> {
    match number {
        1044 | 1045 | 1049 | 1130 | 1698 | 1820 | 1862 | 3118 | 4151 => Some(Why::Login),
        1040 | 1047 | 1053 | 1203 | 1226 => Some(Why::Away),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_login_is_not_an_outage() {
        for code in ["28P01", "28000", "3D000"] {
            assert_eq!(why_of_sqlstate(code), Some(Why::Login), "{code}");
        }
        for code in ["57P03", "57P01", "53300", "08006"] {
            assert_eq!(why_of_sqlstate(code), Some(Why::Away), "{code}");
        }
        for code in ["", "42501", "42P01", "40001", "57014", "14"] {
            assert_eq!(why_of_sqlstate(code), None, "{code}");
        }
        assert_eq!(why_of_mysql(1045), Some(Why::Login));
        assert_eq!(why_of_mysql(1040), Some(Why::Away));
        assert_eq!(why_of_mysql(1146), None);
    }

    /// SeaORM's error text contains the address; this crate's error must not.
    #[tokio::test]
    async fn a_malformed_address_does_not_show_its_password() {
        for address in [
            "relay:hunter2@db",
            "oracle://relay:hunter2@db/shop",
            "postgres://relay:hunter2@db:port/shop",
        ] {
            let error = connect(address).await.unwrap_err();
            assert!(matches!(error, ConnectError::Address), "{error:?}");
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{error:?}");
        }
    }
}
