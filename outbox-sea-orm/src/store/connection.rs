//! A pool connection of any driver.

use std::sync::Arc;

use sea_orm::sqlx;
use sea_orm::sqlx::pool::PoolConnection;
use sea_orm::{ConnAcquireErr, DatabaseConnection, DatabaseConnectionType, DbErr, RuntimeErr};

use super::no_driver;

#[derive(Debug)]
pub(super) enum Connection {
    #[cfg(feature = "postgres")]
    Postgres(PoolConnection<sqlx::Postgres>),
    #[cfg(feature = "mysql")]
    MySql(PoolConnection<sqlx::MySql>),
    #[cfg(feature = "sqlite")]
    Sqlite(PoolConnection<sqlx::Sqlite>),
    #[cfg(not(any(feature = "postgres", feature = "mysql", feature = "sqlite")))]
    Impossible(std::convert::Infallible),
}

#[cfg(not(any(feature = "postgres", feature = "mysql", feature = "sqlite")))]
pub(super) fn impossible<T>(never: impl std::borrow::Borrow<std::convert::Infallible>) -> T {
    match *never.borrow() {}
}

pub(super) async fn acquire(pool: &DatabaseConnection) -> Result<Connection, DbErr> {
    let failed = |error| match error {
        sqlx::Error::PoolTimedOut => DbErr::ConnectionAcquire(ConnAcquireErr::Timeout),
        sqlx::Error::PoolClosed => DbErr::ConnectionAcquire(ConnAcquireErr::ConnectionClosed),
        error => DbErr::Conn(RuntimeErr::SqlxError(Arc::new(error))),
    };
    match &pool.inner {
        #[cfg(feature = "postgres")]
        DatabaseConnectionType::SqlxPostgresPoolConnection(_) => {
            let live = pool.get_postgres_connection_pool().acquire().await;
            live.map(Connection::Postgres).map_err(failed)
        }
        #[cfg(feature = "mysql")]
        DatabaseConnectionType::SqlxMySqlPoolConnection(_) => {
            let live = pool.get_mysql_connection_pool().acquire().await;
            live.map(Connection::MySql).map_err(failed)
        }
        #[cfg(feature = "sqlite")]
        DatabaseConnectionType::SqlxSqlitePoolConnection(_) => {
            let live = pool.get_sqlite_connection_pool().acquire().await;
            live.map(Connection::Sqlite).map_err(failed)
        }
        _ => Err(no_driver(pool.get_database_backend())),
    }
}
