//! Opens the pool of a program that may start before its database, and says why a server takes no connection.
//!
//! A pool of sqlx 0.9 hides both: while a server is away it tries for 30 s without a word, and then reports that the pool has timed out. So the server is
//! asked beside the pool, over a connection of its own. Invariants: what passes by itself is waited for; a login that the server refuses is an error,
//! because waiting changes no password, and so is TLS that fails, because it changes no certificate. No text holds a password; the address is never shown.

use std::time::Duration;

use sea_orm::{ConnectOptions, Database, DatabaseConnection, DbErr};
use tokio::time::sleep;

/// The first pause between two tries; each one doubles it.
const PAUSE_MIN: Duration = Duration::from_millis(100);
/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// How long a call may wait for the pool before the server is asked.
const PATIENCE: Duration = Duration::from_secs(1);

/// Opens a connection pool, and waits for its database.
///
/// It is SeaORM's `Database::connect` with these differences. While no server answers, or it still starts, it tries again, without end: after
/// 100 ms, then after longer pauses of up to 2 s. It says so in the log, once for each reason. A login that the server refuses and TLS that fails are
/// reported at once. And statements are logged at level debug instead of info, because relay and inbox poll; every other level that `options` set is kept.
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
        .connect_lazy(true)
        .min_connections(0)
        .after_connect(|_| Box::pin(async { Ok(()) }));
    // The error is not kept: SeaORM's text holds the address with its password.
    let asking = Database::connect(asking)
        .await
        .map_err(|_| ConnectError::Address)?;
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

async fn try_once(
    asking: &DatabaseConnection,
    options: &ConnectOptions,
) -> Result<DatabaseConnection, ConnectError> {
    ask(asking).await?;
    let opened = Database::connect(options.clone()).await;
    opened.map_err(|source| connect_error(asking, source))
}

/// Why there is no connection to a database.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The address cannot be read, or the crate was built without its database.
    #[error(
        "the address of the database is malformed, or the feature of its database is not enabled; use \
         `postgres://user:password@host:5432/database`, `mysql://…` or `sqlite://file?mode=rwc`, and the feature `postgres`, `mysql` or `sqlite`"
    )]
    Address,
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

/// What an error of a pool means.
#[doc(hidden)]
pub fn connect_error(pool: &DatabaseConnection, source: DbErr) -> ConnectError {
    let server = server_of(pool);
    match why(&source) {
        Some(Why::Login) => ConnectError::Refused { server, source },
        Some(Why::Tls) => ConnectError::Tls { server, source },
        Some(Why::Away) if is_file_missing(pool, &source) => ConnectError::Tls { server, source },
        Some(Why::Away) => ConnectError::OutOfReach { server, source },
        None => ConnectError::Failed { server, source },
    }
}

/// Why a server took no connection, or lost one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(
    not(any(feature = "postgres", feature = "mysql", feature = "sqlite")),
    expect(dead_code, reason = "only drivers report it")
)]
enum Why {
    /// It refuses user, password or database.
    Login,
    /// One side does not accept the other's TLS.
    Tls,
    /// It does not answer, or takes no connections now. That passes.
    Away,
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
        Err(
            ConnectError::Refused { source, .. }
            | ConnectError::Tls { source, .. }
            | ConnectError::OutOfReach { source, .. }
            | ConnectError::Failed { source, .. },
        ) => source,
        Ok(()) | Err(ConnectError::Address) => std::future::pending().await,
    }
}

#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
use driver::{ask, is_file_missing, server_of, why};

#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
mod driver {
    #[cfg(any(feature = "postgres", feature = "mysql"))]
    use sea_orm::DatabaseConnectionType;
    use sea_orm::sqlx;
    #[cfg(any(feature = "postgres", feature = "mysql"))]
    use sea_orm::sqlx::{ConnectOptions as _, Connection as _};
    use sea_orm::{DatabaseConnection, DbErr, RuntimeErr};

    use super::{ConnectError, Why, connect_error};

    /// Opens a connection as the pool would, and closes it. A file is not asked.
    pub(super) async fn ask(pool: &DatabaseConnection) -> Result<(), ConnectError> {
        let asked = match &pool.inner {
            #[cfg(feature = "postgres")]
            DatabaseConnectionType::SqlxPostgresPoolConnection(_) => {
                let options = pool.get_postgres_connection_pool().connect_options();
                within(async { options.connect().await?.close().await }).await
            }
            #[cfg(feature = "mysql")]
            DatabaseConnectionType::SqlxMySqlPoolConnection(_) => {
                let options = pool.get_mysql_connection_pool().connect_options();
                within(async { options.connect().await?.close().await }).await
            }
            _ => Ok(()),
        };
        asked.map_err(|source| connect_error(pool, source))
    }

    /// Bounds the answer of a server, whose address may lead nowhere.
    #[cfg(any(feature = "postgres", feature = "mysql"))]
    async fn within(asked: impl Future<Output = Result<(), sqlx::Error>>) -> Result<(), DbErr> {
        use std::sync::Arc;

        const ANSWER: std::time::Duration = std::time::Duration::from_secs(10);
        match tokio::time::timeout(ANSWER, asked).await {
            Ok(answer) => answer.map_err(|error| DbErr::Conn(RuntimeErr::SqlxError(Arc::new(error)))),
            Err(_) => Err(DbErr::Conn(RuntimeErr::SqlxError(Arc::new(sqlx::Error::Io(
                std::io::Error::new(
                    std::io::ErrorKind::TimedOut,
                    format!("no answer within {ANSWER:?}"),
                ),
            ))))),
        }
    }

