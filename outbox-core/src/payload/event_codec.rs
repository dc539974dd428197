//! The codec of an event type, and decoding messages with it.

use std::any::type_name;

use super::{Codec, Decode, PayloadError, is_media_type};
use crate::event::{DomainEvent, EventDescriptor};
use crate::message::Message;

/// An event type with its codec, implemented by `#[derive(DomainEvent)]`. Implement it manually
/// only for handlers:
///
/// ```
/// # use outbox_core::{AggregateId, DomainEvent, EventDescriptor};
/// # #[derive(serde::Serialize)]
/// # struct OrderPlaced;
/// # impl DomainEvent for OrderPlaced {
/// #     const DESCRIPTORS: &'static [EventDescriptor] = &[];
/// #     fn descriptor(&self) -> &'static EventDescriptor { &Self::DESCRIPTORS[0] }
/// #     fn aggregate_id(&self) -> AggregateId { AggregateId::new("1") }
/// #     fn dedup_key(&self) -> Option<String> { None }
/// # }
/// impl outbox_core::EventCodec for OrderPlaced {
///     type Codec = outbox_core::Json;
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a domain event",
    label = "this type has no `DomainEvent` implementation",
    note = "add `#[derive(DomainEvent)]` and `#[domain_event(aggregate = \"…\", name = \"…\")]` to `{Self}`"
)]
pub trait EventCodec: DomainEvent + Sized {
    /// The event's codec.
    type Codec: Codec;
}

/// Decodes the event of a message with the codec of its type. Ignores event type and version, but a
/// type with several events must decode to the event that the message names.
///
/// # Errors
///
/// A [`PayloadError`]. A retry does not help.
pub fn decode<T: EventCodec>(message: &Message) -> Result<T, PayloadError>
where
    T::Codec: Decode<T>,
{
    let found = &message.content_type;
    if !is_media_type(found, T::Codec::CONTENT_TYPE) {
        return Err(PayloadError::ContentType {
            found: found.clone(),
            expected: T::Codec::CONTENT_TYPE,
        });
    }
    let event = T::Codec::decode(message).map_err(|source| PayloadError::Decode {
        event_type: message.event_type.clone(),
        version: message.event_version,
        rust_type: type_name::<T>(),
        reason: source.to_string(),
    })?;
    match mistaken(&event, message) {
        Some(read_as) => Err(PayloadError::Mistaken {
            event_type: message.event_type.clone(),
            version: message.event_version,
            read_as: read_as.rust_type,
        }),
        None => Ok(event),
    }
}

/// Compares the Rust types of payloads, because a manual implementation may have several event
/// types with one payload type.
fn mistaken<T: DomainEvent>(event: &T, message: &Message) -> Option<&'static EventDescriptor> {
    if T::DESCRIPTORS.len() < 2 {
        return None;
    }
    let named = T::DESCRIPTORS.iter().find(|descriptor| {
        descriptor.version == message.event_version && descriptor.selects(&message.event_type)
    })?;
    Some(event.descriptor()).filter(|read_as| read_as.rust_type != named.rust_type)
}
