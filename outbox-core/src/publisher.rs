//! The seam to the broker for sending: relays publish through it.
//!
//! Implementations: JetStream (`outbox-nats`), the in-memory broker (`outbox-testing`). Each runs
//! `outbox_testing::conformance::publisher`. Not here: windows, retries and order, see [`crate::relay`].

use std::collections::HashSet;
use std::error::Error;
use std::fmt;
use std::future::Future;
use std::sync::Arc;

use bytes::Bytes;
use time::OffsetDateTime;

use crate::codec;
use crate::message::{Aggregate, EventId, Message, MessageId};

/// Sends messages to a broker and waits for the confirmation of each.
///
/// The relay is generic over this trait; it is not meant for `dyn`.
///
/// # Contract
///
/// * **Confirmed.** `Ok` means that the broker has stored the message in its stream, now or by an earlier attempt. A
///   reply that proves less is an error of class [`FailureClass::Unknown`].
/// * **Same id.** The message's id is the broker's deduplication id, so publishing again is harmless within the
///   broker's duplicate window.
/// * **Concurrent.** Many calls run at once; this is how the relay pipelines. It never has two publishes of one
///   aggregate under way at a time, so implementations owe no order between concurrent calls.
/// * **Bounded.** The future resolves within a time that the implementation documents, even while disconnected.
/// * **Cancellation.** Dropping the future leaves the outcome unknown: the message may still be stored later.
/// * **On `Err`.** [`PublishError::class`] says what the relay may do. Only [`FailureClass::Permanent`] proves that
///   sending again is pointless.
pub trait Publisher: Send + Sync + 'static {
    /// Describes where this publisher sends messages, from its settings; asks no server. Relays of one outbox compare it with each other, so two publishers
    /// return equal values exactly if they send each message to the same place under the same source. `None` for a publisher that has no such place.
    fn destination(&self) -> Option<Destination>;

    /// Publishes one message and waits for the confirmation.
    fn publish(&self, message: &Message) -> impl Future<Output = Result<Receipt, PublishError>> + Send;

    /// Looks for failures that are foreseeable before the first message: the stream, its retention, the server's
    /// version. Returns warnings, each with the action to take.
    ///
    /// # Errors
    ///
    /// [`FailureClass::Configuration`] if the publisher cannot work until somebody acts; another class if the check
    /// itself could not be made now.
    fn preflight(&self) -> impl Future<Output = Result<Vec<String>, PublishError>> + Send {
        std::future::ready(Ok(Vec::new()))
    }

    /// Abandons unconfirmed publishes as far as the broker's client can: it closes the connection and opens another.
    /// The relay calls this after it has lost leases, so that as few messages as possible arrive after the next owner
    /// has begun. Publishing is allowed again at once.
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

/// Where a publisher sends messages, and the source that it gives them.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Destination {
    /// The stream's name. At most 255 characters are stored.
    pub stream: String,
    /// A text that differs between streams of this name on two brokers, such as the time of their
    /// creation. At most 100 characters are stored. `None` while the publisher does not know the
    /// text; then it differs from no other.
    pub instance: Option<String>,
    /// How the subject of a message is built, as a stable text: `events.{aggregate}.{id}.{event}`. At most 255 characters are stored.
    pub subjects: String,
    /// The source of the messages (`ce-source`). At most 255 characters are stored.
    pub source: String,
}

impl Destination {
    /// Whether two relays with these destinations may publish the messages of one outbox.
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

/// The contents of the stream, for reconciling the outbox with it.
pub trait StreamLog: Send + Sync + 'static {
    /// The ids of all messages that the stream stored at `from` or later, by the broker's clock. The result takes
    /// memory for each of them. A stream from which reading would take messages is refused with [`FailureClass::Configuration`]. An error means that the list
    /// is not known; nothing on the stream has changed.
    fn message_ids(
        &self,
        from: OffsetDateTime,
    ) -> impl Future<Output = Result<HashSet<MessageId>, PublishError>> + Send;
}

/// Single messages on the stream, for whoever asks where one is.
pub trait StreamSearch: StreamLog {
    /// The stream sequence of a message, by its id; `None` if the stream does not hold the message. Looks at what is on the message's subject and was
    /// stored an hour before the recording or later. Refuses what [`StreamLog::message_ids`] refuses. An error means that it is not known; nothing on the stream
    /// has changed.
    fn locate(&self, message: &Message) -> impl Future<Output = Result<Option<u64>, PublishError>> + Send;
}

