//! Undecoded messages, for handlers that audit or forward.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use outbox_core::Message;
use outbox_core::payload::{self, Decode, EventCodec, PayloadError};

use super::context::HandlerContext;
use super::error::HandlerError;
use super::extract::FromContext;

/// A whole undecoded message, with headers and payload.
///
/// A `RawMessage` as the first argument needs the key `messages` of
/// [`idempotent_handler`](macro@crate::idempotent_handler). A later argument may be a `RawMessage`
/// after an [`Event`](crate::Event).
///
/// ```
/// use outbox_inbox::{HandlerError, RawMessage, Tx, idempotent_handler};
///
/// // Every message on the stream, once, whatever other consumers do with it.
/// #[idempotent_handler(consumer = "audit", messages = ["*"])]
/// async fn keep(message: RawMessage, tx: Tx<'_>) -> Result<(), HandlerError> {
///     let row = (message.event_id, &message.event_type, &message.aggregate, &message.payload);
/// #   drop((row, tx));
///     Ok(())
/// }
/// ```
///
/// [`Message::subject`](outbox_core::Message#structfield.subject) is set only if the event type
/// declares a fixed subject.
#[derive(Clone)]
pub struct RawMessage(Arc<Message>);

impl RawMessage {
    /// Decodes the payload as `E`, without a check that the message has an event type of `E`.
    ///
    /// # Errors
    ///
    /// [`PayloadError`].
    pub fn decode<E: EventCodec>(&self) -> Result<E, PayloadError>
    where
        E::Codec: Decode<E>,
    {
        payload::decode(&self.0)
    }

    /// The message. Cloning the [`Arc`] copies no bytes.
    #[must_use]
    pub fn into_message(self) -> Arc<Message> {
        self.0
    }
}

impl Deref for RawMessage {
    type Target = Message;

    fn deref(&self) -> &Message {
        &self.0
    }
}

impl fmt::Debug for RawMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RawMessage")
            .field("event_id", &self.event_id)
            .field("event_type", &self.event_type)
            .field("event_version", &self.event_version)
            .field("sequence", &self.sequence)
            .field("content_type", &self.content_type)
            .field("payload_bytes", &self.payload.len())
            .finish_non_exhaustive()
    }
}

/// The first argument of a handler with the key `messages`: [`RawMessage`] or `Vec<RawMessage>`.
#[diagnostic::on_unimplemented(
    message = "the first argument of a handler with `messages` must be `RawMessage` or `Vec<RawMessage>`",
    label = "`{Self}` is not `RawMessage`",
    note = "write `message: RawMessage`, or leave `messages` out and take `Event<MyEvent>`"
)]
pub trait RawArgument: Sized {
    /// Whether the handler takes several messages in one run.
    const SEVERAL: bool;

    /// Returns the messages.
    ///
    /// # Errors
    ///
    /// None.
    fn take(context: &HandlerContext<'_>) -> Result<Self, HandlerError>;
}

impl RawArgument for RawMessage {
    const SEVERAL: bool = false;

    fn take(context: &HandlerContext<'_>) -> Result<Self, HandlerError> {
        Ok(Self(context.messages[0].clone()))
    }
}

impl RawArgument for Vec<RawMessage> {
    const SEVERAL: bool = true;

    fn take(context: &HandlerContext<'_>) -> Result<Self, HandlerError> {
        Ok(context.messages.iter().cloned().map(RawMessage).collect())
    }
}

impl<'a> FromContext<'a> for RawMessage {
    fn from_context(context: &HandlerContext<'a>) -> Result<Self, HandlerError> {
        Self::take(context)
    }
}

impl<'a> FromContext<'a> for Vec<RawMessage> {
    fn from_context(context: &HandlerContext<'a>) -> Result<Self, HandlerError> {
        Self::take(context)
    }
}
