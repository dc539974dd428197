//! Checks of stored rows, because other programs may insert rows.
//!
//! Invariant: a [`Message`](crate::Message) from a store has passed these checks.

use std::collections::BTreeMap;

use crate::headers::{HeaderError, Headers};
use crate::message::{
    KEY_CHARS_MAX, Message, NAME_BYTES_MAX, ROW_HEADERS_BYTES_MAX, ROW_PAYLOAD_BYTES_MAX, SUBJECT_BYTES_MAX,
};

const KEY_BYTES_MAX: usize = KEY_CHARS_MAX * 4;

/// Why a stored row cannot be published. It becomes a dead letter.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RowFault {
    /// A row with values that this library never writes.
    #[error("{0}")]
    Damaged(String),
    /// A malformed or reserved header name (`Nats-Rollup`, `ce-id`), or CR, LF or NUL in a value.
    #[error("a stored header cannot be sent: {0}")]
    Header(HeaderError),
    /// A value larger than a relay loads. The database sent no value, or only the beginning of a
    /// name.
    #[error("{column} has {size_bytes} bytes or more; a relay loads at most {limit_bytes}")]
    TooLarge {
        /// The column.
        column: &'static str,
        /// Bytes of the column, or of the part that the database sent.
        size_bytes: u64,
        /// Bytes allowed: [`ROW_PAYLOAD_BYTES_MAX`], [`ROW_HEADERS_BYTES_MAX`], or the bound of a
        /// recorded name.
        limit_bytes: u64,
    },
}

impl RowFault {
    /// Checks sizes in bytes before a store loads payload and headers.
    ///
    /// # Errors
    ///
    /// [`RowFault::TooLarge`].
    pub fn check_sizes(payload: u64, headers: u64) -> Result<(), Self> {
        Self::check([
            ("payload", payload, ROW_PAYLOAD_BYTES_MAX),
            ("headers", headers, ROW_HEADERS_BYTES_MAX),
        ])
    }

    /// Checks the lengths of names: a broker may close the connection if a name is longer.
    ///
    /// # Errors
    ///
    /// [`RowFault::TooLarge`].
    pub fn check_names(message: &Message) -> Result<(), Self> {
        let subject = message.subject.as_deref().unwrap_or_default();
        Self::check(
            [
                (
                    "aggregate_type",
                    &*message.aggregate.aggregate_type,
                    NAME_BYTES_MAX,
                ),
                ("aggregate_id", &*message.aggregate.id, KEY_BYTES_MAX),
                ("event_type", &*message.event_type, 2 * NAME_BYTES_MAX + 1),
                ("subject", subject, SUBJECT_BYTES_MAX),
                ("content_type", &*message.content_type, KEY_BYTES_MAX),
            ]
            .map(|(column, text, limit)| (column, text.len() as u64, limit)),
        )
    }

    fn check<const N: usize>(columns: [(&'static str, u64, usize); N]) -> Result<(), Self> {
        for (column, size_bytes, limit) in columns {
            let limit_bytes = limit as u64;
            if size_bytes > limit_bytes {
                return Err(Self::TooLarge {
                    column,
                    size_bytes,
                    limit_bytes,
                });
            }
        }
        Ok(())
    }
}

impl From<String> for RowFault {
    fn from(damage: String) -> Self {
        Self::Damaged(damage)
    }
}

impl Headers {
    /// Parses stored headers. Names become lower case.
    ///
    /// # Errors
    ///
    /// [`RowFault::Damaged`] if `json` is not a JSON object of strings. [`RowFault::Header`] if a
    /// header may not be sent.
    pub fn from_stored(json: &[u8]) -> Result<Self, RowFault> {
        // serde_json's error may quote personal data.
        let headers: BTreeMap<String, String> = serde_json::from_slice(json).map_err(|error| {
            RowFault::Damaged(format!(
                "headers are not a JSON object of texts (line {}, column {})",
                error.line(),
                error.column()
            ))
        })?;
        Self::try_from(headers).map_err(RowFault::Header)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_headers_of_a_row_are_rejected() {
        for name in [
            "Nats-Rollup",
            "nats-msg-id",
            "NATS-EXPECTED-LAST-SEQUENCE",
            "ce-id",
            "CE-Sequence",
            "Content-Type",
            "outbox-error",
        ] {
            let read = Headers::from_stored(format!("{{\"{name}\": \"all\"}}").as_bytes());
            assert!(
                matches!(read, Err(RowFault::Header(HeaderError::Reserved { .. }))),
                "{name}: {read:?}"
            );
        }
    }

    #[test]
    fn headers_that_break_the_wire_format_are_rejected() {
        for json in [
            r#"{"a b": "x"}"#,
            r#"{"": "x"}"#,
            r#"{"a": "x\r\nNats-Rollup: all"}"#,
        ] {
            let read = Headers::from_stored(json.as_bytes());
            assert!(matches!(read, Err(RowFault::Header(_))), "{json}: {read:?}");
        }
    }

    #[test]
    fn headers_of_the_library_are_kept() {
        let json = r#"{"ce-correlationid": "a", "ce-causationid": "b", "traceparent": "c", "tracestate": "d", "Tenant": "e"}"#;
        let headers = Headers::from_stored(json.as_bytes()).unwrap();
        assert_eq!(headers.iter().count(), 5);
        assert_eq!(headers.get("tenant"), Some("e"));
    }

    #[test]
    fn header_errors_hide_values() {
        for json in [
            r#""secret""#,
            r#"["secret"]"#,
            r#"{"a": {"b": "secret"}}"#,
            "\"\u{0}",
        ] {
            let fault = Headers::from_stored(json.as_bytes()).unwrap_err();
            assert!(!fault.to_string().contains("secret"), "{fault:?}");
        }
        let deep = "[".repeat(1_000_000);
        assert!(matches!(
            Headers::from_stored(format!("{{\"a\": {deep}").as_bytes()),
            Err(RowFault::Damaged(_))
        ));
    }

    #[test]
    fn column_bounds_are_inclusive() {
        let (payload, headers) = (ROW_PAYLOAD_BYTES_MAX as u64, ROW_HEADERS_BYTES_MAX as u64);
        RowFault::check_sizes(payload, headers).unwrap();
        assert!(matches!(
            RowFault::check_sizes(payload + 1, 0),
            Err(RowFault::TooLarge {
                column: "payload",
                ..
            })
        ));
        assert!(matches!(
            RowFault::check_sizes(0, headers + 1),
            Err(RowFault::TooLarge {
                column: "headers",
                ..
            })
        ));
    }
}
