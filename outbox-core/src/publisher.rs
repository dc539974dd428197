//! The broker trait for sending.
//!
//! Implementations: JetStream (`outbox-nats`) and memory (`outbox-testing`), checked by
//! `outbox_testing::conformance::publisher`.

use std::collections::HashSet;
use std::error::Error;
use std::fmt;
use std::future::Future;
use std::sync::Arc;

use bytes::Bytes;
use time::OffsetDateTime;

use crate::codec;
use crate::message::{Aggregate, EventId, Message, MessageId};

/// Sends messages and waits for confirmation of each. Not meant for `dyn`.
///
/// # Contract
///
/// * **Confirmed.** `Ok`: the stream has stored the message, now or earlier. A weaker reply of the
///   broker is [`FailureClass::Unknown`].
/// * **Same id.** The message id is the broker's deduplication id: within the duplicate window,
///   publishing again is harmless.
/// * **Concurrent.** The relay pipelines calls, but never two messages of one aggregate.
/// * **Bounded.** The future resolves within a documented time, even while disconnected.
/// * **Cancellation.** The outcome is unknown: the message may still be stored later.
/// * **On `Err`.** Only [`FailureClass::Permanent`] proves that a retry is pointless.
pub trait Publisher: Send + Sync + 'static {
    /// Returns the configured destination, if any. Two destinations are equal exactly if both
    /// publishers send each message to the same place under the same source.
    fn destination(&self) -> Option<Destination>;

    /// Publishes one message and waits for its confirmation.
    fn publish(&self, message: &Message) -> impl Future<Output = Result<Receipt, PublishError>> + Send;

    /// Checks stream, retention and server version. Returns warnings with actions.
    ///
    /// # Errors
    ///
    /// [`FailureClass::Configuration`] if an operator must act; another class if the check could
    /// not run.
    fn preflight(&self) -> impl Future<Output = Result<Vec<String>, PublishError>> + Send {
        std::future::ready(Ok(Vec::new()))
    }

    /// Abandons unconfirmed publishes as far as possible, by reconnecting. The relay calls this
    /// after lost leases, so that few messages arrive late. Publishing may continue at once.
    fn abandon(&self) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }
}

impl<P: Publisher + ?Sized> Publisher for Arc<P> {
    fn destination(&self) -> Option<Destination> {
        P::destination(self)
    }

    async fn publish(&self, message: &Message) -> Result<Receipt, PublishError> {
        P::publish(self, message).await
    }

    async fn preflight(&self) -> Result<Vec<String>, PublishError> {
        P::preflight(self).await
    }

    async fn abandon(&self) {
        P::abandon(self).await;
    }
}

/// A publisher's destination.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Destination {
    /// The stream's name; 255 characters are stored.
    pub stream: String,
    /// Distinguishes streams of one name, for example by creation time; 100 characters are stored.
    /// `None` (unknown) agrees with every value.
    pub instance: Option<String>,
    /// Subject layout `events.{aggregate}.{id}.{event}`; 255 characters are stored.
    pub subjects: String,
    /// The `ce-source`; 255 characters are stored.
    pub source: String,
}

impl Destination {
    /// Whether relays of one outbox may use both destinations.
    #[must_use]
    pub fn agrees_with(&self, other: &Self) -> bool {
        let differs = |(own, other): (&String, &String)| own != other;
        let instances = self.instance.as_ref().zip(other.instance.as_ref());
        (&self.stream, &self.subjects, &self.source) == (&other.stream, &other.subjects, &other.source)
            && !instances.is_some_and(differs)
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stream `{}`", self.stream)?;
        if let Some(instance) = &self.instance {
            write!(f, " ({instance})")?;
        }
        write!(f, ", subjects `{}`, source `{}`", self.subjects, self.source)
    }
}

/// Reads the stream.
pub trait StreamLog: Send + Sync + 'static {
    /// Returns ids of all messages stored at `from` or later, by the broker's clock. Memory grows
    /// with the number of ids. Read-only.
    ///
    /// # Errors
    ///
    /// [`FailureClass::Configuration`] if reading would remove messages from the stream.
    fn message_ids(
        &self,
        from: OffsetDateTime,
    ) -> impl Future<Output = Result<HashSet<MessageId>, PublishError>> + Send;
}

/// Finds single messages on the stream.
pub trait StreamSearch: StreamLog {
    /// Returns the stream sequence of a message; `None` if the message is missing. Searches the
    /// message's subject from an hour before its recording. Read-only.
    ///
    /// # Errors
    ///
    /// As [`StreamLog::message_ids`].
    fn locate(&self, message: &Message) -> impl Future<Output = Result<Option<u64>, PublishError>> + Send;
}

