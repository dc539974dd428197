//! The seam to the broker for receiving: subscribers, subscriptions and deliveries.
//!
//! Implementations: JetStream durable pull consumers (`outbox-nats`), the in-memory broker (`outbox-testing`). Each
//! runs `outbox_testing::conformance::subscriber`. Not here: deduplication and dispatch, see `outbox-inbox`.

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use time::OffsetDateTime;

use crate::event::EventDescriptor;
use crate::message::Message;

/// Opens subscriptions of durable consumers.
///
/// The inbox runtime is generic over this trait; it is not meant for `dyn`.
///
/// # Contract
///
/// * **Durable.** A consumer is known by its name: a message that one process did not acknowledge goes to the next
///   process.
/// * **Started once.** A new consumer starts where [`ConsumerSpec::start_at`] says. One that exists keeps its place,
///   whatever a later subscription says.
/// * **At least once.** A delivery that is not acknowledged within `ack_wait` is delivered again, with a higher
///   [`Incoming::delivery_count`].
/// * **Filtered.** Every message of a wanted event type arrives. With `whole_aggregates`, so does every message of the
///   wanted aggregate types; those with a fixed subject arrive if they are among [`ConsumerSpec::siblings`]. With a
///   selection ([`EventDescriptor::is_selection`]), so does every message of its event type or aggregate type on default
///   subjects, or every message of the stream; what is selected is asked for, as event types are. Other
///   messages may arrive too, because old servers cannot filter by several subjects. The inbox acknowledges and skips
///   messages that nobody has asked for.
/// * **Several processes** may subscribe under one name; each delivery goes to one of them. They need not ask for the
///   same messages: during a rolling deploy or after a roll-back, two versions of one program run.
/// * **Asked for.** An event type that one process has subscribed to stays asked for. The consumer's durable state
///   alone remembers it, and a later subscription to fewer types takes nothing back. Any process can find out whether a
///   message was asked for ([`Delivery::is_asked_for`]). This holds from the return of `subscribe`, for every message
///   that the consumer is given for the first time after it.
pub trait Subscriber: Send + Sync + 'static {
    /// The type of subscriptions that this subscriber opens.
    type Subscription: Subscription;

    /// Subscribes a consumer; creates or checks its durable state on the broker.
    ///
    /// * **On `Err`.** After [`SubscriberError::Interrupted`], call again. After [`SubscriberError::Configuration`], an
    ///   operator or developer must act first.
    fn subscribe(
        &self,
        consumer: &ConsumerSpec,
    ) -> impl Future<Output = Result<Self::Subscription, SubscriberError>> + Send;

    /// Returns the properties of the stream that an inbox must fit. Changes nothing, and needs no consumer.
    ///
    /// * **Consistent.** Counts and stream sequences are those of one moment between the call and its answer.
    /// * **On `Err`.** As for [`Self::subscribe`].
    fn facts(&self) -> impl Future<Output = Result<StreamFacts, SubscriberError>> + Send;

    /// Says where a consumer stands on the stream; `None` if there is no consumer of this name. Changes nothing, needs no
    /// subscription, and may be asked by any process.
    ///
    /// * **Consistent.** The counts are those of one moment between the call and its answer. The age is asked for after
    ///   them.
    /// * **On `Err`.** As for [`Self::subscribe`].
    fn standing(
        &self,
        consumer: &str,
    ) -> impl Future<Output = Result<Option<ConsumerStanding>, SubscriberError>> + Send;

    /// Whether a message belongs on the subject that it came on. A broker grants publishing by subject, and any sender
    /// writes into the headers whatever it likes: a message whose headers name another event than its subject may come
    /// from somebody who has no right to publish that event.
    ///
    /// * **Own messages.** True for the subject on which a relay publishes the message, and for those of other layouts
    ///   that the broker supports: a layout may have been changed while messages were on the stream.
    /// * **Foreign messages.** False for the default subjects and the fixed subjects of other aggregate types.
    /// * **Fixed subjects.** `fixed` are those that the program knows of the message's event type; `None` if it does not
    ///   know the type at all. Of an unknown type, a subject that is no default subject cannot be judged: true. So a
    ///   message that the program does not know at all is foreign only on the default subjects of other aggregate types.
    /// * **Pure.** It asks nobody, and does not block.
    fn belongs(&self, message: &Message, subject: &str, fixed: Option<&[&'static str]>) -> bool;
}

/// Where a consumer stands on its stream, as the broker reports it.
///
/// Brokers that cannot filter by several subjects count messages of other event types too, until the inbox has skipped them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConsumerStanding {
    /// Messages that were not delivered yet.
    pub undelivered: u64,
    /// Messages that were delivered and not acknowledged: in the memory of processes, failed, or waiting for a failed one.
    pub unacknowledged: u64,
    /// The most messages that it may have unacknowledged; `None` if there is no such bound.
    pub max_unacknowledged: Option<u64>,
    /// How long the oldest of both has been on the stream; `None` if nothing waits, or the broker does not say.
    pub oldest_age: Option<Duration>,
    /// Every message up to this stream sequence is acknowledged, or is none of this consumer's. Above it there may be
    /// acknowledged ones too.
    pub floor: u64,
    /// Whether a process asks for messages at this moment.
    pub is_receiving: bool,
}

