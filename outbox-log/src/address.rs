//! The address of the replication connection.
//!
//! A pool does not give its password away, so the address is given once more.

use std::fmt;
use std::time::Duration;

use percent_encoding::percent_decode_str;
use pgwire_replication::{Lsn, ReplicationConfig};
use url::Url;

use crate::LogError;

/// How often the server is told how far the log may be freed.
const STATUS_EVERY: Duration = Duration::from_secs(1);
/// Events between the connection and the reader. Each may hold a message of [`MESSAGE_BYTES_MAX`], so together they hold at most 256 MiB.
const BUFFER: usize = 32;

/// Largest row that is read from the log, in bytes: 8 MiB, the largest `max_payload` that NATS recommends. A relay publishes larger rows from the table.
pub(crate) const MESSAGE_BYTES_MAX: usize = 8 << 20;
const PORT: u16 = 5432;

#[derive(Clone)]
pub(crate) struct Address {
    /// A name, an address, or the folder of a Unix socket.
    host: String,
    port: u16,
    user: String,
    password: String,
    database: String,
}

impl fmt::Debug for Address {
    /// Without the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}:{}/{}", self.user, self.host, self.port, self.database)
    }
}

impl Address {
    pub(crate) fn parse(url: &str) -> Result<Self, LogError> {
        let fail = |reason: &str| LogError::Address {
            reason: reason.to_owned(),
        };
        let form = "use postgres://user:password@host:5432/database";
        let url = Url::parse(url).map_err(|error| fail(&format!("{error}; {form}")))?;
        if !matches!(url.scheme(), "postgres" | "postgresql") {
            return Err(fail(form));
        }
        let text = |part: &str| percent_decode_str(part).decode_utf8_lossy().into_owned();
        let (mut host, mut user) = (text(url.host_str().unwrap_or_default()), text(url.username()));
        let mut port = url.port().unwrap_or(PORT);
        let mut database = text(url.path().trim_start_matches('/'));
        for (name, value) in url.query_pairs() {
            match &*name {
                "host" => host = value.into_owned(),
                "port" => port = value.parse().map_err(|_| fail("its port is not a number"))?,
                "user" => user = value.into_owned(),
                "dbname" => database = value.into_owned(),
                "sslmode" if matches!(&*value, "require" | "verify-ca" | "verify-full") => {
                    return Err(fail(
                        "it asks for TLS, which the replication connection does not have; use a Unix socket, the same host or a tunnel, and \
                         sslmode=disable",
                    ));
                }
                _ => {}
            }
        }
        if user.is_empty() {
            return Err(fail(&format!("it names no user; {form}")));
        }
        Ok(Self {
            host: match host.is_empty() {
                true => "localhost".to_owned(),
                // As in an address of IPv6.
                false => host.trim_start_matches('[').trim_end_matches(']').to_owned(),
            },
            port,
            password: text(url.password().unwrap_or_default()),
            database: match database.is_empty() {
                true => user.clone(),
                false => database,
            },
            user,
        })
    }

    pub(crate) fn user(&self) -> &str {
        &self.user
    }

    /// How to read a slot, from a position on.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read_and_its_password_not_shown() {
        let address = Address::parse("postgres://re%40lay:p%2Fw@db:5433/shop?sslmode=disable").unwrap();
        assert_eq!((address.user(), address.password.as_str()), ("re@lay", "p/w"));
        assert_eq!(format!("{address:?}"), "re@lay@db:5433/shop");
        let socket = Address::parse("postgres:///shop?host=/run/postgresql&user=relay").unwrap();
        assert_eq!(format!("{socket:?}"), "relay@/run/postgresql:5432/shop");
        assert_eq!(Address::parse("postgres://relay@[::1]").unwrap().host, "::1");
    }

    #[test]
    fn an_address_that_cannot_work_is_refused_without_showing_it() {
        for address in [
            "shop",
            "mysql://relay:hunter2@db/shop",
            "postgres://:hunter2@db/shop",
            "postgres://relay:hunter2@db/shop?sslmode=require",
            "postgres://relay:hunter2@db:port/shop",
        ] {
            let error = Address::parse(address).unwrap_err().to_string();
            assert!(error.contains("use ") && !error.contains("hunter2"), "{error}");
        }
    }
}
