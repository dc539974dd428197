//! The message: the stored and sent envelope of one event.
//!
//! [`NewMessage`] is what a service records, [`Message`] what the outbox holds and the broker carries; between the two
//! the store adds the sequence and the time. Invariant: a `NewMessage` that passed [`NewMessage::check`] can be stored
//! in every database and published on every broker; what cannot is an [`EventError`] at save time.

use std::fmt;

use bytes::Bytes;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::context::MessageContext;
use crate::event::DomainEvent;
use crate::headers::{HeaderError, Headers};

/// Content type of payloads written by this crate.
pub const JSON: &str = "application/json";

/// Number of partitions. It is part of what is stored (`outbox_messages.partition`), so it never changes; more relays than this
/// gain nothing.
pub const PARTITIONS: u16 = 64;

/// Longest aggregate type and event name, in bytes.
pub const NAME_BYTES_MAX: usize = 64;

/// Longest aggregate id and deduplication key, in characters.
pub const KEY_CHARS_MAX: usize = 255;

/// Longest subject override, in bytes.
pub const SUBJECT_BYTES_MAX: usize = 255;

/// The id of a message: a UUID v7, unique across services. It is the broker's deduplication id and the inbox's key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MessageId(Uuid);

impl MessageId {
    /// A fresh id. Ids sort roughly by time, which keeps indexes compact; they say nothing about order.
    #[must_use]
    pub fn fresh() -> Self {
        Self(Uuid::now_v7())
    }

    /// The id as a UUID.
    #[must_use]
    pub fn as_uuid(&self) -> Uuid {
        self.0
    }
}

impl From<Uuid> for MessageId {
    fn from(id: Uuid) -> Self {
        Self(id)
    }
}

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The ordering key: the type and id of the aggregate a message belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Aggregate {
    /// Type of the aggregate, for example `order`.
    pub aggregate_type: String,
    /// Its id as text.
    pub id: String,
}

impl Aggregate {
    /// Names an aggregate.
    pub fn new(aggregate_type: impl Into<String>, id: impl Into<String>) -> Self {
        Self {
            aggregate_type: aggregate_type.into(),
            id: id.into(),
        }
    }

    /// The partition this aggregate belongs to, in `0..PARTITIONS`: the 64-bit FNV-1a hash of `type`, a zero byte and `id`.
    /// Stored with each message, so the function is frozen.
    #[must_use]
    pub fn partition(&self) -> u16 {
        let bytes = self.aggregate_type.bytes().chain([0]).chain(self.id.bytes());
        let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        // The high bits of FNV-1a are mixed better than the low ones; fold them in before reducing.
        u16::try_from((hash ^ (hash >> 32)) % u64::from(PARTITIONS)).unwrap_or_default()
    }
}

impl fmt::Display for Aggregate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.aggregate_type, self.id)
    }
}

/// Bounds on what may be recorded. They are checked before anything is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Largest payload in bytes. Default 960 KiB: nats-server takes 1 MiB for payload and headers together.
    pub payload_bytes_max: usize,
    /// Largest sum of the application's headers in bytes. Default 16 KiB.
    pub headers_bytes_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            payload_bytes_max: 960 * 1024,
            headers_bytes_max: 16 * 1024,
        }
    }
}

impl Limits {
    /// Sets the largest payload; keep it 64 KiB below the broker's `max_payload`.
    #[must_use]
    pub fn payload_bytes_max(mut self, bytes: usize) -> Self {
        self.payload_bytes_max = bytes;
        self
    }

    /// Sets the largest sum of headers.
    #[must_use]
    pub fn headers_bytes_max(mut self, bytes: usize) -> Self {
        self.headers_bytes_max = bytes;
        self
    }
}

/// A message that is not stored yet: an encoded event with its id, names and headers.
#[derive(Debug, Clone, PartialEq)]
pub struct NewMessage {
    id: MessageId,
    aggregate: Aggregate,
    event_name: String,
    event_version: u32,
    subject: Option<String>,
    sequenced: bool,
    payload: Vec<u8>,
    headers: Headers,
    dedup_key: Option<String>,
    available_at: Option<OffsetDateTime>,
}

