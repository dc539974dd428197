//! The broker trait for receiving. Implementations: JetStream durable pull consumers
//! (`outbox-nats`) and memory (`outbox-testing`). Each runs
//! `outbox_testing::conformance::subscriber`.

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use time::OffsetDateTime;

use crate::event::EventDescriptor;
use crate::message::Message;

/// Opens subscriptions of durable consumers. Not meant for `dyn`.
///
/// # Contract
///
/// * **Durable.** A consumer is identified by its name. Its unacknowledged messages go to the next
///   process.
/// * **Started once.** A new consumer starts at [`ConsumerSpec::start_at`]; an existing one keeps
///   its position.
/// * **At least once.** A delivery not acknowledged within `ack_wait` is redelivered with a higher
///   [`Incoming::delivery_count`].
/// * **Filtered.** Every message of a requested event type arrives. With `whole_aggregates`, also
///   every message of the requested aggregate types; event types with a fixed subject only if in
///   [`ConsumerSpec::siblings`]. With a selection ([`EventDescriptor::is_selection`]), also every
///   message of its event type or aggregate type on default subjects, or every message of the
///   stream. Other messages may arrive too, because old servers filter by one subject only; the
///   inbox skips them.
/// * **Several processes** may subscribe under one name, with different requests. Each delivery
///   goes to one process.
/// * **Requested.** An event type or selection stays requested once any process has subscribed to
///   it: the durable state on the broker stores this. Any process can check a message with
///   [`Delivery::is_asked_for`]. Holds for messages first delivered after `subscribe` has returned.
pub trait Subscriber: Send + Sync + 'static {
    /// The subscription type.
    type Subscription: Subscription;

    /// Subscribes a consumer; creates or checks its durable state on the broker.
    ///
    /// * **On `Err`.** After [`SubscriberError::Interrupted`], call again. After
    ///   [`SubscriberError::Configuration`], an operator or developer must act.
    fn subscribe(
        &self,
        consumer: &ConsumerSpec,
    ) -> impl Future<Output = Result<Self::Subscription, SubscriberError>> + Send;

    /// Returns the stream properties that an inbox depends on, as one snapshot. Changes nothing and
    /// needs no consumer. On `Err` as [`Self::subscribe`].
    fn facts(&self) -> impl Future<Output = Result<StreamFacts, SubscriberError>> + Send;

    /// Returns the position of a consumer on the stream; `None` if there is no such consumer. The
    /// counts are one snapshot; the age is read after them. Changes nothing and needs no
    /// subscription. On `Err` as [`Self::subscribe`].
    fn standing(
        &self,
        consumer: &str,
    ) -> impl Future<Output = Result<Option<ConsumerStanding>, SubscriberError>> + Send;

    /// Whether a message belongs on the subject on which it arrived: brokers grant publishing by
    /// subject, but a sender may write any headers. Does no I/O and does not block.
    ///
    /// * True for the subject on which a relay publishes the message, in every supported layout.
    /// * False for the default subjects and fixed subjects of other aggregate types.
    /// * `fixed` lists the fixed subjects of the event type; `None` if the event type is unknown.
    ///   Then only default subjects of other aggregate types are foreign.
    fn belongs(&self, message: &Message, subject: &str, fixed: Option<&[&'static str]>) -> bool;
}

/// The position of a consumer on its stream. May include unrequested messages until the inbox has
/// skipped them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConsumerStanding {
    /// Messages not delivered yet.
    pub undelivered: u64,
    /// Messages delivered and not acknowledged.
    pub unacknowledged: u64,
    /// Maximum number of unacknowledged messages; `None` if unbounded.
    pub max_unacknowledged: Option<u64>,
    /// Age of the oldest undelivered or unacknowledged message on the stream; `None` if there is
    /// none, or if not reported.
    pub oldest_age: Option<Duration>,
    /// The ack floor: messages up to this stream sequence are acknowledged or do not match.
    pub floor: u64,
    /// Whether a process is requesting messages now.
    pub is_receiving: bool,
}

/// The properties of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamFacts {
    /// Age at which the broker deletes messages (JetStream: `max_age`), if any.
    pub retention: Option<Duration>,
    /// How the broker deletes messages otherwise.
    pub policy: StreamPolicy,
    /// Time within which the broker drops a second message with the same id; `None`: forever.
    pub duplicate_window: Option<Duration>,
    /// Stream sequence of the oldest message, if any.
    pub first_stream_sequence: Option<u64>,
    /// The last assigned stream sequence; 0 if none.
    pub last_stream_sequence: u64,
    /// Number of messages on the stream.
    pub messages: u64,
}

/// How a stream deletes messages (JetStream: retention policy).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StreamPolicy {
    /// Deletes by age, number or size only.
    Limits,
    /// By limits, and when all consumers have acknowledged a message. A later consumer misses it.
    Interest,
    /// By limits, and when one consumer has acknowledged a message. Other consumers miss it.
    WorkQueue,
}

/// Where a new consumer starts in the stream. Applies when the first subscription creates the
/// durable state, also after it was deleted: with [`Self::New`] the consumer then misses messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum StartAt {
    /// At the oldest message on the stream.
    #[default]
    Beginning,
    /// After the last message at the first subscription.
    New,
    /// At the first message stored at this time or later, by the broker's clock; a future time
    /// equals [`Self::New`].
    Time(OffsetDateTime),
}

