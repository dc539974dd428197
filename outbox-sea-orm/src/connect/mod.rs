//! Opens the pool of a program that may start before its database, and says why a server takes no connection.
//!
//! A pool of sqlx 0.9 hides both: while a server is away it tries for 30 s without a word, and then reports that the pool has timed out. So the server is
//! asked beside the pool, over a connection of its own. Invariants: what passes by itself is waited for; a login that the server refuses is an error,
//! because waiting changes no password, and so is TLS that fails, because it changes no certificate. No text holds a password; the address is never shown.

mod address;
mod driver;
#[cfg(feature = "postgres")]
mod pooler;

pub(crate) mod memory;

use std::time::Duration;

use sea_orm::{ConnectOptions, Database, DatabaseConnection, DbErr};
use tokio::time::sleep;

use self::address::{check, keep, lazy};
use self::driver::{ask, is_broken_protocol, is_file_missing, is_of_pooler, server_of, shares_sessions, why};

/// The first pause between two tries; each one doubles it.
const PAUSE_MIN: Duration = Duration::from_millis(100);
/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// How long a call may wait for the pool before the server is asked.
const PATIENCE: Duration = Duration::from_secs(1);

/// Opens a connection pool, and waits for its database.
///
/// It is SeaORM's `Database::connect` with these differences:
///
/// * While no server answers, or the server is still starting, it retries without end: after 100 ms, then after longer pauses of up to 2 s. It logs each
///   reason once. A refused login and failed TLS are returned at once.
/// * Statements are logged at level debug instead of info, because relay and inbox poll. Every other level that `options` set is kept.
/// * A parameter of the address that the driver does not know is an error. An IPv6 address (`[::1]`) works.
/// * PostgreSQL behind a pooler that shares sessions (PgBouncer with `pool_mode = transaction`) is refused.
///
/// SeaORM logs the address with its password at level trace, target `sea_orm::driver`. Keep that target at debug in your subscriber
/// (`info,sea_orm=debug`), or leave the password to `PGPASSWORD` or `.pgpass`.
///
/// For an in-memory database of SQLite, the pool never closes a connection: no idle timeout, no maximum
/// lifetime, no test before use. Such a database ends with its last connection.
///
/// Take `Database::connect` with `connect_lazy(true)` for a service that is to answer before its database does. Relay and inbox then wait in their
/// `run`.
///
/// # Errors
///
/// [`ConnectError`], never [`ConnectError::OutOfReach`].
///
/// # Cancellation
///
/// Dropping the future closes what it has opened.
pub async fn connect(options: impl Into<ConnectOptions>) -> Result<DatabaseConnection, ConnectError> {
    let mut options = options.into();
    // The type of the level belongs to the crate `log`, which SeaORM does not re-export.
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
                "waiting for the database; start it, or correct its address"
            );
            said = reason;
        }
        sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// Whether an address names an in-memory database of SQLite.
fn is_in_memory(address: &str) -> bool {
    address.starts_with("sqlite:") && (address.contains(":memory:") || address.contains("mode=memory"))
}

/// Checks the parameters of an address.
///
/// # Errors
///
/// [`ConnectError::Address`] and [`ConnectError::Parameter`].
#[doc(hidden)]
pub fn check_address(address: &str) -> Result<(), ConnectError> {
    check(address)
}

/// A pool that connects on the first acquire. The address is checked as by [`connect`].
///
/// # Errors
///
/// [`ConnectError::Address`], [`ConnectError::Parameter`] and [`ConnectError::File`].
#[doc(hidden)]
pub async fn open_lazily(mut options: ConnectOptions) -> Result<DatabaseConnection, ConnectError> {
    options.connect_lazy(true);
    lazy(options).await
}