/// The properties of a stream, as its broker reports them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamFacts {
    /// Age at which the broker deletes messages (`max_age` of JetStream); `None` if it never does.
    pub retention: Option<Duration>,
    /// The rule by which the broker deletes messages besides their age.
    pub policy: StreamPolicy,
    /// Time within which the broker drops a second message with the same id; `None` means for ever.
    pub duplicate_window: Option<Duration>,
    /// Stream sequence of the oldest message; `None` if the stream is empty.
    pub first_stream_sequence: Option<u64>,
    /// The last stream sequence that was given to a message; 0 if none was given.
    pub last_stream_sequence: u64,
    /// Number of messages on the stream.
    pub messages: u64,
}

/// The rule by which a stream deletes messages (the retention policy of JetStream).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StreamPolicy {
    /// Only limits of age, number or size.
    Limits,
    /// Limits, and also once all consumers have acknowledged a message. A consumer created later misses it.
    Interest,
    /// Limits, and also once one consumer has acknowledged a message. Other consumers miss it.
    WorkQueue,
}

/// Where a new consumer starts in the stream.
///
/// It holds when the consumer's durable state is made on the broker, by the first subscription under its name. A consumer
/// that exists keeps its place. One whose durable state was deleted starts like a new one: with [`Self::New`] it misses
/// what was published in between.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum StartAt {
    /// At the oldest message that the stream still has.
    #[default]
    Beginning,
    /// Behind the last message at the moment of the first subscription.
    New,
    /// At the first message that the broker stored at this time or later, by the broker's clock. A time that has not come
    /// yet at the moment of the first subscription means the same as [`Self::New`].
    Time(OffsetDateTime),
}

/// The request of a consumer.
#[derive(Debug, Clone)]
pub struct ConsumerSpec {
    /// Stable name; `[A-Za-z0-9_-]{1,64}`.
    pub name: String,
    /// The event types that the consumer has handlers for, and selections of further ones.
    pub events: Vec<&'static EventDescriptor>,
    /// Time after which an unacknowledged delivery is sent again.
    pub ack_wait: Duration,
    /// Whether the consumer receives every event of the aggregate types of `events`, so that it sees each number of an
    /// aggregate.
    pub whole_aggregates: bool,
    /// With `whole_aggregates`: the further event types of these aggregates that have a fixed subject, and numbers. The
    /// consumer only counts them; nobody has asked for them. Otherwise empty.
    pub siblings: Vec<&'static EventDescriptor>,
    /// Largest number of unacknowledged deliveries at a time, over all processes.
    pub in_flight_max: usize,
    /// Largest number of deliveries that one subscription fetches ahead of calls to [`Subscription::next`].
    pub prefetch: usize,
    /// Where the consumer starts if it is new.
    pub start_at: StartAt,
}

/// A running subscription.
pub trait Subscription: Send + 'static {
    /// The type of this subscription's deliveries.
    type Delivery: Delivery;

    /// Waits for the next delivery.
    ///
    /// * **Cancel-safe.** Dropping the future loses no delivery; at worst the delivery comes again after `ack_wait`.
    /// * **On `Err`.** After [`SubscriberError::Interrupted`], call again. After [`SubscriberError::Gone`], subscribe
    ///   again.
    fn next(&mut self) -> impl Future<Output = Result<Self::Delivery, SubscriberError>> + Send;

    /// Number of messages that this consumer has not acknowledged yet, delivered or not.
    fn backlog(&mut self) -> impl Future<Output = Result<u64, SubscriberError>> + Send;

    /// Stops receiving. Returns the deliveries that were fetched ahead and not yet returned by [`next`](Self::next), in
    /// order of delivery. The caller must give them back.
    ///
    /// * **Complete.** The call waits for deliveries on their way. After its answer the broker sends nothing to this
    ///   subscription: new messages go to other processes.
    /// * **The end.** [`next`](Self::next) must not be called any more. Answers to deliveries still count.
    /// * **Bounded.** It takes seconds at most. If the broker is away, it returns the deliveries that have arrived; the
    ///   rest come again after `ack_wait`.
    fn stop(&mut self) -> impl Future<Output = Vec<Self::Delivery>> + Send;

    /// Waits until the broker has received all earlier answers to deliveries of this subscription.
    ///
    /// * **Bounded.** It takes seconds at most.
    /// * **On `Err`.** Some answers may be lost. Their messages come again after `ack_wait`.
    fn flush(&mut self) -> impl Future<Output = Result<(), SubscriberError>> + Send;
}

