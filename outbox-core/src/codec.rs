//! The wire format of a message: CloudEvents 1.0 in binary mode, one header per field.
//!
//! Invariant: `decode(encode(m)) == m` for every message that can be recorded.
//!
//! | header | content |
//! |---|---|
//! | `ce-specversion` | `1.0` |
//! | `ce-id` | event id; the consumer's deduplication key |
//! | `ce-messageid` | message id, only in replayed copies |
//! | `ce-source` | the recording service |
//! | `ce-type` | event type, `order.placed` |
//! | `ce-subject` | aggregate id |
//! | `ce-time` | time of recording, RFC 3339 in UTC |
//! | `ce-eventversion` | payload version |
//! | `ce-aggregatetype` | aggregate type |
//! | `ce-sequence` | number within the aggregate, if sequenced |
//! | `content-type` | of the payload |
//! | `ce-correlationid`, `ce-causationid` | see [`MessageContext`](crate::MessageContext) |
//! | `traceparent`, `tracestate` | see [`MessageContext`](crate::MessageContext) |
//!
//! Values outside printable ASCII, and `"` and `%`, are percent-encoded, as in the CloudEvents HTTP
//! binding. Decoding enforces the limits of recording, because other programs may publish to a
//! stream.

use std::borrow::Cow;

use bytes::Bytes;
use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use uuid::Uuid;

use crate::headers::Headers;
use crate::message::{Aggregate, EventId, KEY_CHARS_MAX, Message, MessageId, NAME_BYTES_MAX};

/// An encoded message.
#[derive(derive_more::Debug, Clone, PartialEq, Eq)]
pub struct Encoded {
    /// Headers with lower-case names and printable ASCII values.
    #[debug("{}", headers.len())]
    pub headers: Vec<(Cow<'static, str>, String)>,
    /// The payload.
    #[debug("{} bytes", payload.len())]
    pub payload: Bytes,
}

impl Encoded {
    /// Headers and payload as received from a broker.
    #[must_use]
    pub fn received(self) -> (Vec<(String, String)>, Bytes) {
        let headers = self.headers.into_iter();
        let headers = headers.map(|(name, value)| (name.into_owned(), value));
        (headers.collect(), self.payload)
    }
}

const ENVELOPE_HEADERS: usize = 11;

/// Encodes a message. `source` is the CloudEvents source: a name or URI of the recording service.
#[must_use]
pub fn encode(message: &Message, source: &str) -> Encoded {
    let time = message
        .created_at
        .to_offset(time::UtcOffset::UTC)
        .format(&Rfc3339)
        .unwrap_or_default();
    let mut headers = Vec::with_capacity(ENVELOPE_HEADERS + message.headers.iter().count());
    let mut add = |name: &'static str, value: String| headers.push((Cow::Borrowed(name), value));
    add("ce-specversion", "1.0".to_owned());
    add("ce-id", message.event_id.to_string());
    add("ce-source", percent_encode(source));
    add("ce-type", percent_encode(&message.event_type));
    add("ce-subject", percent_encode(&message.aggregate.id));
    add("ce-time", time);
    add("ce-eventversion", message.event_version.to_string());
    add(
        "ce-aggregatetype",
        percent_encode(&message.aggregate.aggregate_type),
    );
    add("content-type", percent_encode(&message.content_type));
    if let Some(sequence) = message.sequence {
        add("ce-sequence", sequence.to_string());
    }
    if message.id.as_uuid() != message.event_id.as_uuid() {
        add("ce-messageid", message.id.to_string());
    }
    for (name, value) in message.headers.iter() {
        headers.push((Cow::Owned(name.to_owned()), percent_encode(value)));
    }
    Encoded {
        headers,
        payload: message.payload.clone(),
    }
}

/// Decodes a message. Header names may be in any case; headers of the broker (`nats-…`) are
/// dropped.
///
/// # Errors
///
/// [`DecodeError`] if the input is not an outbox message, or a field exceeds the limits of
/// recording.
pub fn decode(headers: &[(String, String)], payload: Bytes) -> Result<Message, DecodeError> {
    let get = |wanted: &'static str| {
        headers
            .iter()
            .find(|(name, _)| name.eq_ignore_ascii_case(wanted))
            .map(|(_, value)| percent_decode(value).ok_or(DecodeError::Malformed { header: wanted }))
            .transpose()
    };
    let require = |wanted| get(wanted)?.ok_or(DecodeError::Missing { header: wanted });
    let malformed = |header| move || DecodeError::Malformed { header };

