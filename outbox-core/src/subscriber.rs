//! The seam to the broker on the receiving side: subscribers, subscriptions and deliveries.
//!
//! Implementations: JetStream durable pull consumers (`outbox-nats`), the in-memory broker (feature `testing`). Each runs
//! `testing::conformance::subscriber`. Absent here: deduplication and dispatch; they belong to `outbox-inbox`.

use std::error::Error;
use std::future::Future;
use std::time::Duration;

use bytes::Bytes;

use crate::event::EventDescriptor;

/// Opens subscriptions of durable consumers.
///
/// The inbox runtime is generic over this trait; it is not meant for `dyn`.
///
/// # Contract
///
/// * **Durable.** A consumer is known by its name: what one process did not acknowledge, the next one receives. A new one starts at the
///   beginning of the stream.
/// * **At least once.** A delivery that is not acknowledged within `ack_wait` is delivered again, with a higher
///   [`Incoming::delivery_count`].
/// * **Filtered.** Every message of a wanted event type arrives, and with `whole_aggregates` every message of their aggregate types
///   except those with a subject of their own. Others may arrive too (old servers cannot filter by several
///   subjects); the inbox acknowledges and skips what nobody has asked for.
/// * **Several processes** may subscribe under one name; each delivery goes to one of them. They need not want the same: during a rolling deploy
///   or after a roll-back they are two versions of one program.
/// * **Asked for.** What one of them has subscribed to stays asked for, also by the durable state alone: a later subscription to less takes
///   nothing back, and whoever is given a message can find out ([`Delivery::is_asked_for`]). It holds from the return of `subscribe` on, for
///   everything that this consumer is given for the first time after it.
pub trait Subscriber: Send + Sync + 'static {
    /// The subscriptions that it opens.
    type Subscription: Subscription;

    /// Subscribes a consumer, creating or checking its durable state on the broker.
    fn subscribe(
        &self,
        consumer: &ConsumerSpec,
    ) -> impl Future<Output = Result<Self::Subscription, SubscriberError>> + Send;

    /// Looks at the stream: what of it an inbox has to fit. Changes nothing; needs no consumer.
    ///
    /// * **As of now.** Counts and stream sequences are those of one moment between the call and its answer.
    /// * **On `Err`.** As [`Self::subscribe`].
    fn facts(&self) -> impl Future<Output = Result<StreamFacts, SubscriberError>> + Send;
}

/// What a stream is like, as its broker says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamFacts {
    /// Age at which messages are deleted (`max_age` of JetStream); `None` for never.
    pub retention: Option<Duration>,
    /// What deletes messages besides their age.
    pub policy: StreamPolicy,
    /// Time within which a second message with the same id is dropped; `None` for ever.
    pub duplicate_window: Option<Duration>,
    /// Stream sequence of the oldest message; `None` if there is none.
    pub first_stream_sequence: Option<u64>,
    /// The last stream sequence that was given to a message; 0 if none was.
    pub last_stream_sequence: u64,
    /// Messages on the stream.
    pub messages: u64,
}

/// What deletes the messages of a stream (the retention policy of JetStream).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StreamPolicy {
    /// Limits of age, number or size only.
    Limits,
    /// Also that all consumers have acknowledged a message. One that comes later misses it.
    Interest,
    /// Also that one consumer has acknowledged a message. Others miss it.
    WorkQueue,
}

/// What a consumer wants.
#[derive(Debug, Clone)]
pub struct ConsumerSpec {
    /// Stable name; `[A-Za-z0-9_-]{1,64}`.
    pub name: String,
    /// The event types it has handlers for.
    pub events: Vec<&'static EventDescriptor>,
    /// Time after which an unacknowledged delivery is sent again.
    pub ack_wait: Duration,
    /// Whether it is sent every event of the aggregate types of `events`, so that it sees each number of an aggregate.
    pub whole_aggregates: bool,
    /// Most unacknowledged deliveries at a time, over all processes.
    pub in_flight_max: usize,
    /// Most deliveries that one subscription fetches before they are asked for.
    pub prefetch: usize,
}

