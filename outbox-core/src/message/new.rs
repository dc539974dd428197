//! A message to be recorded: an encoded event without sequence.
//!
//! Invariant: recording rejects a message that fails [`NewMessage::check`]. Every database and
//! broker accepts all other messages.

use time::OffsetDateTime;

use super::error::EventError;
use super::limits::{KEY_CHARS_MAX, Limits, NAME_BYTES_MAX, SUBJECT_BYTES_MAX};
use super::{Aggregate, JSON, Message, MessageId};
use crate::context::MessageContext;
use crate::event::DomainEvent;
use crate::headers::Headers;

/// An event before recording.
#[derive(derive_more::Debug, Clone, PartialEq)]
pub struct NewMessage {
    id: MessageId,
    aggregate: Aggregate,
    event_name: String,
    event_version: u32,
    subject: Option<String>,
    sequenced: bool,
    content_type: &'static str,
    #[debug("{} bytes", payload.len())]
    payload: Vec<u8>,
    #[debug(skip)]
    headers: Headers,
    #[debug(skip)]
    dedup_key: Option<String>,
    available_at: Option<OffsetDateTime>,
}

impl NewMessage {
    /// Encodes an event with its codec (default: JSON), with a new id and the headers of the
    /// current [`MessageContext`].
    ///
    /// # Errors
    ///
    /// [`EventError::Encode`] if the codec rejects the value, [`EventError::Header`] if the context
    /// contains a line break or NUL.
    pub fn from_event<E: DomainEvent>(event: &E) -> Result<Self, EventError> {
        let descriptor = event.descriptor();
        let payload = event.encode().map_err(|source| EventError::Encode {
            event_type: descriptor.event_type(),
            source,
        })?;
        let mut headers = Headers::default();
        MessageContext::current().write_to(&mut headers)?;
        Ok(Self {
            id: MessageId::fresh(),
            aggregate: Aggregate::new(descriptor.aggregate, event.aggregate_id().into_string()),
            event_name: descriptor.name.to_owned(),
            event_version: descriptor.version,
            subject: descriptor.subject.map(str::to_owned),
            sequenced: descriptor.sequenced,
            content_type: payload.content_type,
            payload: payload.bytes,
            headers,
            dedup_key: event.dedup_key(),
            available_at: None,
        })
    }

    /// Adds a header for consumers.
    ///
    /// # Errors
    ///
    /// [`EventError::Header`] if the name is malformed or reserved, or the value contains CR, LF or
    /// NUL.
    pub fn with_header(mut self, name: &str, value: impl Into<String>) -> Result<Self, EventError> {
        self.headers.set(name, value)?;
        Ok(self)
    }

    /// Delays the message. Later messages of the same aggregate wait behind it.
    #[must_use]
    pub fn available_at(mut self, time: OffsetDateTime) -> Self {
        self.available_at = Some(time);
        self
    }

    /// Checks everything that could prevent storing or publishing. Stores call this before writing.
    ///
    /// # Errors
    ///
    /// An [`EventError`] that names the problem and its repair.
    pub fn check(&self, limits: &Limits) -> Result<(), EventError> {
        check_name("aggregate type", &self.aggregate.aggregate_type)?;
        check_name("event name", &self.event_name)?;
        if self.event_version == 0 {
            return Err(EventError::Version {
                event_type: self.event_type(),
            });
        }
        check_key("aggregate id", &self.event_type(), &self.aggregate.id)?;
        if let Some(key) = &self.dedup_key {
            check_key("deduplication key", &self.event_type(), key)?;
        }
        if self.content_type != JSON {
            check_key("content type", &self.event_type(), self.content_type)?;
        }
        if let Some(subject) = &self.subject {
            check_subject(subject)?;
        }
        let too_large = |what, size_bytes, limit_bytes| EventError::TooLarge {
            what,
            event_type: self.event_type(),
            size_bytes,
            limit_bytes,
        };
        if self.payload.len() > limits.payload_bytes_max {
            return Err(too_large("payload", self.payload.len(), limits.payload_bytes_max));
        }
        if self.headers.size_bytes() > limits.headers_bytes_max {
            return Err(too_large(
                "headers",
                self.headers.size_bytes(),
                limits.headers_bytes_max,
            ));
        }
        Ok(())
    }

    /// Adds sequence and time from the store.
    #[must_use]
    pub fn into_message(self, sequence: Option<u64>, created_at: OffsetDateTime) -> Message {
        Message {
            id: self.id,
            event_id: self.id.into(),
            event_type: self.event_type(),
            aggregate: self.aggregate,
            sequence,
            event_version: self.event_version,
            subject: self.subject,
            content_type: self.content_type.to_owned(),
            payload: self.payload.into(),
            headers: self.headers,
            created_at,
        }
    }

    /// The message's id.
    #[must_use]
    pub fn id(&self) -> MessageId {
        self.id
    }

    /// The message's aggregate.
    #[must_use]
    pub fn aggregate(&self) -> &Aggregate {
        &self.aggregate
    }

    /// Event type `aggregate.name`.
    #[must_use]
    pub fn event_type(&self) -> String {
        format!("{}.{}", self.aggregate.aggregate_type, self.event_name)
    }