    /// Kind, host, user and database. Never the password.
    pub(super) fn server_of(pool: &DatabaseConnection) -> String {
        match &pool.inner {
            #[cfg(feature = "postgres")]
            DatabaseConnectionType::SqlxPostgresPoolConnection(_) => {
                let options = pool.get_postgres_connection_pool().connect_options();
                let place = match options.get_socket() {
                    Some(socket) => socket.display().to_string(),
                    None => format!("{}:{}", options.get_host(), options.get_port()),
                };
                let (user, database) = (options.get_username(), options.get_database());
                let database = database.unwrap_or(user);
                format!("PostgreSQL server {place} (user `{user}`, database `{database}`)")
            }
            #[cfg(feature = "mysql")]
            DatabaseConnectionType::SqlxMySqlPoolConnection(_) => {
                let options = pool.get_mysql_connection_pool().connect_options();
                let place = match options.get_socket() {
                    Some(socket) => socket.display().to_string(),
                    None => format!("{}:{}", options.get_host(), options.get_port()),
                };
                let (user, database) = (options.get_username(), options.get_database());
                let database = database.unwrap_or("none");
                format!("MySQL or MariaDB server {place} (user `{user}`, database `{database}`)")
            }
            _ => "the database".to_owned(),
        }
    }

    pub(super) fn why(error: &DbErr) -> Option<Why> {
        match error {
            DbErr::ConnectionAcquire(_) => Some(Why::Away),
            // Only while it connects. A connection that breaks later is opened anew, whatever broke it.
            DbErr::Conn(RuntimeErr::SqlxError(error)) if is_tls(error) => Some(Why::Tls),
            DbErr::Conn(RuntimeErr::SqlxError(error))
            | DbErr::Exec(RuntimeErr::SqlxError(error))
            | DbErr::Query(RuntimeErr::SqlxError(error)) => why_of_driver(error),
            _ => None,
        }
    }

    /// rustls hands what it refuses to sqlx 0.9 as invalid data. The drivers report what they cannot read themselves as a violated protocol.
    fn is_tls(error: &sqlx::Error) -> bool {
        match error {
            sqlx::Error::Tls(_) => true,
            sqlx::Error::Io(error) => error.kind() == std::io::ErrorKind::InvalidData,
            _ => false,
        }
    }

    /// Whether a file of certificates is missing: over TCP, no other file is needed. A socket that is missing means that its server is away.
    pub(super) fn is_file_missing(pool: &DatabaseConnection, error: &DbErr) -> bool {
        let is_over_tcp = match &pool.inner {
            #[cfg(feature = "postgres")]
            DatabaseConnectionType::SqlxPostgresPoolConnection(_) => {
                let options = pool.get_postgres_connection_pool().connect_options();
                options.get_socket().is_none() && !options.get_host().starts_with('/')
            }
            #[cfg(feature = "mysql")]
            DatabaseConnectionType::SqlxMySqlPoolConnection(_) => {
                let options = pool.get_mysql_connection_pool().connect_options();
                options.get_socket().is_none()
            }
            _ => false,
        };
        let is_missing = |error: &sqlx::Error| matches!(error, sqlx::Error::Io(error) if error.kind() == std::io::ErrorKind::NotFound);
        is_over_tcp && matches!(error, DbErr::Conn(RuntimeErr::SqlxError(error)) if is_missing(error))
    }

    fn why_of_driver(error: &sqlx::Error) -> Option<Why> {
        let answer = match error {
            sqlx::Error::Io(_) | sqlx::Error::PoolTimedOut | sqlx::Error::PoolClosed => {
                return Some(Why::Away);
            }
            sqlx::Error::Database(answer) => answer,
            _ => return None,
        };
        #[cfg(feature = "mysql")]
        if let Some(answer) = answer.try_downcast_ref::<sqlx::mysql::MySqlDatabaseError>() {
            return super::why_of_mysql(answer.number());
        }
        super::why_of_sqlstate(&answer.code().unwrap_or_default())
    }
}

/// PostgreSQL: the login (28), a missing database, no right to connect to it. Then: a lost connection (08), too many connections or another
/// shortage (53), a server that starts or stops (57P).
#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite", test))]
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
#[cfg(any(feature = "mysql", test))]
fn why_of_mysql(number: u16) -> Option<Why> {
    match number {
        1044 | 1045 | 1049 | 1130 | 1698 | 1820 | 1862 | 3118 | 4151 => Some(Why::Login),
        1040 | 1047 | 1053 | 1203 | 1226 => Some(Why::Away),
        _ => None,
    }
}

/// Without a driver, nobody can be asked.
#[cfg(not(any(feature = "postgres", feature = "mysql", feature = "sqlite")))]
async fn ask(_: &DatabaseConnection) -> Result<(), ConnectError> {
    Err(ConnectError::Address)
}

#[cfg(not(any(feature = "postgres", feature = "mysql", feature = "sqlite")))]
fn server_of(_: &DatabaseConnection) -> String {
    "the database".to_owned()
}

#[cfg(not(any(feature = "postgres", feature = "mysql", feature = "sqlite")))]
fn is_file_missing(_: &DatabaseConnection, _: &DbErr) -> bool {
    false
}

#[cfg(not(any(feature = "postgres", feature = "mysql", feature = "sqlite")))]
fn why(_: &DbErr) -> Option<Why> {
    None
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
