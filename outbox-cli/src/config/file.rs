//! The configuration file. Unknown keys are errors.

use std::net::{Ipv4Addr, SocketAddr};

use serde::Deserialize;

use super::ConfigError;
use super::outbox::OutboxSection;

/// Configuration file. Keys are documented in `assets/outbox.toml`.
#[doc(hidden)]
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct File {
    pub production: bool,
    pub http: HttpSection,
    pub log: LogSection,
    pub outbox: Vec<OutboxSection>,
}

/// Table `[http]`.
#[doc(hidden)]
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HttpSection {
    pub address: SocketAddr,
}

impl Default for HttpSection {
    fn default() -> Self {
        Self {
            address: (Ipv4Addr::LOCALHOST, 9187).into(),
        }
    }
}

/// Table `[log]`.
#[doc(hidden)]
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LogSection {
    pub format: LogFormat,
}

/// Log format.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    #[default]
    Text,
    Json,
}

impl File {
    /// Parses a file. `name` appears in errors.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Malformed`] with line number and reason, but without the line's text, which
    /// may contain a password.
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

/// TOML errors may quote a value of a wrong type, and an address value may contain a password.
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