/// One delivery of a message. Dropping it unanswered means that the message comes again after `ack_wait`. A delivery is
/// answered at most once, by [`ack`](Self::ack) or [`retry_after`](Self::retry_after).
///
/// Answers are sent without waiting for the broker's confirmation. The inbox row is what makes an effect happen once,
/// and a lost acknowledgement only causes a delivery that the row absorbs.
pub trait Delivery: Send + Sync + 'static {
    /// The message as delivered.
    fn incoming(&self) -> &Incoming;

    /// Answers that the message is handled: do not deliver it again.
    fn ack(&self) -> impl Future<Output = Result<(), SubscriberError>> + Send;

    /// Answers that the message is not handled: deliver it again after `delay`.
    fn retry_after(&self, delay: Duration) -> impl Future<Output = Result<(), SubscriberError>> + Send;

    /// Says that work goes on: restarts the `ack_wait`.
    fn progress(&self) -> impl Future<Output = Result<(), SubscriberError>> + Send;

    /// Whether any subscription under the consumer's name has asked for messages like this one: a subscription of this
    /// process or of another version of the program, now or earlier. A message that nobody has asked for may be
    /// acknowledged unseen.
    ///
    /// * **No stale `false`.** If a call of [`Subscriber::subscribe`] with the message's event type returned before the
    ///   consumer was first given the message, the answer is true. In any other case, `true` is the safe answer.
    /// * **Cheap.** Callers may ask for each of many messages: implementations ask the broker about once a second.
    /// * **On `Err`.** The answer is unknown. Try again later, and do not acknowledge.
    fn is_asked_for(&self) -> impl Future<Output = Result<bool, SubscriberError>> + Send;

    /// Whether the stream holds an earlier message of the same aggregate, acknowledged or not, of an event type that the
    /// subscription asked for or that is linked into the program. Messages before the place where the consumer started
    /// ([`StartAt`]) do not count. Without one, nothing of the aggregate can arrive before this message any more: its
    /// beginning has left the stream, or was left out.
    ///
    /// * **No wrong `false`.** If messages of the aggregate may be where the implementation does not look, such as on
    ///   fixed subjects, the answer is true.
    /// * **Bounded.** It takes a second at most. Callers ask once for a message whose predecessors are missing.
    /// * **On `Err`.** The answer is unknown. Treat it as true.
    fn has_predecessors(&self) -> impl Future<Output = Result<bool, SubscriberError>> + Send;
}

/// A message as it came from the broker, before any of it is trusted.
#[derive(Clone, PartialEq)]
pub struct Incoming {
    /// The subject on which the message was published.
    pub subject: String,
    /// Headers as received; the names may be in any case.
    pub headers: Vec<(String, String)>,
    /// The payload.
    pub payload: Bytes,
    /// How often this consumer has been given the message, including this delivery; at least 1.
    pub delivery_count: u64,
    /// The number that the stream gave to the message.
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
    /// The connection or server is unavailable for now. Call again.
    #[error("{context}")]
    Interrupted {
        /// What happened.
        context: String,
        /// The cause.
        source: Option<Box<dyn Error + Send + Sync>>,
    },
    /// The subscription has ended, for example because the consumer was deleted. Subscribe again.
    #[error("{context}")]
    Gone {
        /// What happened.
        context: String,
        /// The cause.
        source: Option<Box<dyn Error + Send + Sync>>,
    },
    /// The consumer cannot be set up as requested. An operator or developer must act.
    #[error("{context}")]
    Configuration {
        /// What is wrong and how to repair it.
        context: String,
        /// The cause.
        source: Option<Box<dyn Error + Send + Sync>>,
    },
}
