//! Checks database addresses and opens lazy pools.
//!
//! Invariant: an unknown address parameter is an error, because sqlx would log its value, possibly
//! a secret.

#[cfg(feature = "mysql")]
use sea_orm::sqlx::mysql::MySqlConnectOptions;
#[cfg(feature = "postgres")]
use sea_orm::sqlx::postgres::PgConnectOptions;
#[cfg(feature = "sqlite")]
use sea_orm::sqlx::sqlite::SqliteConnectOptions;
use sea_orm::{ConnectOptions, Database, DatabaseConnection, DbErr};
use sea_orm::{RuntimeErr, sqlx};
use url::Url;

use super::ConnectError;

/// Address parameters that sqlx 0.9 accepts, besides `options[…]`.
const OF_POSTGRES: [&str; 18] = [
    "application_name",
    "dbname",
    "host",
    "hostaddr",
    "options",
    "password",
    "port",
    "ssl-ca",
    "ssl-cert",
    "ssl-key",
    "ssl-mode",
    "ssl-root-cert",
    "sslcert",
    "sslkey",
    "sslmode",
    "sslrootcert",
    "statement-cache-capacity",
    "user",
];

const OF_MYSQL: [&str; 14] = [
    "charset",
    "collation",
    "socket",
    "ssl-ca",
    "ssl-cert",
    "ssl-key",
    "ssl-mode",
    "sslca",
    "sslcert",
    "sslkey",
    "sslmode",
    "statement-cache-capacity",
    "time-zone",
    "timezone",
];

const NAME_SHOWN_MAX: usize = 64;

/// Checks the parameters of an address.
#[doc(hidden)]
pub fn check(address: &str) -> Result<(), ConnectError> {
    let url = Url::parse(address).map_err(|_| ConnectError::Address)?;
    let is_known = |name: &str| match url.scheme() {
        "postgres" | "postgresql" => {
            OF_POSTGRES.contains(&name) || name.starts_with("options[") && name.ends_with(']')
        }
        "mysql" => OF_MYSQL.contains(&name),
        _ => true,
    };
    match url.query_pairs().find(|(name, _)| !is_known(name)) {
        Some((name, _)) => {
            let name: String = name.chars().take(NAME_SHOWN_MAX).collect();
            let parameter = name.escape_debug().to_string();
            Err(ConnectError::Parameter { parameter })
        }
        None => Ok(()),
    }
}

/// Opens a lazy pool. For SQLite, SeaORM opens the file at once ([`ConnectError::File`]).
#[doc(hidden)]
pub async fn lazy(mut options: ConnectOptions) -> Result<DatabaseConnection, ConnectError> {
    options.connect_lazy(true);
    let address = options.get_url().to_owned();
    check(&address)?;
    let pool = Database::connect(options)
        .await
        .map_err(|error| refused(&address, error))?;
    #[cfg(feature = "postgres")]
    if let Some(mended) = mended_postgres(&pool) {
        pool.get_postgres_connection_pool().set_connect_options(mended);
    }
    #[cfg(feature = "mysql")]
    if let Some(mended) = mended_mysql(&pool) {
        pool.get_mysql_connection_pool().set_connect_options(mended);
    }
    Ok(pool)
}

fn refused(address: &str, error: DbErr) -> ConnectError {
    #[cfg(feature = "sqlite")]
    if let (DbErr::Conn(RuntimeErr::SqlxError(source)), Ok(file)) =
        (&error, address.parse::<SqliteConnectOptions>())
        && matches!(**source, sqlx::Error::Database(_) | sqlx::Error::Io(_))
    {
        let file = file.get_filename().display().to_string();
        return ConnectError::File { file, source: error };
    }
    let _ = (address, error);
    ConnectError::Address
}

pub(super) fn keep(pool: &DatabaseConnection, options: &mut ConnectOptions) {
    match &pool.inner {
        #[cfg(feature = "postgres")]
        sea_orm::DatabaseConnectionType::SqlxPostgresPoolConnection(_) => {
            let mended = PgConnectOptions::clone(&pool.get_postgres_connection_pool().connect_options());
            options.map_sqlx_postgres_opts(move |_| mended.clone());
        }
        #[cfg(feature = "mysql")]
        sea_orm::DatabaseConnectionType::SqlxMySqlPoolConnection(_) => {
            let mended = MySqlConnectOptions::clone(&pool.get_mysql_connection_pool().connect_options());
            options.map_sqlx_mysql_opts(move |_| mended.clone());
        }
        _ => _ = options,
    }
}

/// Removes the parameter `extra_float_digits`. PgBouncer rejects it; PostgreSQL 12 and later do not
/// need it.
#[cfg(feature = "postgres")]
fn mended_postgres(pool: &DatabaseConnection) -> Option<PgConnectOptions> {
    if !matches!(
        pool.inner,
        sea_orm::DatabaseConnectionType::SqlxPostgresPoolConnection(_)
    ) {
        return None;
    }
    let options = pool.get_postgres_connection_pool().connect_options();
    let host = without_brackets(options.get_host()).to_owned();
    let options = PgConnectOptions::clone(&options);
    Some(options.host(&host).extra_float_digits(None))
}

#[cfg(feature = "mysql")]
fn mended_mysql(pool: &DatabaseConnection) -> Option<MySqlConnectOptions> {
    if !matches!(
        pool.inner,
        sea_orm::DatabaseConnectionType::SqlxMySqlPoolConnection(_)
    ) {
        return None;
    }
    let options = pool.get_mysql_connection_pool().connect_options();
    let host = without_brackets(options.get_host()).to_owned();
    Some(MySqlConnectOptions::clone(&options).host(&host))
}

/// Removes brackets around an IPv6 address, which sqlx 0.9 cannot resolve.
fn without_brackets(host: &str) -> &str {
    let inner = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    inner.unwrap_or(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_parameter_is_named_without_its_value() {
        for address in [
            "postgres://db/shop?passwort=hunter2",
            "postgresql://db/shop?sslmode=disable&passwort=hunter2",
            "mysql://db/shop?passwort=hunter2",
        ] {
            let error = check(address).unwrap_err();
            let ConnectError::Parameter { parameter } = &error else {
                panic!("{error:?}")
            };
            assert_eq!(parameter, "passwort");
            assert!(!format!("{error:?} {error}").contains("hunter2"), "{error:?}");
        }
        for address in [
            "postgres://db/shop?sslmode=disable&options[search_path]=a&hostaddr=127.0.0.1",
            "mysql://db/shop?ssl-mode=DISABLED&timezone=%2B00:00",
            "sqlite://shop.db?mode=rwc",
        ] {
            check(address).unwrap();
        }
    }
}
