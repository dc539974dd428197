//! Decodes events of messages in tests. See [`MemoryStore::rows`](super::MemoryStore::rows) and
//! [`MemoryBroker::messages`](super::MemoryBroker::messages).

use outbox_core::event::{DomainEvent, EventDescriptor};
use outbox_core::message::Message;
use outbox_core::payload::{self, Decode, EventCodec, PayloadError};

/// Decodes the event of a message.
///
/// # Errors
///
/// [`DecodeEventError`] if the message has another type or version, or its payload does not match.
pub fn decode_event<E>(message: &Message) -> Result<E, DecodeEventError>
where
    E: EventCodec,
    E::Codec: Decode<E>,
{
    let known: Vec<&EventDescriptor> = E::DESCRIPTORS
        .iter()
        .filter(|descriptor| descriptor.event_type() == message.event_type)
        .collect();
    if known.is_empty() {
        let wanted = E::DESCRIPTORS.iter().map(EventDescriptor::event_type).collect();
        return Err(DecodeEventError::Type {
            wanted,
            found: message.event_type.clone(),
        });
    }
    if !known
        .iter()
        .any(|descriptor| descriptor.version == message.event_version)
    {
        let event_type = message.event_type.clone();
        return Err(DecodeEventError::Version {
            event_type,
            found: message.event_version,
        });
    }
    payload::decode(message).map_err(DecodeEventError::Payload)
}

pub(super) fn is_event<E: DomainEvent>(message: &Message) -> bool {
    E::DESCRIPTORS
        .iter()
        .any(|descriptor| descriptor.event_type() == message.event_type)
}

/// Why a message cannot be decoded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeEventError {
    /// The message has another event type.
    #[error("message has type `{found}`, expected {wanted:?}")]
    Type {
        /// The expected event types.
        wanted: Vec<String>,
        /// The message's event type.
        found: String,
    },
    /// The Rust type describes only other versions of the event type.
    #[error("message of type `{event_type}` has version {found}, which the Rust type does not support")]
    Version {
        /// The event type.
        event_type: String,
        /// The message's version.
        found: u32,
    },
    /// The payload does not match the Rust type.
    #[error("payload does not match the Rust type")]
    Payload(#[source] PayloadError),
}