/// Reads the stream message by message.
pub trait StreamReader: StreamSearch {
    /// Calls `see` in stream order with each outbox message stored at `from` or later, by the
    /// broker's clock, until `see` returns `false`. Ends at the entry that was last when reading
    /// began.
    ///
    /// * **Bounded.** Holds one batch of headers in memory.
    /// * **Complete.** A message stored several times comes as often. [`StreamExtent::foreign`]
    ///   counts entries that are no outbox messages.
    /// * **Read-only.** Fails with [`FailureClass::Configuration`] if reading would remove messages
    ///   from the stream.
    /// * **On `Err`** or drop, `see` may have received a part of the messages. Start over.
    fn read(
        &self,
        from: OffsetDateTime,
        see: impl FnMut(StreamedMessage) -> bool + Send,
    ) -> impl Future<Output = Result<StreamExtent, PublishError>> + Send;
}

/// A stream entry, without its payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamedMessage {
    /// The stream sequence.
    pub stream_sequence: u64,
    /// Storage time by broker clock.
    pub stored_at: OffsetDateTime,
    /// The message's id.
    pub id: MessageId,
    /// Differs from `id` in replayed copies.
    pub event_id: EventId,
    /// The message's aggregate.
    pub aggregate: Aggregate,
    /// Sequence within the aggregate.
    pub sequence: Option<u64>,
    /// The event type.
    pub event_type: String,
    /// Recording time by writer clock.
    pub recorded_at: OffsetDateTime,
    /// Recording service (`ce-source`).
    pub source: String,
}

impl StreamedMessage {
    /// Decodes the headers of an outbox message.
    #[must_use]
    pub fn decode(
        stream_sequence: u64,
        stored_at: OffsetDateTime,
        headers: &[(String, String)],
    ) -> Option<Self> {
        let message = codec::decode(headers, Bytes::new()).ok()?;
        Some(Self {
            stream_sequence,
            stored_at,
            id: message.id,
            event_id: message.event_id,
            aggregate: message.aggregate,
            sequence: message.sequence,
            event_type: message.event_type,
            recorded_at: message.created_at,
            source: codec::source(headers).ok()?,
        })
    }
}

/// The stream when reading began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StreamExtent {
    /// Lowest stream sequence; 0 if nothing was ever stored.
    pub first_stream_sequence: u64,
    /// First message's storage time.
    pub first_stored_at: Option<OffsetDateTime>,
    /// Highest stream sequence assigned.
    pub last_stream_sequence: u64,
    /// Entries that are no outbox messages.
    pub foreign: u64,
}

/// The broker's confirmation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Receipt {
    /// The stream sequence.
    pub stream_sequence: u64,
    /// Whether the message was already stored.
    pub duplicate: bool,
}

/// Publish failure classes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FailureClass {
    /// The broker did not answer: the message may be stored. Resend the same id; counts no attempt.
    Unknown,
    /// The broker cannot accept the message now. Back off; counts no attempt.
    Transient,
    /// The broker is full or throttles. Back off; counts no attempt.
    Backpressure,
    /// Stream, permissions or names are misconfigured. Back off and alert; counts no attempt.
    Configuration,
    /// The message can never be stored. Dead-letter it at once.
    Permanent,
    /// No stream captures the subject; nothing was sent. Back off; counts an attempt.
    Uncaptured,
    /// An unclassified rejection. Back off; counts an attempt, so that retries end.
    Unclassified,
}

impl FailureClass {
    /// All failure classes.
    pub const ALL: [Self; 7] = [
        Self::Unknown,
        Self::Transient,
        Self::Backpressure,
        Self::Configuration,
        Self::Permanent,
        Self::Uncaptured,
        Self::Unclassified,
    ];

    /// Class of a stored [`PublishError`].
    #[must_use]
    pub fn of_stored(text: &str) -> Option<Self> {
        let (class, _) = text.split_once(": ")?;
        Self::ALL.into_iter().find(|known| known.as_str() == class)
    }

    /// A lower-case word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Transient => "transient",
            Self::Backpressure => "backpressure",
            Self::Configuration => "configuration",
            Self::Permanent => "permanent",
            Self::Uncaptured => "uncaptured",
            Self::Unclassified => "unclassified",
        }
    }
}

/// Why a message was not confirmed. Begins with the class.
#[derive(Debug, thiserror::Error)]
#[error("{}: {context}", class.as_str())]
pub struct PublishError {
    class: FailureClass,
    context: String,
    source: Option<Box<dyn Error + Send + Sync>>,
}

impl PublishError {
    /// `context` in lower case: what happened, and what to do.
    pub fn new(class: FailureClass, context: impl Into<String>) -> Self {
        Self {
            class,
            context: context.into(),
            source: None,
        }
    }

    /// Adds a cause.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// The failure class.
    #[must_use]
    pub fn class(&self) -> FailureClass {
        self.class
    }
}