impl NewMessage {
    /// Encodes an event as JSON, gives it an id, and takes over the ambient [`MessageContext`].
    ///
    /// # Errors
    ///
    /// [`EventError::Encode`] if serde refuses the value, [`EventError::Header`] if the context holds a line break or NUL.
    pub fn from_event<E: DomainEvent>(event: &E) -> Result<Self, EventError> {
        let descriptor = event.descriptor();
        let payload = serde_json::to_vec(event).map_err(|source| EventError::Encode {
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
            payload,
            headers,
            dedup_key: event.dedup_key(),
            available_at: None,
        })
    }

    /// Adds a header that consumers can read.
    ///
    /// # Errors
    ///
    /// [`EventError::Header`] if the name is malformed or reserved, or the value holds CR, LF or NUL.
    pub fn with_header(mut self, name: &str, value: impl Into<String>) -> Result<Self, EventError> {
        self.headers.set(name, value)?;
        Ok(self)
    }

    /// Holds the message back until a time. Later messages of the same aggregate wait behind it: order comes first.
    #[must_use]
    pub fn available_at(mut self, time: OffsetDateTime) -> Self {
        self.available_at = Some(time);
        self
    }

    /// Checks everything that could make the message impossible to store or publish. Stores call this before they write.
    ///
    /// # Errors
    ///
    /// The [`EventError`] that says what is wrong and what to do.
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

