//! Prevents the loss of in-memory SQLite databases, which end with their last connection.
//!
//! By default, sqlx 0.9.0 closes idle connections after 10 minutes, and every connection after 30
//! minutes. A caller cancelled in `test_before_acquire` also drops its connection.

use sea_orm::{DatabaseConnection, DbErr};

#[doc(hidden)]
#[derive(Debug)]
pub enum InMemory {
    /// The database is on disk, or the pool never closes its connections.
    Safe,
    /// An extra connection keeps the in-memory database alive.
    #[cfg(feature = "sqlite")]
    Kept(std::sync::Mutex<sea_orm::sqlx::SqliteConnection>),
    CanBeLost,
}

#[doc(hidden)]
pub const CAN_BE_LOST: &str = "the in-memory database is lost when its pool closes the last connection; open the pool with \
                               `outbox_sea_orm::connect` (`outbox::connect`), or use the address `sqlite::memory:` or a file";

/// Checks whether the pool can lose its database. Preserves a shared database by an extra
/// connection.
#[doc(hidden)]
#[cfg(feature = "sqlite")]
pub async fn keep_in_memory(pool: &DatabaseConnection) -> Result<InMemory, DbErr> {
    use sea_orm::sqlx::ConnectOptions as _;
    use sea_orm::{DatabaseConnectionType, RuntimeErr};

    if !matches!(pool.inner, DatabaseConnectionType::SqlxSqlitePoolConnection(_))
        || !is_in_memory(pool).await?
    {
        return Ok(InMemory::Safe);
    }
    let sqlx = pool.get_sqlite_connection_pool();
    let options = sqlx.options();
    if options.get_idle_timeout().is_none()
        && options.get_max_lifetime().is_none()
        && !options.get_test_before_acquire()
    {
        return Ok(InMemory::Safe);
    }
    let failed = |error| DbErr::Conn(RuntimeErr::SqlxError(std::sync::Arc::new(error)));
    let mut other = sqlx
        .connect_options()
        .as_ref()
        .clone()
        .connect()
        .await
        .map_err(failed)?;
    let tables = "SELECT count(*) FROM sqlite_schema";
    let shared: i64 = sea_orm::sqlx::query_scalar(tables)
        .fetch_one(&mut other)
        .await
        .map_err(failed)?;
    let all: i64 = sea_orm::sqlx::query_scalar(tables)
        .fetch_one(sqlx)
        .await
        .map_err(failed)?;
    Ok(match shared == all {
        true => InMemory::Kept(std::sync::Mutex::new(other)),
        false => InMemory::CanBeLost,
    })
}

#[cfg(feature = "sqlite")]
async fn is_in_memory(pool: &DatabaseConnection) -> Result<bool, DbErr> {
    use sea_orm::{ConnectionTrait as _, DbBackend, Statement};

    let databases = Statement::from_string(DbBackend::Sqlite, "PRAGMA database_list");
    for row in pool.query_all_raw(databases).await? {
        if row.try_get_by_index::<String>(1)? == "main" {
            let file = row.try_get_by_index::<Option<String>>(2)?;
            return Ok(file.is_none_or(|file| file.is_empty()));
        }
    }
    Ok(false)
}

#[doc(hidden)]
#[cfg(not(feature = "sqlite"))]
pub async fn keep_in_memory(_: &DatabaseConnection) -> Result<InMemory, DbErr> {
    Ok(InMemory::Safe)
}
