//! The arguments of a handler, apart from the transaction.
//!
//! Invariant: extraction does no I/O. A missing argument is an error before the handler runs.

use std::any::{TypeId, type_name};
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use outbox_core::payload::{self, Decode, EventCodec};
use outbox_core::sensitive::MASK;
use outbox_core::{
    Aggregate, DomainEvent, EventDescriptor, EventId, Headers, Message, MessageContext, MessageId,
};
use time::OffsetDateTime;
use uuid::Uuid;

use super::context::HandlerContext;
use super::error::HandlerError;
use super::registration::Requirement;

/// A value that a handler can take as an argument. Implement it for your own arguments.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be an argument of a handler",
    label = "not an extractor",
    note = "use `Event<T>`, `Tx<'_>`, `Outbox<'_>`, `HandlerState<T>`, `Metadata`, `RawMessage` or `StableKey`, or implement `FromContext` for `{Self}`"
)]
pub trait FromContext<'a>: Sized {
    /// State that the application must provide for this argument.
    const REQUIRES: Option<Requirement> = None;
    /// Whether the argument needs [`HandlerContext::transaction`]. If no argument needs it,
    /// handlers of the strategies `natural` and `external` run without a transaction.
    const TRANSACTIONAL: bool = false;

    /// Extracts the argument.
    ///
    /// # Errors
    ///
    /// An error counts as an error of the handler: the message is retried or, if the error is
    /// fatal, becomes a dead letter.
    fn from_context(context: &HandlerContext<'a>) -> Result<Self, HandlerError>;
}

/// The first argument of a handler, [`Event`] or `Vec<Event<T>>`; it determines the handled events.
/// For undecoded messages see [`RawArgument`](crate::RawArgument).
#[diagnostic::on_unimplemented(
    message = "the first argument of a handler must be `Event<T>` or `Vec<Event<T>>`",
    label = "`{Self}` is not `Event<T>`",
    note = "write `event: Event<MyEvent>` with a type that derives `DomainEvent` and `Deserialize`",
    note = "to take messages undecoded, write `message: RawMessage` and add the key `messages = [\"order.*\"]`"
)]
pub trait EventArgument: Sized {
    /// Rust type of the event.
    type Event: EventCodec;
    /// Descriptors of the handled events.
    const EVENTS: &'static [EventDescriptor];
    /// Whether the handler takes several messages in one run.
    const SEVERAL: bool = false;

    /// Decodes the messages.
    ///
    /// # Errors
    ///
    /// A fatal error if a payload cannot be decoded.
    fn take(context: &HandlerContext<'_>) -> Result<Self, HandlerError>;
}

/// The decoded event. A payload that cannot be decoded as `T` becomes a dead letter. `Debug` hides
/// the fields if any is [sensitive](DomainEvent::SENSITIVE).
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Event<T>(pub T);

impl<T: DomainEvent + fmt::Debug> fmt::Debug for Event<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if T::SENSITIVE.is_empty() {
            return f.debug_tuple("Event").field(&self.0).finish();
        }
        let descriptor = self.0.descriptor();
        write!(
            f,
            "Event({} version {}, {MASK})",
            descriptor.event_type(),
            descriptor.version
        )
    }
}

impl<T: EventCodec> EventArgument for Event<T>
where
    T::Codec: Decode<T>,
{
    type Event = T;
    const EVENTS: &'static [EventDescriptor] = T::DESCRIPTORS;

    fn take(context: &HandlerContext<'_>) -> Result<Self, HandlerError> {
        Self::decode(context.message())
    }
}

/// Events of a batch, in stream order within each aggregate. If a payload cannot be decoded, the
/// messages are handled one by one.
impl<T: EventCodec> EventArgument for Vec<Event<T>>
where
    T::Codec: Decode<T>,
{
    type Event = T;
    const EVENTS: &'static [EventDescriptor] = T::DESCRIPTORS;
    const SEVERAL: bool = true;

    fn take(context: &HandlerContext<'_>) -> Result<Self, HandlerError> {
        context.messages().map(Event::decode).collect()
    }
}

impl<'a, T: EventCodec> FromContext<'a> for Event<T>
where
    T::Codec: Decode<T>,
{
    fn from_context(context: &HandlerContext<'a>) -> Result<Self, HandlerError> {
        Self::decode(context.message())
    }
}

impl<'a, T: EventCodec> FromContext<'a> for Vec<Event<T>>
where
    T::Codec: Decode<T>,
{
    fn from_context(context: &HandlerContext<'a>) -> Result<Self, HandlerError> {
        context.messages().map(Event::decode).collect()
    }
}

impl<T: EventCodec> Event<T>
where
    T::Codec: Decode<T>,
{
    pub(super) fn decode(message: &Message) -> Result<Self, HandlerError> {
        payload::decode(message).map(Self).map_err(HandlerError::fatal)
    }
}

impl<T> Deref for Event<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

/// A value from [`Inbox::with_state`](crate::Inbox::with_state). A missing value is an error at the
/// start.
#[derive(Debug)]
pub struct HandlerState<T>(pub Arc<T>);

impl<T> Clone for HandlerState<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<'a, T: Send + Sync + 'static> FromContext<'a> for HandlerState<T> {
    const REQUIRES: Option<Requirement> = Some(Requirement {
        id: TypeId::of::<T>,
        name: type_name::<T>,
    });

    fn from_context(context: &HandlerContext<'a>) -> Result<Self, HandlerError> {
        let missing = || {
            HandlerError::retry(format!(
                "state `{}` is missing; provide it with `Inbox::with_state`",
                type_name::<T>()
            ))
        };
        context.state.get().map(Self).ok_or_else(missing)
    }
}