    /// The message that this becomes once a store has given it a sequence and a time.
    #[must_use]
    pub fn into_message(self, sequence: Option<u64>, created_at: OffsetDateTime) -> Message {
        Message {
            id: self.id,
            event_type: self.event_type(),
            aggregate: self.aggregate,
            sequence,
            event_version: self.event_version,
            subject: self.subject,
            content_type: JSON.to_owned(),
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

    /// The aggregate the message belongs to.
    #[must_use]
    pub fn aggregate(&self) -> &Aggregate {
        &self.aggregate
    }

    /// The event type: `aggregate.name`.
    #[must_use]
    pub fn event_type(&self) -> String {
        format!("{}.{}", self.aggregate.aggregate_type, self.event_name)
    }

    /// Version of the payload's shape.
    #[must_use]
    pub fn event_version(&self) -> u32 {
        self.event_version
    }

    /// The fixed subject, if the event type has one.
    #[must_use]
    pub fn subject(&self) -> Option<&str> {
        self.subject.as_deref()
    }

    /// Whether the message takes a sequence number within its aggregate.
    #[must_use]
    pub fn is_sequenced(&self) -> bool {
        self.sequenced
    }

    /// Content type of [`Self::payload`].
    #[must_use]
    pub fn content_type(&self) -> &str {
        JSON
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

    /// The business key that must not be recorded twice: compared byte by byte, over all event types of the outbox.
    #[must_use]
    pub fn dedup_key(&self) -> Option<&str> {
        self.dedup_key.as_deref()
    }

    /// When the message may be published at the earliest, if it is delayed.
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

/// A stored message, as relays publish it and consumers receive it.
#[derive(Debug, Clone, PartialEq)]
pub struct Message {
    /// The message's id.
    pub id: MessageId,
    /// The aggregate it belongs to.
    pub aggregate: Aggregate,
    /// Its number within the aggregate, from 1 without holes; `None` for unsequenced events.
    pub sequence: Option<u64>,
    /// The event type: `aggregate.name`.
    pub event_type: String,
    /// Version of the payload's shape.
    pub event_version: u32,
    /// A fixed subject that replaces the default one.
    pub subject: Option<String>,
    /// Content type of the payload.
    pub content_type: String,
    /// The encoded event.
    pub payload: Bytes,
    /// Headers of the application, and correlation, causation and trace ids.
    pub headers: Headers,
    /// When it was recorded, by the database's clock, in UTC.
    pub created_at: OffsetDateTime,
}

impl Message {
    /// The event's name within its aggregate: the event type without the aggregate type.
    #[must_use]
    pub fn event_name(&self) -> &str {
        self.event_type
            .strip_prefix(self.aggregate.aggregate_type.as_str())
            .and_then(|rest| rest.strip_prefix('.'))
            .unwrap_or(&self.event_type)
    }
}

/// Something that becomes one message: a [`DomainEvent`], or a [`NewMessage`] with headers or a delay.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a domain event",
    label = "cannot be recorded",
    note = "add `#[derive(DomainEvent)]` to `{Self}`, or pass a `NewMessage`"
)]
pub trait IntoMessage {
    /// Encodes the value.
    ///
    /// # Errors
    ///
    /// As [`NewMessage::from_event`].
    fn into_message(self) -> Result<NewMessage, EventError>;
}

impl<E: DomainEvent> IntoMessage for E {
    fn into_message(self) -> Result<NewMessage, EventError> {
        NewMessage::from_event(&self)
    }
}

impl IntoMessage for NewMessage {
    fn into_message(self) -> Result<NewMessage, EventError> {
        Ok(self)
    }
}

/// Events of any types, in the order in which they are recorded.
///
/// ```
/// # use outbox_core::{DomainEvent, Events};
/// # #[derive(DomainEvent, serde::Serialize)] #[domain_event(aggregate = "order", name = "placed")]
/// # struct OrderPlaced { #[domain_event(aggregate_id)] order_id: u64 }
/// # #[derive(DomainEvent, serde::Serialize)] #[domain_event(aggregate = "order", name = "paid")]
/// # struct OrderPaid { #[domain_event(aggregate_id)] order_id: u64 }
/// let events = Events::new().with(OrderPlaced { order_id: 7 }).with(OrderPaid { order_id: 7 });
/// assert_eq!(events.len(), 2);
/// ```
///
/// An event that cannot be encoded is kept as its error, which the save then returns: nothing is lost on the way.
#[derive(Debug, Default)]
pub struct Events(Vec<Result<NewMessage, EventError>>);

impl Events {
    /// No events.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an event.
    pub fn push(&mut self, event: impl IntoMessage) {
        self.0.push(event.into_message());
    }

    /// Adds an event and hands the collection back.
    #[must_use]
    pub fn with(mut self, event: impl IntoMessage) -> Self {
        self.push(event);
        self
    }

    /// Appends all of `other`.
    pub fn append(&mut self, other: Events) {
        self.0.extend(other.0);
    }

    /// Number of events.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Event types in order, for log lines; an event that could not be encoded shows its error.
    #[must_use]
    pub fn describe(&self) -> Vec<String> {
        self.0
            .iter()
            .map(|event| match event {
                Ok(message) => format!("{} of {}", message.event_type(), message.aggregate()),
                Err(error) => error.to_string(),
            })
            .collect()
    }

    /// The messages, all checked.
    ///
    /// # Errors
    ///
    /// The first event's error, in order.
    pub fn checked(self, limits: &Limits) -> Result<Vec<NewMessage>, EventError> {
        self.0
            .into_iter()
            .map(|message| {
                let message = message?;
                message.check(limits)?;
                Ok(message)
            })
            .collect()
    }
}

/// Events that can be recorded together: arrays, vectors, options, and [`Events`] for mixed types.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a collection of events",
    label = "expected an array, a `Vec`, an `Option` or `Events`",
    note = "wrap a single event in an array: `[event]`; for events of several types use `Events::new().with(a).with(b)`"
)]
pub trait IntoEvents {
    /// Encodes the events, in order.
    fn into_events(self) -> Events;
}

impl IntoEvents for Events {
    fn into_events(self) -> Events {
        self
    }
}

macro_rules! into_events_by_iteration {
    ($([$($generics:tt)*] $ty:ty),*) => {$(
        impl<T: IntoMessage, $($generics)*> IntoEvents for $ty {
            fn into_events(self) -> Events {
                Events(self.into_iter().map(IntoMessage::into_message).collect())
            }
        }
    )*};
}

into_events_by_iteration!([const N: usize] [T; N], [] Vec<T>, [] Option<T>);

