//! Headers of a message.
//!
//! Invariant: a name is a token and not reserved, and no value contains CR, LF or NUL.
//! `Deserialize` also checks this, because other programs may insert rows.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// W3C trace context.
pub const TRACEPARENT: &str = "traceparent";
/// W3C trace state.
pub const TRACESTATE: &str = "tracestate";
/// Id shared by a business process.
pub const CORRELATION_ID: &str = "ce-correlationid";
/// Id of the causing message or request.
pub const CAUSATION_ID: &str = "ce-causationid";

const RESERVED_PREFIXES: &[&str] = &["ce-", "nats-", "outbox-"];
const RESERVED_NAMES: &[&str] = &["content-type", TRACEPARENT, TRACESTATE];
/// Names that [`MessageContext`](crate::MessageContext) sets.
const OWN_NAMES: &[&str] = &[TRACEPARENT, TRACESTATE, CORRELATION_ID, CAUSATION_ID];

/// Maximum bytes of a header name.
pub const NAME_BYTES_MAX: usize = 128;

/// Headers: unique lower-case names with text values.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "BTreeMap<String, String>", into = "BTreeMap<String, String>")]
pub struct Headers(BTreeMap<String, String>);

impl Headers {
    /// Sets a header; the name becomes lower case.
    ///
    /// # Errors
    ///
    /// [`HeaderError`] if the name is malformed or reserved, or the value contains CR, LF or NUL.
    pub fn set(&mut self, name: &str, value: impl Into<String>) -> Result<(), HeaderError> {
        let name = check_name(name)?;
        if is_reserved(&name) {
            return Err(HeaderError::Reserved { name });
        }
        self.set_checked(name, value.into())
    }

    pub(crate) fn set_own(&mut self, name: &str, value: impl Into<String>) -> Result<(), HeaderError> {
        self.set_checked(name.to_owned(), value.into())
    }

    fn set_checked(&mut self, name: String, value: String) -> Result<(), HeaderError> {
        if value.contains(['\r', '\n', '\0']) {
            return Err(HeaderError::Value { name });
        }
        self.0.insert(name, value);
        Ok(())
    }

    /// A header's value.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(&name.to_ascii_lowercase()).map(String::as_str)
    }

    /// Headers by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Whether there are no headers.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Size in bytes on the wire: `name: value` and a line end per header.
    #[must_use]
    pub fn size_bytes(&self) -> usize {
        self.0
            .iter()
            .map(|(name, value)| name.len() + value.len() + 4)
            .sum()
    }
}

/// Accepts header names that users may set and, in addition, the names of
/// [`MessageContext`](crate::MessageContext).
impl TryFrom<BTreeMap<String, String>> for Headers {
    type Error = HeaderError;

    fn try_from(stored: BTreeMap<String, String>) -> Result<Self, HeaderError> {
        let mut headers = Self::default();
        for (name, value) in stored {
            let name = check_name(&name)?;
            if is_reserved(&name) && !OWN_NAMES.contains(&name.as_str()) {
                return Err(HeaderError::Reserved { name });
            }
            headers.set_checked(name, value)?;
        }
        Ok(headers)
    }
}

impl From<Headers> for BTreeMap<String, String> {
    fn from(headers: Headers) -> Self {
        headers.0
    }
}

fn is_reserved(name: &str) -> bool {
    RESERVED_NAMES.contains(&name) || RESERVED_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

fn check_name(name: &str) -> Result<String, HeaderError> {
    let is_token = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
    if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.bytes().all(is_token) {
        return Err(HeaderError::Name {
            name: name.escape_debug().to_string(),
        });
    }
    Ok(name.to_ascii_lowercase())
}

/// A rejected header.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HeaderError {
    /// Name is not 1 to [`NAME_BYTES_MAX`] ASCII letters, digits, `-` or `_`.
    #[error("header name `{name}` is malformed; use 1 to 128 ASCII letters, digits, `-` or `_`")]
    Name {
        /// The escaped name.
        name: String,
    },
    /// Name of CloudEvents, NATS, W3C trace context or this library.
    #[error(
        "header name `{name}` is reserved; choose another that is not `content-type`, `traceparent` or `tracestate` and does not start with `ce-`, `nats-` or `outbox-` (`MessageContext` sets correlation, causation and trace ids)"
    )]
    Reserved {
        /// The reserved name.
        name: String,
    },
    /// The value contains CR, LF or NUL.
    #[error(
        "value of header `{name}` holds a line break or NUL; encode it (base64, percent-encoding) or put it into the payload"
    )]
    Value {
        /// The header's name.
        name: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_names_are_rejected_in_any_case() {
        let mut headers = Headers::default();
        for name in ["Nats-Msg-Id", "CE-ID", "content-type", "TraceParent", "outbox-x"] {
            assert!(
                matches!(headers.set(name, "x"), Err(HeaderError::Reserved { .. })),
                "{name}"
            );
        }
        assert!(headers.is_empty());
    }

    #[test]
    fn malformed_header_names_and_values_are_rejected() {
        let mut headers = Headers::default();
        for name in ["", "a b", "a:b", "ü", "a\nb", &"x".repeat(129)] {
            assert!(
                matches!(headers.set(name, "x"), Err(HeaderError::Name { .. })),
                "{name:?}"
            );
        }
        for value in ["a\r\nb", "a\nb", "\0"] {
            assert!(
                matches!(headers.set("tenant", value), Err(HeaderError::Value { .. })),
                "{value:?}"
            );
        }
        headers.set("Tenant", "Grüße").unwrap();
        assert_eq!(headers.get("tENANT"), Some("Grüße"));
    }
}