impl<T> Deref for HandlerState<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

/// All fields of the message except the payload.
#[derive(Clone)]
pub struct Metadata {
    message: Arc<Message>,
    consumer: &'static str,
    attempt: u32,
}

impl Metadata {
    fn of(message: &Arc<Message>, context: &HandlerContext<'_>) -> Self {
        Self {
            message: message.clone(),
            consumer: context.consumer,
            attempt: context.attempt,
        }
    }

    /// The event's id. The deduplication key is the consumer's name and this id.
    #[must_use]
    pub fn event_id(&self) -> EventId {
        self.message.event_id
    }

    /// The message's id. It differs from the event's id in replayed copies only.
    #[must_use]
    pub fn message_id(&self) -> MessageId {
        self.message.id
    }

    /// The event type, for example `order.placed`.
    #[must_use]
    pub fn event_type(&self) -> &str {
        &self.message.event_type
    }

    /// Schema version of the payload.
    #[must_use]
    pub fn event_version(&self) -> u32 {
        self.message.event_version
    }

    /// The aggregate of the message.
    #[must_use]
    pub fn aggregate(&self) -> &Aggregate {
        &self.message.aggregate
    }

    /// The event's number within the aggregate; `None` for unsequenced events.
    #[must_use]
    pub fn sequence(&self) -> Option<u64> {
        self.message.sequence
    }

    /// The time when the event was recorded, by the clock of the producer's database.
    #[must_use]
    pub fn recorded_at(&self) -> OffsetDateTime {
        self.message.created_at
    }

    /// The message's headers.
    #[must_use]
    pub fn headers(&self) -> &Headers {
        &self.message.headers
    }

    /// Correlation, causation and trace ids of the message. Follow-up events inherit the
    /// correlation id (default: this message's id); their cause is this message.
    #[must_use]
    pub fn context(&self) -> MessageContext {
        MessageContext::from_headers(&self.message.headers)
    }

    /// Name of the handling consumer.
    #[must_use]
    pub fn consumer(&self) -> &'static str {
        self.consumer
    }

    /// Number of this attempt, see [`HandlerContext::attempt`].
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.attempt
    }
}

impl fmt::Debug for Metadata {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metadata")
            .field("event_id", &self.message.event_id)
            .field("event_type", &self.message.event_type)
            .field("event_version", &self.message.event_version)
            .field("aggregate", &self.message.aggregate)
            .field("sequence", &self.message.sequence)
            .field("consumer", &self.consumer)
            .field("attempt", &self.attempt)
            .finish()
    }
}

impl<'a> FromContext<'a> for Metadata {
    fn from_context(context: &HandlerContext<'a>) -> Result<Self, HandlerError> {
        Ok(Self::of(&context.messages[0], context))
    }
}

impl<'a> FromContext<'a> for Vec<Metadata> {
    fn from_context(context: &HandlerContext<'a>) -> Result<Self, HandlerError> {
        Ok(context
            .messages
            .iter()
            .map(|message| Metadata::of(message, context))
            .collect())
    }
}

/// An idempotency key for effects outside the database, the same at every attempt. These effects
/// happen at least once; the key lets a receiver drop repeated effects. If the receiver has deleted
/// the key, a replayed message repeats the effect.
///
/// ```
/// # use outbox_inbox::StableKey;
/// # fn demo(key: StableKey) {
/// // One key per step, if a handler calls out more than once.
/// let charge = key.step("charge");
/// let receipt = key.step("receipt");
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StableKey(Uuid);

/// Namespace of the keys. It never changes, because receivers store keys.
const STABLE_KEYS: Uuid = Uuid::from_u128(0x9c1f_4c3e_6a0b_5d8e_8f27_52d1_0b7e_64a3);

impl StableKey {
    /// The key of an event at a consumer: a UUID v5 of the consumer's name and the event's id.
    #[must_use]
    pub fn new(consumer: &str, event_id: EventId) -> Self {
        // Consumer names contain no slash, so different pairs never produce the same text.
        Self(Uuid::new_v5(
            &STABLE_KEYS,
            format!("{consumer}/{event_id}").as_bytes(),
        ))
    }

    /// The key of one step of the handler.
    #[must_use]
    pub fn step(&self, name: &str) -> Uuid {
        Uuid::new_v5(&self.0, name.as_bytes())
    }

    /// The key as a UUID.
    #[must_use]
    pub fn as_uuid(&self) -> Uuid {
        self.0
    }
}

impl fmt::Display for StableKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<'a> FromContext<'a> for StableKey {
    fn from_context(context: &HandlerContext<'a>) -> Result<Self, HandlerError> {
        Ok(Self::new(context.consumer, context.message().event_id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stable_keys_are_frozen() {
        let id = EventId::from(Uuid::from_u128(7));
        let key = StableKey::new("billing", id);
        assert_eq!(key, StableKey::new("billing", id));
        assert_ne!(key, StableKey::new("shipping", id));
        assert_ne!(key.step("charge"), key.step("receipt"));
        assert_eq!(key.to_string(), "f7301ed0-ef86-5b94-8d60-4be7e3bb8f18");
    }
}
