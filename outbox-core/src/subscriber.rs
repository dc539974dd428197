//! Broker trait for receiving.
//!
//! Implementations: JetStream durable pull consumers (`outbox-nats`) and memory (`outbox-testing`),
//! checked by `outbox_testing::conformance::subscriber`.

use std::error::Error;
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
/// * **Durable.** The name identifies a consumer. The next process of the consumer gets its
///   unacknowledged messages.
/// * **Started once.** A new consumer starts at [`ConsumerSpec::start_at`]; an existing one keeps
///   its position.
/// * **At least once.** A delivery not acknowledged within `ack_wait` is redelivered with a higher
///   [`Incoming::delivery_count`].
/// * **Filtered.** Every message of a requested event type arrives. With `whole_aggregates`, also
///   every message of the requested aggregate types; event types with a fixed subject arrive only
///   if listed in [`ConsumerSpec::siblings`]. With a selection ([`EventDescriptor::is_selection`]),
///   also every message of its event type or aggregate type on default subjects, or every message
///   of the stream. Old servers filter by one subject, so unrequested messages may arrive; the
///   inbox skips them.
/// * **Several processes** may subscribe under one name, with different requests; each delivery
///   goes to one process.
/// * **Requested.** Once any process has subscribed to an event type or selection, it stays
///   requested by durable state on the broker; see [`Delivery::is_asked_for`]. Holds for messages
///   first delivered after `subscribe` has returned.
pub trait Subscriber: Send + Sync + 'static {
    /// The subscription type.
    type Subscription: Subscription;

    /// Subscribes a consumer; creates or checks its durable state.
    ///
    /// * **On `Err`.** After [`SubscriberError::Interrupted`], call again. After
    ///   [`SubscriberError::Configuration`], an operator or developer must act.
    fn subscribe(
        &self,
        consumer: &ConsumerSpec,
    ) -> impl Future<Output = Result<Self::Subscription, SubscriberError>> + Send;

    /// Returns stream properties, as one snapshot. Read-only; needs no consumer. On `Err` as
    /// [`Self::subscribe`].
    fn facts(&self) -> impl Future<Output = Result<StreamFacts, SubscriberError>> + Send;

    /// Returns the position of a consumer; `None` if the consumer does not exist. Counts are one
    /// snapshot; the age is read later. Read-only; needs no subscription. On `Err` as
    /// [`Self::subscribe`].
    fn standing(
        &self,
        consumer: &str,
    ) -> impl Future<Output = Result<Option<ConsumerStanding>, SubscriberError>> + Send;

    /// Whether a message belongs on its subject: brokers grant publishing by subject, but a sender
    /// may write any headers. No I/O; does not block.
    ///
    /// * True for the subject on which a relay publishes the message, in every supported layout.
    /// * False for default and fixed subjects of other aggregate types.
    /// * `fixed` lists the event type's fixed subjects; `None` (unknown event type): only default
    ///   subjects of other aggregate types are foreign.
    fn belongs(&self, message: &Message, subject: &str, fixed: Option<&[&'static str]>) -> bool;
}

/// Position of a consumer. May include unrequested messages until the inbox has skipped them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConsumerStanding {
    /// Messages not delivered yet.
    pub undelivered: u64,
    /// Messages delivered but not acknowledged.
    pub unacknowledged: u64,
    /// Maximum unacknowledged messages; `None`: unbounded.
    pub max_unacknowledged: Option<u64>,
    /// Age of the oldest undelivered or unacknowledged message, if any and reported.
    pub oldest_age: Option<Duration>,
    /// The ack floor: messages up to this stream sequence are acknowledged or do not match.
    pub floor: u64,
    /// Whether a process requests messages.
    pub is_receiving: bool,
}

/// A stream's properties.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamFacts {
    /// Age at which messages are deleted (JetStream: `max_age`).
    pub retention: Option<Duration>,
    /// Retention policy.
    pub policy: StreamPolicy,
    /// Time within which a second message with the same id is dropped; `None`: forever.
    pub duplicate_window: Option<Duration>,
    /// Stream sequence of the oldest message.
    pub first_stream_sequence: Option<u64>,
    /// The last assigned stream sequence; 0 if none.
    pub last_stream_sequence: u64,
    /// Messages on the stream.
    pub messages: u64,
}

/// How a stream deletes messages (JetStream: retention policy).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StreamPolicy {
    /// Deletes messages by age, number or size only.
    Limits,
    /// Also deletes messages that all consumers have acknowledged. Later consumers miss messages.
    Interest,
    /// Also deletes messages that one consumer has acknowledged. Other consumers miss messages.
    WorkQueue,
}

/// Where a new consumer starts, also one recreated after deletion: with [`Self::New`] it misses
/// messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum StartAt {
    /// The consumer starts at the oldest message.
    #[default]
    Beginning,
    /// The consumer starts after the message that is last at its first subscription.
    New,
    /// The consumer starts at the first message stored at this time or later, by the broker's
    /// clock. A future time equals [`Self::New`].
    Time(OffsetDateTime),
}

