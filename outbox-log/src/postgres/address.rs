//! The address of the replication connection.
//!
//! A pool does not reveal its password, so the address is configured separately. The pool's driver
//! parses it.

use std::fmt;
use std::time::Duration;

use outbox_core::describe;
use outbox_sea_orm::check_address;
use percent_encoding::percent_decode_str;
use pgwire_replication::{Lsn, ReplicationConfig};
use sea_orm::sqlx::ConnectOptions as _;
use sea_orm::sqlx::postgres::{PgConnectOptions, PgSslMode};

use super::LogError;
use super::failure::setup;

const STATUS_EVERY: Duration = Duration::from_secs(1);
/// Maximum of buffered events, each up to [`MESSAGE_BYTES_MAX`]: at most 256 MiB.
const BUFFER: usize = 32;

/// Largest row read from the log: 8 MiB, the largest `max_payload` that NATS recommends. A relay
/// publishes larger rows from the table.
pub(crate) const MESSAGE_BYTES_MAX: usize = 8 << 20;

#[derive(Clone)]
pub(crate) struct Address {
    host: String,
    port: u16,
    user: String,
    password: String,
    database: String,
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}:{}/{}", self.user, self.host, self.port, self.database)
    }
}

impl Address {
    pub(crate) fn parse(url: &str) -> Result<Self, LogError> {
        let fail = |reason: &str| {
            setup(format!(
                "the address of the replication connection cannot be used: {reason}"
            ))
        };
        if !matches!(url.split_once("://"), Some(("postgres" | "postgresql", _))) {
            return Err(fail("use postgres://user:password@host:5432/database"));
        }
        check_address(url).map_err(|error| fail(&describe(&error)))?;
        // The driver's error may quote the address.
        let options: PgConnectOptions = url
            .parse()
            .map_err(|_| fail("a value is malformed; use postgres://user:password@host:5432/database"))?;
        if matches!(
            options.get_ssl_mode(),
            PgSslMode::Require | PgSslMode::VerifyCa | PgSslMode::VerifyFull
        ) {
            return Err(fail(
                "it requires TLS, which the replication connection does not support; use a Unix socket, the same host or a tunnel, and \
                 sslmode=disable",
            ));
        }
        let host = match options.get_socket() {
            Some(socket) => socket.display().to_string(),
            None => options
                .get_host()
                .trim_start_matches('[')
                .trim_end_matches(']')
                .to_owned(),
        };
        let user = options.get_username().to_owned();
        Ok(Self {
            host,
            port: options.get_port(),
            database: options.get_database().unwrap_or(&user).to_owned(),
            password: prepared(&password_of(options)),
            user,
        })
    }

    pub(crate) fn user(&self) -> &str {
        &self.user
    }

    pub(crate) fn reading(&self, slot: &str, from: Lsn) -> ReplicationConfig {
        let (user, password, database) = (&self.user, &self.password, &self.database);
        let config = match self.host.starts_with('/') {
            true => ReplicationConfig::unix(&*self.host, self.port, user, password, database, slot, slot),
            false => {
                ReplicationConfig::new(&self.host, user, password, database, slot, slot).with_port(self.port)
            }
        };
        config
            .with_start_lsn(from)
            .with_status_interval(STATUS_EVERY)
            .with_wakeup_interval(STATUS_EVERY)
            .with_buffer_size(BUFFER)
            .with_max_message_size(MESSAGE_BYTES_MAX)
            .with_application_name("outbox log relay")
            .with_binary(true)
    }
}

fn password_of(options: PgConnectOptions) -> String {
    // The driver reveals the password only in an address, and does not escape names.
    let url = options.username("relay").host("localhost").to_url_lossy();
    let password = url.password().unwrap_or_default();
    percent_decode_str(password).decode_utf8_lossy().into_owned()
}

/// Prepares a password with SASLprep, as in PostgreSQL's SCRAM. A password that cannot be prepared
/// is used unchanged.
fn prepared(password: &str) -> String {
    stringprep::saslprep(password).map_or_else(|_| password.to_owned(), |password| password.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_is_parsed_and_debug_hides_the_password() {
        let address = Address::parse("postgres://re%40lay:p%2Fw@db:5433/shop?sslmode=disable").unwrap();
        assert_eq!((address.user(), address.password.as_str()), ("re@lay", "p/w"));
        assert_eq!(format!("{address:?}"), "re@lay@db:5433/shop");
        let socket = Address::parse("postgres:///shop?host=/run/postgresql&user=relay").unwrap();
        assert_eq!(format!("{socket:?}"), "relay@/run/postgresql:5432/shop");
        assert_eq!(Address::parse("postgres://relay@[::1]").unwrap().host, "::1");
    }

    #[test]
    fn address_parameters_match_the_pool() {
        let address = "postgres://db/?user=relay&password=p%2Fw&hostaddr=192.0.2.1&port=5433&dbname=shop";
        let address = Address::parse(address).unwrap();
        assert_eq!(format!("{address:?}"), "relay@192.0.2.1:5433/shop");
        assert_eq!(address.password, "p/w");
        let error = Address::parse("postgres://relay@db/shop?passwort=hunter2")
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("`passwort`") && !error.contains("hunter2"),
            "{error}"
        );
    }

    #[test]
    fn password_is_prepared_as_in_postgres() {
        // SASLprep drops a soft hyphen, and replaces a non-breaking space by a space.
        let address = Address::parse("postgres://relay:a%C2%ADb%C2%A0c@db/shop").unwrap();
        assert_eq!(address.password, "ab c");
    }

    #[test]
    fn unusable_address_error_hides_the_address() {
        for address in [
            "shop",
            "mysql://relay:hunter2@db/shop",
            "postgres://relay:hunter2@db/shop?sslmode=require",
            "postgres://relay:hunter2@db:port/shop",
        ] {
            let error = Address::parse(address).unwrap_err().to_string();
            assert!(!error.contains("hunter2"), "{error}");
        }
    }
}