    /// Payload version.
    #[must_use]
    pub fn event_version(&self) -> u32 {
        self.event_version
    }

    /// Fixed subject, if any.
    #[must_use]
    pub fn subject(&self) -> Option<&str> {
        self.subject.as_deref()
    }

    /// Whether the message has a sequence.
    #[must_use]
    pub fn is_sequenced(&self) -> bool {
        self.sequenced
    }

    /// Payload media type.
    #[must_use]
    pub fn content_type(&self) -> &'static str {
        self.content_type
    }

    /// The encoded event.
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        &self.payload
    }

    /// The message's headers.
    #[must_use]
    pub fn headers(&self) -> &Headers {
        &self.headers
    }

    /// Business key that must not be recorded twice, compared byte by byte across event types.
    #[must_use]
    pub fn dedup_key(&self) -> Option<&str> {
        self.dedup_key.as_deref()
    }

    /// The delay's end.
    #[must_use]
    pub fn delayed_until(&self) -> Option<OffsetDateTime> {
        self.available_at
    }
}

fn check_name(what: &'static str, name: &str) -> Result<(), EventError> {
    let first = name.bytes().next().is_some_and(|b| b.is_ascii_lowercase());
    let rest = name
        .bytes()
        .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_' || b == b'-');
    if first && rest && name.len() <= NAME_BYTES_MAX {
        return Ok(());
    }
    Err(EventError::Name {
        what,
        name: name.escape_debug().to_string(),
    })
}

fn check_key(what: &'static str, event_type: &str, key: &str) -> Result<(), EventError> {
    let reason = if key.is_empty() {
        "is empty"
    } else if key.contains('\0') {
        "contains NUL"
    } else if key.chars().count() > KEY_CHARS_MAX {
        "is longer than 255 characters"
    } else {
        return Ok(());
    };
    Err(EventError::Key {
        what,
        event_type: event_type.to_owned(),
        reason,
    })
}

fn check_subject(subject: &str) -> Result<(), EventError> {
    let reason = if subject.is_empty() {
        "is empty"
    } else if subject.len() > SUBJECT_BYTES_MAX {
        "is longer than 255 bytes"
    } else if subject.starts_with('$') {
        "starts with `$`, which belongs to the server"
    } else if subject.contains(['*', '>']) {
        "contains a wildcard"
    } else if subject.contains(|c: char| c.is_whitespace() || c.is_control()) {
        "contains white space or a control character"
    } else if subject.split('.').any(str::is_empty) {
        "has an empty token"
    } else {
        return Ok(());
    };
    Err(EventError::Subject {
        subject: subject.escape_debug().to_string(),
        reason,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(aggregate_type: &str, id: &str) -> NewMessage {
        NewMessage {
            id: MessageId::fresh(),
            aggregate: Aggregate::new(aggregate_type, id),
            event_name: "placed".to_owned(),
            event_version: 1,
            subject: None,
            sequenced: true,
            content_type: JSON,
            payload: b"{}".to_vec(),
            headers: Headers::default(),
            dedup_key: None,
            available_at: None,
        }
    }

    #[test]
    fn unusual_aggregate_ids_are_accepted() {
        for id in ["a.b", "*", ">", "ü", "a b", "$JS.API.x", "..", &"ü".repeat(255)] {
            message("order", id).check(&Limits::default()).unwrap();
        }
    }

    #[test]
    fn unstorable_messages_are_rejected() {
        let (long, longer) = ("x".repeat(65), "x".repeat(256));
        let is_key = |what| move |error: &EventError| matches!(error, EventError::Key { what: seen, .. } if *seen == what);
        for id in ["", "a\0b", &longer] {
            refused(message("order", id), is_key("aggregate id"));
        }
        for content_type in ["", "image/\0", longer.clone().leak()] {
            let message = NewMessage {
                content_type,
                ..message("order", "1")
            };
            refused(message, is_key("content type"));
        }
        for name in ["", "Order", "a.b", "1a", "a*", "ü", "a\0", &long] {
            refused(message(name, "1"), |error| {
                matches!(error, EventError::Name { .. })
            });
        }
        let harmful = "$JS.API.STREAM.PURGE.x";
        for subject in [
            "", harmful, "a.*", "a.>", "a b", "a..b", ".a", "a.", "a\n", &longer,
        ] {
            let message = NewMessage {
                subject: Some(subject.to_owned()),
                ..message("order", "1")
            };
            refused(message, |error| matches!(error, EventError::Subject { .. }));
        }
    }

    #[track_caller]
    fn refused(message: NewMessage, is_expected: impl Fn(&EventError) -> bool) {
        let error = message.check(&Limits::default()).unwrap_err();
        assert!(is_expected(&error), "{message:?}: {error:?}");
    }

    #[test]
    fn payload_limit_is_inclusive() {
        let limits = Limits::default().payload_bytes_max(10);
        let sized = |size| NewMessage {
            payload: vec![b'x'; size],
            ..message("order", "1")
        };
        sized(10).check(&limits).unwrap();
        assert!(matches!(
            sized(11).check(&limits),
            Err(EventError::TooLarge {
                what: "payload",
                size_bytes: 11,
                limit_bytes: 10,
                ..
            })
        ));
    }
}
