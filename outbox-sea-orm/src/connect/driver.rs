//! Server names, connection tests and error classes.
//!
//! Invariant: errors are classified by type and code, not by text.

use sea_orm::DatabaseConnectionType;
use sea_orm::sqlx;
use sea_orm::sqlx::{ConnectOptions as _, Connection as _};
use sea_orm::{DatabaseConnection, DbErr, RuntimeErr};

use super::Why;
#[cfg(feature = "postgres")]
use super::pooler::{self, Greeting, Pooler};
use crate::error::code::{ErrorCode, has_code};

/// Connection attempts if the server is ready but sqlx reports a protocol error.
#[cfg(feature = "postgres")]
const ATTEMPTS: usize = 5;

pub(super) async fn ask(pool: &DatabaseConnection) -> Result<(), DbErr> {
    match &pool.inner {
        #[cfg(feature = "postgres")]
        DatabaseConnectionType::SqlxPostgresPoolConnection(_) => {
            let options = pool.get_postgres_connection_pool().connect_options();
            within(ask_postgres(&options)).await
        }
        #[cfg(feature = "mysql")]
        DatabaseConnectionType::SqlxMySqlPoolConnection(_) => {
            let options = pool.get_mysql_connection_pool().connect_options();
            within(async { options.connect().await?.close().await }).await
        }
        _ => Ok(()),
    }
}

/// Tests a connection. If the server answers sqlx's SSLRequest with an error, the result is a
/// refused connection instead of sqlx's protocol error.
#[cfg(feature = "postgres")]
async fn ask_postgres(options: &sqlx::postgres::PgConnectOptions) -> Result<(), sqlx::Error> {
    let mut attempts = 0;
    let error = loop {
        let error = match options.connect().await {
            Ok(connection) => return connection.close().await,
            Err(error) => error,
        };
        attempts += 1;
        if !matches!(error, sqlx::Error::Protocol(_)) {
            break error;
        }
        match pooler::greeting_to_tls(options).await? {
            Greeting::Ready if attempts < ATTEMPTS => {}
            Greeting::Ready | Greeting::Error => {
                let text = "the server answered with an error before the login; it may be starting, stopping or out of memory";
                return Err(std::io::Error::new(std::io::ErrorKind::ConnectionRefused, text).into());
            }
            Greeting::Foreign => break error,
        }
    };
    if has_code_of_pooler(&error) && pooler::refuses_parameters(options).await? {
        return Err(sqlx::Error::Configuration(Box::new(Pooler::RefusesParameters)));
    }
    Err(error)
}

pub(super) async fn shares_sessions(pool: &DatabaseConnection) -> Option<DbErr> {
    match &pool.inner {
        #[cfg(feature = "postgres")]
        DatabaseConnectionType::SqlxPostgresPoolConnection(_) => {
            let options = pool.get_postgres_connection_pool().connect_options();
            let look = async {
                ask_postgres(&options).await?;
                match pooler::shares_sessions(&options).await? {
                    true => Err(sqlx::Error::Configuration(Box::new(Pooler::SharesSessions))),
                    false => Ok(()),
                }
            };
            let found = within(look).await.err()?;
            (why(&found) == Some(Why::Pooler)).then_some(found)
        }
        _ => None,
    }
}

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
        #[cfg(feature = "postgres")]
        DbErr::Conn(RuntimeErr::SqlxError(error)) if is_pooler(error) => Some(Why::Pooler),
        // A TLS failure is a set-up error only while connecting: if an open connection breaks, the
        // pool reopens it.
        DbErr::Conn(RuntimeErr::SqlxError(error)) if is_tls(error) => Some(Why::Tls),
        DbErr::Conn(RuntimeErr::SqlxError(error))
        | DbErr::Exec(RuntimeErr::SqlxError(error))
        | DbErr::Query(RuntimeErr::SqlxError(error)) => why_of_driver(error),
        _ => None,
    }
}

#[cfg(feature = "postgres")]
fn is_pooler(error: &sqlx::Error) -> bool {
    matches!(error, sqlx::Error::Configuration(cause) if cause.is::<Pooler>())
}

/// sqlx 0.9 reports errors of rustls as `InvalidData`.
fn is_tls(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Tls(_) => true,
        sqlx::Error::Io(error) => error.kind() == std::io::ErrorKind::InvalidData,
        _ => false,
    }
}

pub(super) fn is_broken_protocol(error: &DbErr) -> bool {
    matches!(error, DbErr::Conn(RuntimeErr::SqlxError(error)) if matches!(**error, sqlx::Error::Protocol(_)))
}

pub(super) fn is_of_pooler(error: &DbErr) -> bool {
    has_code(error, &[super::OF_POOLER])
}

#[cfg(feature = "postgres")]
fn has_code_of_pooler(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(|error| error.code());
    code.as_deref() == Some(super::OF_POOLER)
}

/// Whether the driver lacks a certificate or key file. Over a Unix socket, the missing file is the
/// socket of a stopped server.
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
        sqlx::Error::Database(answer) => ErrorCode::of_answer(&**answer),
        _ => return None,
    };
    match answer.number {
        Some(number) => super::why_of_mysql(number),
        None => super::why_of_sqlstate(&answer.code),
    }
}
