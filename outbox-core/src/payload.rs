//! Payloads: encoding and decoding of event values.
//!
//! Invariant: a codec decodes only the content types that it declares.

use std::error::Error;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::message::{JSON, Message};

mod event_codec;
mod finite;
mod reason;

pub use event_codec::{EventCodec, decode};
pub use finite::NotFinite;
#[doc(hidden)]
pub use finite::to_json;
#[doc(hidden)]
pub use reason::json_reason;

/// Error of a codec.
pub type CodecError = Box<dyn Error + Send + Sync>;

/// An encoded event.
#[derive(derive_more::Debug, Clone, PartialEq, Eq)]
pub struct Payload {
    /// Media type: 1 to 255 characters without NUL.
    pub content_type: &'static str,
    /// The bytes.
    #[debug("{} bytes", bytes.len())]
    pub bytes: Vec<u8>,
}

/// A payload format, default [`Json`], selected with `#[domain_event(codec = …)]`.
///
/// [`Encode`] writes events and [`Decode`] reads them, inside the recording or handling task.
/// Neither may block.
///
/// ```
/// use outbox_core::payload::{Codec, CodecError, Decode, Encode};
/// use outbox_core::{DomainEvent, Message};
///
/// /// Only the bytes of a picture. Other fields are in the message's envelope.
/// struct Png;
///
/// impl Codec for Png {
///     const CONTENT_TYPE: &'static str = "image/png";
/// }
///
/// #[derive(DomainEvent, serde::Serialize)]
/// #[domain_event(aggregate = "camera", name = "took-picture", codec = Png)]
/// struct PictureTaken {
///     #[domain_event(aggregate_id)]
///     camera: String,
///     bytes: Vec<u8>,
/// }
///
/// impl Encode<PictureTaken> for Png {
///     fn encode(event: &PictureTaken) -> Result<Vec<u8>, CodecError> {
///         Ok(event.bytes.clone())
///     }
/// }
///
/// impl Decode<PictureTaken> for Png {
///     fn decode(message: &Message) -> Result<PictureTaken, CodecError> {
///         Ok(PictureTaken {
///             camera: message.aggregate.id.clone(),
///             bytes: message.payload.to_vec(),
///         })
///     }
/// }
/// ```
pub trait Codec {
    /// The content type of messages: a media type of 1 to 255 characters without NUL. Must not
    /// change.
    ///
    /// Use `application/json` only for JSON with the event's serde names, by which
    /// [`SensitiveFields`](crate::SensitiveFields) masks. Other JSON, such as protobuf's, is not
    /// displayed and needs its own media type.
    const CONTENT_TYPE: &'static str;
}

/// Writes events of type `T`.
#[diagnostic::on_unimplemented(
    message = "codec `{Self}` cannot write `{T}`",
    label = "does not implement `Encode<{T}>`",
    note = "`Json` writes what derives `serde::Serialize`; for a codec of your own write `impl Encode<{T}> for {Self}`"
)]
pub trait Encode<T: ?Sized>: Codec {
    /// Encodes an event.
    ///
    /// # Errors
    ///
    /// Any reason why the value cannot be written. The save fails and records nothing.
    fn encode(event: &T) -> Result<Vec<u8>, CodecError>;
}

/// Reads events of type `T`.
#[diagnostic::on_unimplemented(
    message = "codec `{Self}` cannot read `{T}`",
    label = "does not implement `Decode<{T}>`",
    note = "`Json` reads what derives `serde::Deserialize`; for a codec of your own write `impl Decode<{T}> for {Self}`"
)]
pub trait Decode<T>: Codec {
    /// Decodes a payload with a content type of this codec.
    ///
    /// # Errors
    ///
    /// Fails if the payload is not a `T`; the message becomes a dead letter. The error text is
    /// logged, so it must not contain payload values.
    fn decode(message: &Message) -> Result<T, CodecError>;
}

/// JSON (`application/json`), by serde. Rejects NaN and infinity ([`NotFinite`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Json {}

impl Codec for Json {
    const CONTENT_TYPE: &'static str = JSON;
}

impl<T: Serialize + ?Sized> Encode<T> for Json {
    fn encode(event: &T) -> Result<Vec<u8>, CodecError> {
        to_json(event)
    }
}

impl<T: DeserializeOwned> Decode<T> for Json {
    fn decode(message: &Message) -> Result<T, CodecError> {
        from_json(&message.payload).map_err(Into::into)
    }
}

/// Decodes JSON. Errors contain no payload values.
#[doc(hidden)]
pub fn from_json<T: DeserializeOwned>(payload: &[u8]) -> Result<T, String> {
    serde_json::from_slice(payload).map_err(|error| json_reason(&error))
}

/// Compares media types: case-insensitive, without parameters.
#[must_use]
pub fn is_media_type(content_type: &str, media_type: &str) -> bool {
    content_type
        .split(';')
        .next()
        .is_some_and(|media| media.trim().eq_ignore_ascii_case(media_type))
}

/// Why a payload cannot be decoded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PayloadError {
    /// The codec does not read this content type.
    #[error(
        "content type is `{found}`, expected `{expected}`; use the producer's codec, `#[domain_event(codec = …)]`, or take `RawMessage`"
    )]
    ContentType {
        /// Message's content type.
        found: String,
        /// Content type that the codec writes.
        expected: &'static str,
    },
    /// The payload is not a value of the requested type.
    // No `source`: serde's errors quote the payload, and sources are logged.
    #[error("payload of `{event_type}` version {version} cannot be decoded as `{rust_type}`: {reason}")]
    Decode {
        /// The event type.
        event_type: String,
        /// The event's version.
        version: u32,
        /// The requested type.
        rust_type: &'static str,
        /// The codec's reason.
        reason: String,
    },
    /// The bytes decode to another event than the message names, because the variants have the same
    /// shape (such as serde's `untagged`).
    #[error(
        "payload of `{event_type}` version {version} decodes as `{read_as}`, which has the same shape; put the variant with more fields first, \
         rename fields, use a tagged representation (`#[serde(tag = \"type\")]`), or handle `{event_type}` as a separate struct"
    )]
    Mistaken {
        /// The event type.
        event_type: String,
        /// The event's version.
        version: u32,
        /// The decoded variant.
        read_as: &'static str,
    },
}

/// Encodes with `C`.
///
/// # Errors
///
/// Any error of the codec.
pub fn with<C: Encode<E>, E: ?Sized>(event: &E) -> Result<Payload, CodecError> {
    Ok(Payload {
        content_type: C::CONTENT_TYPE,
        bytes: C::encode(event)?,
    })
}

#[cfg(test)]
mod tests;