/// A running subscription.
pub trait Subscription: Send + 'static {
    /// A delivery of this subscription.
    type Delivery: Delivery;

    /// Waits for the next delivery.
    ///
    /// * **Cancel-safe.** Dropping the future loses no delivery, except that it may come again after `ack_wait`.
    /// * **On `Err`.** [`SubscriberError::Interrupted`] heals: call again. [`SubscriberError::Gone`] does not: subscribe again.
    fn next(&mut self) -> impl Future<Output = Result<Self::Delivery, SubscriberError>> + Send;

    /// Messages that this consumer has not acknowledged yet, delivered or not.
    fn backlog(&mut self) -> impl Future<Output = Result<u64, SubscriberError>> + Send;

    /// Stops receiving, and hands out what was fetched and not asked for yet, in the order of its delivery. The caller gives it back.
    ///
    /// * **Complete.** What is on its way is waited for. After the answer the broker sends nothing to this subscription: other processes are given what
    ///   comes.
    /// * **The end.** [`next`](Self::next) must not be called any more. Answers to deliveries still count.
    /// * **Bounded.** It takes seconds at most. Without the broker the answer is what is here; the rest comes again after `ack_wait`.
    fn stop(&mut self) -> impl Future<Output = Vec<Self::Delivery>> + Send;

    /// Waits until the broker has every answer that was given before to a delivery of this subscription.
    ///
    /// * **Bounded.** It takes seconds at most.
    /// * **On `Err`.** Some may be lost: their messages come again after `ack_wait`.
    fn flush(&mut self) -> impl Future<Output = Result<(), SubscriberError>> + Send;
}

/// One delivery of a message. Dropping it without an answer means: deliver again after `ack_wait`. It is answered at most once, by
/// [`ack`](Self::ack) or [`retry_after`](Self::retry_after).
///
/// Answers are sent without waiting for the broker's confirmation: what makes an effect happen once is the inbox row, and a
/// lost acknowledgement only causes a delivery that the row absorbs.
pub trait Delivery: Send + Sync + 'static {
    /// What was delivered.
    fn incoming(&self) -> &Incoming;

    /// Handled; do not deliver again.
    fn ack(&self) -> impl Future<Output = Result<(), SubscriberError>> + Send;

    /// Not handled; deliver again after `delay`.
    fn retry_after(&self, delay: Duration) -> impl Future<Output = Result<(), SubscriberError>> + Send;

    /// Still working: restarts the `ack_wait`.
    fn progress(&self) -> impl Future<Output = Result<(), SubscriberError>> + Send;

    /// Whether anybody has asked for messages like this one under the consumer's name: this process, or another version of the program,
    /// now or earlier. What nobody has asked for may be acknowledged unseen.
    ///
    /// * **No stale `false`.** Whoever had returned from [`Subscriber::subscribe`] with its event type before the message was first given to the consumer has asked
    ///   for it. For the rest, `true` is the safe answer.
    /// * **Cheap.** It may be called for each of many messages: implementations ask the broker about once a second.
    /// * **On `Err`.** It is not known; try again later, and do not acknowledge.
    fn is_asked_for(&self) -> impl Future<Output = Result<bool, SubscriberError>> + Send;
}

/// A message as it came from the broker, before anything is believed about it.
#[derive(Debug, Clone, PartialEq)]
pub struct Incoming {
    /// The subject it was published on.
    pub subject: String,
    /// Headers as received; names in any case.
    pub headers: Vec<(String, String)>,
    /// The payload.
    pub payload: Bytes,
    /// How often this consumer was given the message, this time included; from 1.
    pub delivery_count: u64,
    /// The number that the stream gave the message.
    pub stream_sequence: u64,
}

/// Why a subscriber did not do what was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SubscriberError {
    /// The connection or server is unavailable for now; call again.
    #[error("{context}")]
    Interrupted {
        /// What happened.
        context: String,
        /// The cause.
        source: Option<Box<dyn Error + Send + Sync>>,
    },
    /// The subscription is over (consumer deleted); subscribe again.
    #[error("{context}")]
    Gone {
        /// What happened.
        context: String,
        /// The cause.
        source: Option<Box<dyn Error + Send + Sync>>,
    },
    /// The consumer cannot be set up as asked; an operator or developer must act.
    #[error("{context}")]
    Configuration {
        /// What is wrong, and what to do.
        context: String,
        /// The cause.
        source: Option<Box<dyn Error + Send + Sync>>,
    },
}