/// What is on the stream, message by message, for whoever balances the outbox with it.
pub trait StreamReader: StreamSearch {
    /// Calls `see` with each message of an outbox that the stream stored at `from` or later, by the broker's clock, in the order of the stream, until `see`
    /// returns `false`. Ends at the entry that was the last one when reading began.
    ///
    /// * **Bounded.** It takes memory for one batch of headers, whatever the stream holds. Payloads are not read.
    /// * **Complete.** Each message comes once for each time that the stream holds it. What is no message of an outbox is counted in
    ///   [`StreamExtent::foreign`].
    /// * **Changes nothing.** A stream from which reading would take messages is refused with [`FailureClass::Configuration`].
    /// * **On `Err`**, or after a drop, `see` may have seen a part. Begin anew.
    fn read(
        &self,
        from: OffsetDateTime,
        see: impl FnMut(StreamedMessage) -> bool + Send,
    ) -> impl Future<Output = Result<StreamExtent, PublishError>> + Send;
}

/// A message as it stands on the stream, without its payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamedMessage {
    /// The number that the stream gave to it.
    pub stream_sequence: u64,
    /// When the stream stored it, by the broker's clock.
    pub stored_at: OffsetDateTime,
    /// The message's id.
    pub id: MessageId,
    /// The event's id: equal to the message's id, except in a replayed copy.
    pub event_id: EventId,
    /// The message's aggregate.
    pub aggregate: Aggregate,
    /// The message's number within the aggregate; `None` for unsequenced events.
    pub sequence: Option<u64>,
    /// The event type.
    pub event_type: String,
    /// When it was recorded, by the clock of its writer.
    pub recorded_at: OffsetDateTime,
    /// The service that recorded it (`ce-source`).
    pub source: String,
}

impl StreamedMessage {
    /// Decodes the headers of an entry of a stream; `None` if it is no message of an outbox.
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

/// What the stream held when reading began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StreamExtent {
    /// The smallest stream sequence that it held; above 1 if entries have left it. 0 if nothing was ever stored.
    pub first_stream_sequence: u64,
    /// When that entry was stored; `None` if the stream was empty.
    pub first_stored_at: Option<OffsetDateTime>,
    /// The largest stream sequence that it had given.
    pub last_stream_sequence: u64,
    /// Entries that were read and are no messages of an outbox.
    pub foreign: u64,
}

/// The broker's confirmation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Receipt {
    /// The number that the stream gave to the message.
    pub stream_sequence: u64,
    /// The broker already had the message: an earlier attempt had arrived.
    pub duplicate: bool,
}

/// The failure's class, which decides what the relay may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FailureClass {
    /// The broker is silent or out of reach, before or after the message was sent, so the message may or may not be
    /// stored. Send the same id again; counts no attempt.
    Unknown,
    /// The broker answered that it cannot take the message now. Back off; counts no attempt.
    Transient,
    /// The broker is full or throttles. Back off; counts no attempt.
    Backpressure,
    /// Stream, permissions or names are set up wrongly. Back off and raise an alarm; counts no attempt.
    Configuration,
    /// This message can never be stored. Dead-letter it at once.
    Permanent,
    /// The stream does not capture the message's own subject, and nothing was sent. Back off; counts an attempt.
    Uncaptured,
    /// An unknown kind of refusal. Back off; counts an attempt, so that retrying ends at some point.
    Unclassified,
}

impl FailureClass {
    /// All classes.
    pub const ALL: [Self; 7] = [
        Self::Unknown,
        Self::Transient,
        Self::Backpressure,
        Self::Configuration,
        Self::Permanent,
        Self::Uncaptured,
        Self::Unclassified,
    ];

    /// The class at the beginning of a stored [`PublishError`].
    #[must_use]
    pub fn of_stored(text: &str) -> Option<Self> {
        let (class, _) = text.split_once(": ")?;
        Self::ALL.into_iter().find(|known| known.as_str() == class)
    }

    /// The class as a short lower-case word, for logs and metrics.
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

/// Why a broker did not confirm a message. The text begins with the class, so the class of a stored
/// text is known: [`FailureClass::of_stored`].
#[derive(Debug, thiserror::Error)]
#[error("{}: {context}", class.as_str())]
pub struct PublishError {
    class: FailureClass,
    context: String,
    source: Option<Box<dyn Error + Send + Sync>>,
}

impl PublishError {
    /// An error of a class. `context` says in lower case what happened, and what to do if an operator can do something.
    pub fn new(class: FailureClass, context: impl Into<String>) -> Self {
        Self {
            class,
            context: context.into(),
            source: None,
        }
    }

    /// Adds the cause.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// The class, which decides what the relay may do.
    #[must_use]
    pub fn class(&self) -> FailureClass {
        self.class
    }
}
