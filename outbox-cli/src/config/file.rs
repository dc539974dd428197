//! The file. Its keys are these fields; a key that is none of them is an error.

use std::net::{Ipv4Addr, SocketAddr};

use serde::Deserialize;

use super::ConfigError;
use super::outbox::OutboxSection;

/// A configuration file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct File {
    /// Whether a change must be confirmed by the number of changed things. Default: no.
    pub production: bool,
    /// Probes and metrics.
    pub http: HttpSection,
    /// What is logged, and how.
    pub log: LogSection,
    /// The outboxes. None stands for one with all defaults.
    pub outbox: Vec<OutboxSection>,
}

/// Probes and metrics.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct HttpSection {
    /// Where `/livez`, `/readyz` and `/metrics` are answered. Port 0 is any free one, which the log names. Default 127.0.0.1:9187.
    pub address: SocketAddr,
}

impl Default for HttpSection {
    fn default() -> Self {
        Self {
            address: (Ipv4Addr::LOCALHOST, 9187).into(),
        }
    }
}

/// What is logged, and how. The log goes to the standard error.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct LogSection {
    /// Lines for people or for machines. Default: for people.
    pub format: LogFormat,
    /// The filter, as in `RUST_LOG`, which wins. Default `info,sqlx=warn,async_nats=warn`.
    pub level: String,
}

impl Default for LogSection {
    fn default() -> Self {
        Self {
            format: LogFormat::default(),
            level: "info,sqlx=warn,async_nats=warn".to_owned(),
        }
    }
}

/// The form of the log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum LogFormat {
    /// A line for people.
    #[default]
    Text,
    /// A JSON object per line.
    Json,
}

impl File {
    /// Reads a file. `name` stands in the errors.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Malformed`] with the line and the reason. It does not show the line, which may hold a password.
    pub fn parse(name: &str, text: &str) -> Result<Self, ConfigError> {
        toml::from_str(text).map_err(|error| {
            let line = error
                .span()
                .and_then(|span| text.get(..span.start))
                .map(|before| before.matches('\n').count() + 1);
            ConfigError::Malformed {
                place: line.map_or_else(|| name.to_owned(), |line| format!("{name}, line {line}")),
                reason: without_secrets(error.message()),
            }
        })
    }
}

/// The text of an error may quote a value of a wrong type, and an address may hold a password.
fn without_secrets(message: &str) -> String {
    match message.split_once("string \"") {
        Some((before, after)) => {
            let expected = after.rsplit_once("\", expected ").map(|(_, expected)| expected);
            format!(
                "{before}a string, expected {}",
                expected.unwrap_or("something else")
            )
        }
        None if message.contains("://") => "this value has a wrong form".to_owned(),
        None => message.to_owned(),
    }
}