    if require("ce-specversion")? != "1.0" {
        return Err(DecodeError::Malformed {
            header: "ce-specversion",
        });
    }
    let event_id = require("ce-id")?
        .parse::<Uuid>()
        .ok()
        .ok_or_else(malformed("ce-id"))?;
    let id = match get("ce-messageid")? {
        Some(id) => id.parse().ok().ok_or_else(malformed("ce-messageid"))?,
        None => event_id,
    };
    let event_version = require("ce-eventversion")?
        .parse()
        .ok()
        .filter(|v| *v > 0)
        .ok_or_else(malformed("ce-eventversion"))?;
    let sequence = get("ce-sequence")?
        .map(|text| {
            let sequence = text.parse().ok().ok_or_else(malformed("ce-sequence"))?;
            within(SEQUENCE, &text, (1..=i64::MAX as u64).contains(&sequence)).map(|()| sequence)
        })
        .transpose()?;
    let created_at = OffsetDateTime::parse(&require("ce-time")?, &Rfc3339)
        .ok()
        .ok_or_else(malformed("ce-time"))?;

    let mut kept = Headers::default();
    for (name, value) in headers {
        let name = name.to_ascii_lowercase();
        if !is_envelope(&name)
            && let Some(value) = percent_decode(value)
        {
            let _ = kept.set_own(&name, value);
        }
    }
    let text = |limit: Limit, max: usize, length: fn(&str) -> usize| {
        let text = require(limit.header)?;
        let fits = (1..=max).contains(&length(&text)) && !text.contains('\0');
        within(limit, &text, fits).map(|()| text)
    };
    let chars = |text: &str| text.chars().count();
    source(headers)?;
    Ok(Message {
        id: MessageId::from(id),
        event_id: EventId::from(event_id),
        aggregate: Aggregate::new(
            text(AGGREGATE_TYPE, NAME_BYTES_MAX, str::len)?,
            text(SUBJECT, KEY_CHARS_MAX, chars)?,
        ),
        sequence,
        event_type: text(EVENT_TYPE, 2 * NAME_BYTES_MAX + 1, str::len)?,
        event_version,
        subject: None,
        content_type: text(CONTENT_TYPE, KEY_CHARS_MAX, chars)?,
        payload,
        headers: kept,
        created_at,
    })
}

/// Returns the recording service (`ce-source`); empty if the header is absent. Services with
/// different sources number their messages independently.
///
/// # Errors
///
/// [`DecodeError`] if the value is malformed, over 255 characters, or contains NUL.
pub fn source(headers: &[(String, String)]) -> Result<String, DecodeError> {
    let header = SOURCE.header;
    let Some((_, value)) = headers.iter().find(|(name, _)| name.eq_ignore_ascii_case(header)) else {
        return Ok(String::new());
    };
    let text = percent_decode(value).ok_or(DecodeError::Malformed { header })?;
    let fits = text.chars().count() <= KEY_CHARS_MAX && !text.contains('\0');
    within(SOURCE, &text, fits).map(|()| text)
}

#[derive(Debug, Clone, Copy)]
struct Limit {
    header: &'static str,
    allowed: &'static str,
}

const fn limit(header: &'static str, allowed: &'static str) -> Limit {
    Limit { header, allowed }
}

const SOURCE: Limit = limit("ce-source", "up to 255 characters without NUL");
const AGGREGATE_TYPE: Limit = limit("ce-aggregatetype", "1 to 64 bytes without NUL");
const EVENT_TYPE: Limit = limit("ce-type", "1 to 129 bytes without NUL");
const SUBJECT: Limit = limit("ce-subject", "1 to 255 characters without NUL");
const CONTENT_TYPE: Limit = limit("content-type", "1 to 255 characters without NUL");
const SEQUENCE: Limit = limit("ce-sequence", "a number from 1 to 9223372036854775807");

fn within(limit: Limit, value: &str, fits: bool) -> Result<(), DecodeError> {
    if fits {
        return Ok(());
    }
    Err(DecodeError::Limit {
        header: limit.header,
        allowed: limit.allowed,
        chars: value.chars().count(),
    })
}

fn is_envelope(name: &str) -> bool {
    const FIELDS: &[&str] = &[
        "ce-specversion",
        "ce-id",
        "ce-messageid",
        "ce-source",
        "ce-type",
        "ce-subject",
        "ce-time",
        "ce-eventversion",
        "ce-aggregatetype",
        "ce-sequence",
        "content-type",
    ];
    name.starts_with("nats-") || FIELDS.contains(&name)
}