/// Why an event cannot be recorded. Nothing has been written; the caller's transaction is the caller's to roll back.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EventError {
    /// Serde refused the value.
    #[error("event `{event_type}` cannot be encoded as JSON")]
    Encode {
        /// The event type.
        event_type: String,
        /// Serde's reason.
        source: serde_json::Error,
    },
    /// An aggregate type or event name does not match the pattern; the derive refuses such names at compile time.
    #[error("{what} `{name}` is malformed; use `[a-z][a-z0-9_-]*`, at most 64 bytes")]
    Name {
        /// Which name.
        what: &'static str,
        /// The name, escaped.
        name: String,
    },
    /// The version is 0.
    #[error("event `{event_type}` has version 0; versions start at 1")]
    Version {
        /// The event type.
        event_type: String,
    },
    /// The aggregate id or deduplication key is empty, too long, or contains NUL.
    #[error("{what} of event `{event_type}` {reason}; use 1 to 255 characters without NUL")]
    Key {
        /// Which key.
        what: &'static str,
        /// The event type.
        event_type: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The subject override is no valid subject; the derive refuses such subjects at compile time.
    #[error("subject `{subject}` {reason}; use dot-separated tokens without wildcards, at most 255 bytes")]
    Subject {
        /// The subject, escaped.
        subject: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The payload or the headers exceed their limit.
    #[error(
        "{what} of event `{event_type}` has {size_bytes} bytes, the limit is {limit_bytes}; store the data elsewhere and send a reference, or raise the limit together with the broker's `max_payload`"
    )]
    TooLarge {
        /// `payload` or `headers`.
        what: &'static str,
        /// The event type.
        event_type: String,
        /// Actual size.
        size_bytes: usize,
        /// The limit from [`Limits`].
        limit_bytes: usize,
    },
    /// A header was refused.
    #[error(transparent)]
    Header(#[from] HeaderError),
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
            payload: b"{}".to_vec(),
            headers: Headers::default(),
            dedup_key: None,
            available_at: None,
        }
    }

    /// The values are stored in users' tables: if this test fails, the hash changed and order is lost on upgrade.
    #[test]
    fn partitions_are_frozen() {
        let partition = |id: &str| Aggregate::new("order", id).partition();
        assert_eq!(["1", "2", "3", "ü", ""].map(partition), [19, 58, 45, 29, 39]);
    }

    #[test]
    fn partitions_are_spread_evenly() {
        let mut counts = vec![0_u32; usize::from(PARTITIONS)];
        for id in 0..64_000 {
            counts[usize::from(Aggregate::new("order", id.to_string()).partition())] += 1;
        }
        assert!(
            counts.iter().all(|count| (800..1200).contains(count)),
            "{counts:?}"
        );
    }

    #[test]
    fn odd_aggregate_ids_are_legal() {
        for id in ["a.b", "*", ">", "ü", "a b", "$JS.API.x", "..", &"ü".repeat(255)] {
            message("order", id).check(&Limits::default()).unwrap();
        }
    }

    #[test]
    fn impossible_aggregate_ids_are_refused() {
        for id in ["", "a\0b", &"x".repeat(256)] {
            let error = message("order", id).check(&Limits::default()).unwrap_err();
            assert!(
                matches!(
                    error,
                    EventError::Key {
                        what: "aggregate id",
                        ..
                    }
                ),
                "{id:?}"
            );
        }
    }

    #[test]
    fn malformed_names_are_refused() {
        for name in ["", "Order", "a.b", "1a", "a*", "ü", "a\0", &"x".repeat(65)] {
            let error = message(name, "1").check(&Limits::default()).unwrap_err();
            assert!(matches!(error, EventError::Name { .. }), "{name:?}");
        }
    }

    #[test]
    fn impossible_subjects_are_refused() {
        for subject in [
            "",
            "$JS.API.STREAM.PURGE.x",
            "a.*",
            "a.>",
            "a b",
            "a..b",
            ".a",
            "a.",
            "a\n",
            &"x".repeat(256),
        ] {
            let error = NewMessage {
                subject: Some(subject.to_owned()),
                ..message("order", "1")
            }
            .check(&Limits::default())
            .unwrap_err();
            assert!(matches!(error, EventError::Subject { .. }), "{subject:?}");
        }
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
