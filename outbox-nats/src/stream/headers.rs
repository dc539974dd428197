//! Converts headers between the codec of `outbox-core` and async-nats.
//!
//! Invariant: no input panics. async-nats panics at line breaks in a text, so this module checks
//! names and values first.

use std::borrow::Cow;
use std::str::FromStr;

use async_nats::HeaderMap;
use async_nats::header::{
    HeaderName, HeaderValue, NATS_EXPECTED_STREAM, NATS_MESSAGE_ID, ParseHeaderNameError,
};
use bytes::Bytes;
use outbox_core::{Message, codec};

pub(crate) fn encode(
    message: &Message,
    source: &str,
    stream: &str,
) -> Result<(HeaderMap, Bytes), HeaderError> {
    let encoded = codec::encode(message, source);
    let mut headers = HeaderMap::new();
    for (name, value) in encoded.headers {
        let value = owned_value(&name, value)?;
        let name = match name {
            Cow::Borrowed(name) => HeaderName::from_static(name),
            Cow::Owned(name) => parse_name(&name)?,
        };
        headers.insert(name, value);
    }
    headers.insert(
        NATS_MESSAGE_ID,
        owned_value("Nats-Msg-Id", message.id.to_string())?,
    );
    headers.insert(
        NATS_EXPECTED_STREAM,
        owned_value("Nats-Expected-Stream", stream.to_owned())?,
    );
    Ok((headers, encoded.payload))
}

pub(crate) fn decode(headers: &HeaderMap) -> Vec<(String, String)> {
    headers
        .iter()
        .flat_map(|(name, values)| {
            values
                .iter()
                .map(|value| (name.to_string(), value.as_str().to_owned()))
        })
        .collect()
}

fn parse_name(name: &str) -> Result<HeaderName, HeaderError> {
    // async-nats accepts an empty name, which would end the header block.
    if name.is_empty() {
        return Err(HeaderError::Empty);
    }
    HeaderName::from_str(name).map_err(|source| HeaderError::Name {
        name: name.escape_debug().to_string(),
        source,
    })
}

fn owned_value(name: &str, value: String) -> Result<HeaderValue, HeaderError> {
    if value.bytes().any(|byte| matches!(byte, b'\r' | b'\n')) {
        return Err(HeaderError::Value {
            name: name.to_owned(),
        });
    }
    Ok(HeaderValue::from(value))
}

/// Why a message's headers cannot be sent: the stored row was changed after the recording.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HeaderError {
    #[error("a header has no name")]
    Empty,
    #[error("header name `{name}` is malformed")]
    Name {
        name: String,
        source: ParseHeaderNameError,
    },
    #[error("value of header `{name}` has a line break")]
    Value { name: String },
}

#[cfg(test)]
mod tests {
    use outbox_core::{Aggregate, Headers, MessageId};

    use super::*;

    fn message(headers: Headers) -> Message {
        let id = MessageId::fresh();
        Message {
            id,
            event_id: id.into(),
            aggregate: Aggregate::new("order", "ü \r\n*"),
            sequence: Some(7),
            event_type: "order.placed".to_owned(),
            event_version: 1,
            subject: None,
            content_type: "application/json".to_owned(),
            payload: Bytes::from_static(b"{}"),
            headers,
            created_at: time::OffsetDateTime::UNIX_EPOCH,
        }
    }

    #[test]
    fn message_survives_the_header_round_trip() {
        let mut headers = Headers::default();
        headers.set("tenant", "Müller & Söhne \"100%\"").unwrap();
        let expected = message(headers);
        let (headers, payload) = encode(&expected, "shop", "EVENTS").unwrap();
        assert_eq!(
            headers.get(NATS_MESSAGE_ID).unwrap().as_str(),
            expected.id.to_string()
        );
        assert_eq!(headers.get(NATS_EXPECTED_STREAM).unwrap().as_str(), "EVENTS");
        assert_eq!(codec::decode(&decode(&headers), payload).unwrap(), expected);
    }

    #[test]
    fn a_malformed_stream_name_is_an_error_and_no_panic() {
        let refused = encode(&message(Headers::default()), "shop", "EVENTS\r\nNats-Rollup: all");
        assert!(matches!(refused, Err(HeaderError::Value { .. })));
    }

    #[test]
    fn malformed_names_are_errors_and_no_panic() {
        assert!(matches!(parse_name(""), Err(HeaderError::Empty)));
        for name in ["a b", "a:b", "ü", "a\r\nb", "\0"] {
            assert!(
                matches!(parse_name(name), Err(HeaderError::Name { .. })),
                "{name:?}"
            );
        }
    }
}