async fn try_once(
    asking: &DatabaseConnection,
    options: &ConnectOptions,
) -> Result<DatabaseConnection, ConnectError> {
    reach(asking).await?;
    check_sessions(asking, None).await?;
    match Database::connect(options.clone()).await {
        Ok(opened) => Ok(opened),
        // The pool does not report the cause.
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

/// Opens and closes a connection outside the pool. Does not open a SQLite file.
///
/// # Errors
///
/// Why there is no connection.
#[doc(hidden)]
pub async fn reach(pool: &DatabaseConnection) -> Result<(), ConnectError> {
    ask(pool).await.map_err(|source| connect_error(pool, source))
}

/// Checks that each connection keeps its session.
///
/// # Errors
///
/// [`ConnectError::Pooler`]. `Ok` if the server cannot be tested, and if `failed`, the error of a statement before, is an outage.
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

/// Why there is no connection to a database.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The address is malformed, or the crate was built without its database.
    #[error(
        "the address of the database is malformed, or the feature of its database is not enabled; use \
         `postgres://user:password@host:5432/database`, `mysql://…` or `sqlite://file?mode=rwc`, and the feature `postgres`, `mysql` or `sqlite`"
    )]
    Address,
    /// The address has a parameter that the driver does not know.
    #[error(
        "the address of the database has an unknown parameter `{parameter}`; correct its name or remove it"
    )]
    Parameter {
        /// Its name, at most 64 characters.
        parameter: String,
    },
    /// The file of SQLite cannot be opened.
    #[error(
        "the SQLite file `{file}` cannot be opened; create it, add `?mode=rwc` to its address, or correct its path and rights"
    )]
    File {
        /// Its path.
        file: String,
        /// What SQLite reports.
        source: DbErr,
    },
    /// A pooler assigns the connection another session after each transaction, or refuses its startup parameters.
    #[error(
        "{server} is reached through a pooler that relays, consumers and migrations cannot use; name PostgreSQL itself in the address, or let the pooler \
         keep sessions (PgBouncer: `pool_mode = session`)"
    )]
    Pooler {
        /// Kind, host, user and database of the server.
        server: String,
        /// Which of both.
        source: DbErr,
    },
    /// The server refuses user, password or database. It will do so until somebody acts.
    #[error(
        "{server} refuses the login; correct user, password and database name in its address, or let the server admit them"
    )]
    Refused {
        /// Kind, host, user and database of the server.
        server: String,
        /// The server's words.
        source: DbErr,
    },
    /// There is no TLS connection: the certificate is not trusted or is for another name, a file of certificates or keys that the address names is missing, or
    /// the server has no TLS. It will be so until somebody acts.
    #[error(
        "no TLS connection to {server}; check that its certificate is for this host name and from an authority that is well known or that the address \
         names (`sslrootcert=FILE`, for MySQL and MariaDB `ssl-ca=FILE`), and that the server has TLS"
    )]
    Tls {
        /// Kind, host, user and database of the server.
        server: String,
        /// What is wrong.
        source: DbErr,
    },
    /// No server answers, or it takes no connections now.
    #[error("{server} is out of reach")]
    OutOfReach {
        /// Kind, host, user and database of the server.
        server: String,
        /// What happened instead of an answer.
        source: DbErr,
    },
    /// The connection failed for another reason: a file that cannot be opened, something else than a database at this address.
    #[error("{server} cannot be used")]
    Failed {
        /// Kind, host, user and database of the server.
        server: String,
        /// What happened.
        source: DbErr,
    },
}

impl ConnectError {
    /// Whether the error lasts until an operator acts. Then waiting is useless.
    #[doc(hidden)]
    #[must_use]
    pub fn is_lasting(&self) -> bool {
        match self {
            Self::Address
            | Self::Parameter { .. }
            | Self::File { .. }
            | Self::Pooler { .. }
            | Self::Refused { .. }
            | Self::Tls { .. } => true,
            Self::OutOfReach { .. } | Self::Failed { .. } => false,
        }
    }
}

/// What an error of a pool means.
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

/// Why a server took no connection, or lost one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Why {
    /// It refuses user, password or database.
    Login,
    /// One side does not accept the other's TLS.
    Tls,
    /// It does not answer, or takes no connections now. That passes.
    Away,
    /// A pooler shares sessions or refuses parameters.
    Pooler,
}

/// Whether nobody answered, or the pool had no connection to give.
pub(crate) fn is_out_of_reach(error: &DbErr) -> bool {
    why(error) == Some(Why::Away)
}

/// Asks the server why it takes no connection, after a call has waited for the pool for a second. It never ends if the server takes one: the pool
/// is busy, then. Dropping the future closes what it has opened.
#[doc(hidden)]
pub async fn why_no_connection(pool: &DatabaseConnection) -> DbErr {
    sleep(PATIENCE).await;
    match ask(pool).await {
        Err(source) => source,
        Ok(()) => std::future::pending().await,
    }
}

/// The SQLSTATE of all errors that PgBouncer reports itself: a refused parameter, or a server that is down.
const OF_POOLER: &str = "08P01";

/// PostgreSQL: the login (28), a missing database, no right to connect to it. Then: a lost connection (08), too many connections or another
/// shortage (53), a server that starts or stops (57P).
fn why_of_sqlstate(code: &str) -> Option<Why> {
    match code {
        "3D000" => Some(Why::Login),
        code if code.len() != 5 => None,
        code if code.starts_with("28") => Some(Why::Login),
        code if ["08", "53"].contains(&&code[..2]) || code.starts_with("57P0") => Some(Why::Away),
        _ => None,
    }
}

/// MySQL and MariaDB: access denied (for a database; with and without a password; to this host; by the plugin), an unknown database, an expired or
/// locked account. Then: too many connections, a server that stops, a Galera node that is not ready.
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
    fn a_refused_login_is_told_apart_from_an_outage() {
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

    /// SeaORM's own text holds the whole address.
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