/// The settings of a consumer.
#[derive(Debug, Clone)]
pub struct ConsumerSpec {
    /// Stable name; `[A-Za-z0-9_-]{1,64}`.
    pub name: String,
    /// Event types with handlers, and selections of further event types.
    pub events: Vec<&'static EventDescriptor>,
    /// Time until an unacknowledged delivery is redelivered.
    pub ack_wait: Duration,
    /// Whether every event of the aggregate types of `events` is requested.
    pub whole_aggregates: bool,
    /// With `whole_aggregates`: further sequenced event types of these aggregates with a fixed
    /// subject, which are only counted. Otherwise empty.
    pub siblings: Vec<&'static EventDescriptor>,
    /// Maximum number of unacknowledged deliveries over all processes.
    pub in_flight_max: usize,
    /// Maximum number of prefetched deliveries.
    pub prefetch: usize,
    /// Start position of a new consumer.
    pub start_at: StartAt,
}

/// A running subscription.
pub trait Subscription: Send + 'static {
    /// The delivery type.
    type Delivery: Delivery;

    /// Waits for the next delivery.
    ///
    /// * **Cancel-safe.** Dropping the future loses no delivery; at worst it is redelivered after
    ///   `ack_wait`.
    /// * **On `Err`.** After [`SubscriberError::Interrupted`], call again. After
    ///   [`SubscriberError::Gone`], subscribe again.
    fn next(&mut self) -> impl Future<Output = Result<Self::Delivery, SubscriberError>> + Send;

    /// Number of undelivered and unacknowledged messages.
    fn backlog(&mut self) -> impl Future<Output = Result<u64, SubscriberError>> + Send;

    /// Stops receiving. Returns prefetched deliveries in delivery order, which the caller must
    /// release for redelivery.
    ///
    /// * **Complete.** Waits for deliveries on their way. Afterwards new messages go to other
    ///   processes.
    /// * **Final.** [`next`](Self::next) must not be called again. Deliveries can still be
    ///   answered.
    /// * **Bounded.** Takes a few seconds at most. If the broker is down, missing deliveries are
    ///   redelivered after `ack_wait`.
    fn stop(&mut self) -> impl Future<Output = Vec<Self::Delivery>> + Send;

    /// Waits until the broker has received all earlier answers to deliveries, for a few seconds at
    /// most. On `Err`, messages with lost answers are redelivered after `ack_wait`.
    fn flush(&mut self) -> impl Future<Output = Result<(), SubscriberError>> + Send;
}

/// One delivery of a message. Answer it at most once, with [`ack`](Self::ack) or
/// [`retry_after`](Self::retry_after); unanswered, it is redelivered after `ack_wait`. The broker
/// does not confirm answers: the inbox row absorbs the redelivery after a lost acknowledgement.
pub trait Delivery: Send + Sync + 'static {
    /// The message as delivered.
    fn incoming(&self) -> &Incoming;

    /// Acknowledges the message, so it is not redelivered.
    fn ack(&self) -> impl Future<Output = Result<(), SubscriberError>> + Send;

    /// Requests redelivery after `delay`.
    fn retry_after(&self, delay: Duration) -> impl Future<Output = Result<(), SubscriberError>> + Send;

    /// Restarts the `ack_wait` while the handler runs.
    fn progress(&self) -> impl Future<Output = Result<(), SubscriberError>> + Send;

    /// Whether any subscription under the consumer's name, in any process, now or earlier, has
    /// requested messages like this one. Otherwise it may be acknowledged unread.
    ///
    /// * **No stale `false`.** True if [`Subscriber::subscribe`] with the event type returned
    ///   before the first delivery of the message. In any other case, `true` is the safe answer.
    /// * **Cheap.** Implementations query the broker about once a second.
    /// * **On `Err`.** The answer is unknown. Retry later, and do not acknowledge.
    fn is_asked_for(&self) -> impl Future<Output = Result<bool, SubscriberError>> + Send;

    /// Whether the stream holds an earlier message of the same aggregate, acknowledged or not.
    /// Counts only requested or linked event types, after the consumer's start ([`StartAt`]).
    ///
    /// * **No wrong `false`.** True if messages may be on subjects that are not searched, such as
    ///   fixed subjects.
    /// * **Bounded.** Takes a second at most.
    /// * **On `Err`.** The answer is unknown. Treat it as true.
    fn has_predecessors(&self) -> impl Future<Output = Result<bool, SubscriberError>> + Send;
}

/// A message as received from the broker, not validated.
#[derive(Clone, PartialEq)]
pub struct Incoming {
    /// The subject on which the message was published.
    pub subject: String,
    /// Headers as received; names may be in any case.
    pub headers: Vec<(String, String)>,
    /// The payload.
    pub payload: Bytes,
    /// Number of deliveries including this one; at least 1.
    pub delivery_count: u64,
    /// The stream sequence of the message.
    pub stream_sequence: u64,
}

impl fmt::Debug for Incoming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Payload and headers may hold personal data and stay out of logs.
        f.debug_struct("Incoming")
            .field("subject", &self.subject)
            .field("payload_bytes", &self.payload.len())
            .field("delivery_count", &self.delivery_count)
            .field("stream_sequence", &self.stream_sequence)
            .finish_non_exhaustive()
    }
}

/// Why a call of a subscriber failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SubscriberError {
    /// Temporarily unavailable. Call again.
    #[error("{context}")]
    Interrupted {
        /// What happened.
        context: String,
        /// The cause.
        source: Option<Box<dyn Error + Send + Sync>>,
    },
    /// The subscription has ended, such as by deletion of the consumer. Subscribe again.
    #[error("{context}")]
    Gone {
        /// What happened.
        context: String,
        /// The cause.
        source: Option<Box<dyn Error + Send + Sync>>,
    },
    /// The consumer cannot be set up as requested; an operator or developer must act.
    #[error("{context}")]
    Configuration {
        /// The problem and its repair.
        context: String,
        /// The cause.
        source: Option<Box<dyn Error + Send + Sync>>,
    },
}