/// Plain are the visible ASCII characters, except `"` and `%`.
const ENCODED: &AsciiSet = &CONTROLS.add(b' ').add(b'"').add(b'%');

fn percent_encode(value: &str) -> String {
    Cow::from(utf8_percent_encode(value, ENCODED)).into_owned()
}

fn percent_decode(value: &str) -> Option<String> {
    let is_escape = |rest: &str| rest.len() >= 2 && rest.bytes().take(2).all(|byte| byte.is_ascii_hexdigit());
    let decoded = percent_decode_str(value).decode_utf8().ok()?;
    value
        .split('%')
        .skip(1)
        .all(is_escape)
        .then(|| decoded.into_owned())
}

/// Why the input is not an outbox message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// A header is missing.
    #[error("header `{header}` is missing; the message was not published by an outbox relay")]
    Missing {
        /// The header's name.
        header: &'static str,
    },
    /// A header is malformed.
    #[error("header `{header}` is malformed")]
    Malformed {
        /// The header's name.
        header: &'static str,
    },
    /// A header's value exceeds the limits of recording.
    #[error("header `{header}` has a value of {chars} characters that cannot be stored; allowed: {allowed}")]
    Limit {
        /// The header's name.
        header: &'static str,
        /// The violated limit.
        allowed: &'static str,
        /// Number of characters of the value. The value itself is left out, because it may be
        /// personal data.
        chars: usize,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use time::macros::datetime;

    fn message(aggregate_id: &str) -> Message {
        let mut headers = Headers::default();
        headers.set("tenant", "Müller & Söhne \"100%\"").unwrap();
        headers
            .set_own(
                "traceparent",
                "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            )
            .unwrap();
        headers.set_own("ce-correlationid", "c-1").unwrap();
        let id = MessageId::fresh();
        Message {
            id,
            event_id: id.into(),
            aggregate: Aggregate::new("order", aggregate_id),
            sequence: Some(3),
            event_type: "order.placed".to_owned(),
            event_version: 2,
            subject: None,
            content_type: "application/json".to_owned(),
            payload: Bytes::from_static(b"{\"a\":\"\\u0000\"}"),
            headers,
            created_at: datetime!(2026-01-02 03:04:05.678901 UTC),
        }
    }

    #[test]
    fn decoding_ignores_header_case_and_broker_headers() {
        let expected = message("1");
        let (headers, payload) = encode(&expected, "shop").received();
        let mut headers: Vec<_> = headers
            .into_iter()
            .map(|(n, v)| (n.to_ascii_uppercase(), v))
            .collect();
        headers.push(("Nats-Msg-Id".to_owned(), "x".to_owned()));
        assert_eq!(decode(&headers, payload).unwrap(), expected);
    }

    #[test]
    fn decoding_enforces_limits_and_errors_hide_values() {
        let (headers, payload) = encode(&message("1"), "shop").received();
        let decode = |header: &str, value: &str| {
            let replaced = |(name, old): &(String, String)| {
                let value = if name == header { value } else { old };
                (name.clone(), value.to_owned())
            };
            decode(&headers.iter().map(replaced).collect::<Vec<_>>(), payload.clone())
        };
        let long = |length| "x".repeat(length);
        for (header, value, chars) in [
            ("ce-subject", String::new(), 0),
            ("ce-subject", "a%00b".to_owned(), 3),
            ("ce-subject", long(256), 256),
            ("ce-subject", "%C3%BC".repeat(256), 256),
            ("ce-aggregatetype", String::new(), 0),
            ("ce-aggregatetype", "%00".to_owned(), 1),
            ("ce-aggregatetype", long(65), 65),
            ("ce-aggregatetype", "%C3%BC".repeat(33), 33),
            ("ce-type", String::new(), 0),
            ("ce-type", "a.%00".to_owned(), 3),
            ("ce-type", long(130), 130),
            ("content-type", "%00".to_owned(), 1),
            ("content-type", long(256), 256),
            ("ce-sequence", "0".to_owned(), 1),
            ("ce-sequence", "9223372036854775808".to_owned(), 19),
        ] {
            let error = decode(header, &value).unwrap_err();
            assert!(
                matches!(error, DecodeError::Limit { header: named, chars: counted, .. } if (named, counted) == (header, chars)),
                "{header}: {error:?}"
            );
        }
        for (header, value) in [
            ("ce-subject", "%C3%BC".repeat(255)),
            ("ce-aggregatetype", long(64)),
            ("ce-type", long(129)),
            ("ce-sequence", i64::MAX.to_string()),
        ] {
            decode(header, &value).unwrap();
        }
    }
}
