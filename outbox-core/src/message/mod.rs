//! Messages: stored and sent envelopes of events.
//!
//! A service records a [`NewMessage`]. With sequence and time from the store, it becomes a
//! [`Message`].

mod aggregate;
mod error;
mod events;
mod limits;
mod new;

use std::fmt;

use bytes::Bytes;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::headers::Headers;

pub use aggregate::{Aggregate, PARTITIONS};
pub use error::EventError;
pub use events::{Events, IntoEvents, IntoMessage};
pub use limits::{
    KEY_CHARS_MAX, Limits, NAME_BYTES_MAX, ROW_HEADERS_BYTES_MAX, ROW_PAYLOAD_BYTES_MAX, SUBJECT_BYTES_MAX,
};
pub use new::NewMessage;

/// Content type of JSON payloads.
pub const JSON: &str = "application/json";

/// Message id: UUID v7, unique across services. The broker's deduplication id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MessageId(Uuid);

impl MessageId {
    /// A new id. Ids are roughly ordered by time, only for compact indexes.
    #[must_use]
    pub fn fresh() -> Self {
        Self(Uuid::now_v7())
    }

    /// The UUID.
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

/// Event id: the id of the event's first message, by which consumers deduplicate. A replayed copy
/// is another message with the same event id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EventId(Uuid);

impl EventId {
    /// The UUID.
    #[must_use]
    pub fn as_uuid(&self) -> Uuid {
        self.0
    }
}

impl From<Uuid> for EventId {
    fn from(id: Uuid) -> Self {
        Self(id)
    }
}

impl From<MessageId> for EventId {
    fn from(id: MessageId) -> Self {
        Self(id.0)
    }
}

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A stored message.
#[derive(derive_more::Debug, Clone, PartialEq)]
pub struct Message {
    /// The message's id.
    pub id: MessageId,
    /// Event id; differs from `id` in replayed copies.
    pub event_id: EventId,
    /// The message's aggregate.
    pub aggregate: Aggregate,
    /// The message's number within its aggregate, from 1 without gaps; `None` if unsequenced.
    pub sequence: Option<u64>,
    /// Event type `aggregate.name`.
    pub event_type: String,
    /// Payload version.
    pub event_version: u32,
    /// Fixed subject, if any.
    pub subject: Option<String>,
    /// Payload media type.
    pub content_type: String,
    /// The encoded event.
    #[debug("{} bytes", payload.len())]
    pub payload: Bytes,
    /// Application headers, plus correlation, causation and trace ids.
    #[debug(skip)]
    pub headers: Headers,
    /// Time of recording, by the database's clock, in UTC.
    pub created_at: OffsetDateTime,
}

impl Message {
    /// Event name without aggregate type.
    #[must_use]
    pub fn event_name(&self) -> &str {
        self.event_type
            .strip_prefix(self.aggregate.aggregate_type.as_str())
            .and_then(|rest| rest.strip_prefix('.'))
            .unwrap_or(&self.event_type)
    }
}