/// A consumer's settings.
#[derive(Debug, Clone)]
pub struct ConsumerSpec {
    /// Stable consumer name; `[A-Za-z0-9_-]{1,64}`.
    pub name: String,
    /// Handled event types and selections.
    pub events: Vec<&'static EventDescriptor>,
    /// Time until an unacknowledged delivery is redelivered.
    pub ack_wait: Duration,
    /// Whether every event of the aggregate types of `events` is requested.
    pub whole_aggregates: bool,
    /// With `whole_aggregates`: further sequenced event types of these aggregates with a fixed
    /// subject. The inbox runs no handler for them and only counts their sequences. Empty without
    /// `whole_aggregates`.
    pub siblings: Vec<&'static EventDescriptor>,
    /// Maximum unacknowledged deliveries of all processes together.
    pub in_flight_max: usize,
    /// Maximum prefetched deliveries.
    pub prefetch: usize,
    /// Start of new consumers.
    pub start_at: StartAt,
}

/// A running subscription.
pub trait Subscription: Send + 'static {
    /// The delivery type.
    type Delivery: Delivery;

    /// Waits for the next delivery.
    ///
    /// * **Cancel-safe.** If the future is dropped, a delivery lost with it is redelivered after
    ///   `ack_wait`.
    /// * **On `Err`.** After [`SubscriberError::Interrupted`], call again. After
    ///   [`SubscriberError::Gone`], subscribe again.
    fn next(&mut self) -> impl Future<Output = Result<Self::Delivery, SubscriberError>> + Send;

    /// Undelivered and unacknowledged messages.
    fn backlog(&mut self) -> impl Future<Output = Result<u64, SubscriberError>> + Send;

    /// Stops receiving. Returns prefetched deliveries in order; the caller must release them for
    /// redelivery.
    ///
    /// * **Complete.** Waits for deliveries that the broker has already sent. Later messages go to
    ///   other processes.
    /// * **Final.** [`next`](Self::next) may not be called again. Deliveries can still be answered.
    /// * **Bounded.** A few seconds. Deliveries that have not arrived are redelivered after
    ///   `ack_wait`.
    fn stop(&mut self) -> impl Future<Output = Vec<Self::Delivery>> + Send;

    /// Waits a few seconds at most until the broker has received all answers. On `Err`, messages
    /// with lost answers are redelivered after `ack_wait`.
    fn flush(&mut self) -> impl Future<Output = Result<(), SubscriberError>> + Send;
}

/// A delivery. Answer at most once, with [`ack`](Self::ack) or [`retry_after`](Self::retry_after);
/// an unanswered delivery is redelivered after `ack_wait`. The broker does not confirm answers: the
/// inbox row absorbs redelivery.
pub trait Delivery: Send + Sync + 'static {
    /// The message.
    fn incoming(&self) -> &Incoming;

    /// Acknowledges the message.
    fn ack(&self) -> impl Future<Output = Result<(), SubscriberError>> + Send;

    /// Requests redelivery after `delay`.
    fn retry_after(&self, delay: Duration) -> impl Future<Output = Result<(), SubscriberError>> + Send;

    /// Restarts `ack_wait`.
    fn progress(&self) -> impl Future<Output = Result<(), SubscriberError>> + Send;

    /// Whether any subscription under the consumer's name, in any process, now or earlier,
    /// requested messages of this event type. If not, this message may be acknowledged unread.
    ///
    /// * **No stale `false`.** If [`Subscriber::subscribe`] with the event type returned before the
    ///   first delivery, the result is `true`. If in doubt, the result is `true`.
    /// * **Cheap.** Queries the broker about once a second.
    /// * **On `Err`.** Unknown: do not acknowledge the message.
    fn is_asked_for(&self) -> impl Future<Output = Result<bool, SubscriberError>> + Send;

    /// Whether the stream holds an earlier message of the same aggregate, acknowledged or not.
    /// Counts only requested or linked event types, after the consumer's start ([`StartAt`]).
    ///
    /// * **No wrong `false`.** Returns true if messages of the aggregate may be on unsearched
    ///   subjects, such as fixed subjects.
    /// * **Bounded.** A second at most.
    /// * **On `Err`.** Unknown: treat as true.
    fn has_predecessors(&self) -> impl Future<Output = Result<bool, SubscriberError>> + Send;
}

/// A message as received, not validated.
#[derive(derive_more::Debug, Clone, PartialEq)]
pub struct Incoming {
    /// The published subject.
    pub subject: String,
    /// Headers as received; names in any case.
    #[debug(skip)]
    pub headers: Vec<(String, String)>,
    /// The payload.
    #[debug("{} bytes", payload.len())]
    pub payload: Bytes,
    /// Deliveries including this delivery; at least 1.
    pub delivery_count: u64,
    /// The stream sequence.
    pub stream_sequence: u64,
}

/// Why a subscriber call failed.
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
    /// The consumer cannot be set up; an operator or developer must act.
    #[error("{context}")]
    Configuration {
        /// Problem and repair.
        context: String,
        /// The cause.
        source: Option<Box<dyn Error + Send + Sync>>,
    },
}
