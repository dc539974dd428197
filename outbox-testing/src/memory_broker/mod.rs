//! An in-memory broker: one ordered log, deduplication by message id, and durable consumers, as a
//! JetStream stream with limits retention.
//!
//! Invariant: messages reach consumers through the real [`outbox_core::codec`].

mod consumer;
mod entry;
mod faults;
mod publisher;
mod reach;
mod state;
mod subscriber;

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use time::OffsetDateTime;
use tokio::sync::Notify;

use self::state::State;
use outbox_core::codec::{self, DecodeError};
use outbox_core::message::{Message, MessageId};
use outbox_core::publisher::{
    PublishError, Receipt, StreamExtent, StreamLog, StreamReader, StreamSearch, StreamedMessage,
};

pub use publisher::MemoryPublisher;
pub use reach::{Reached, Way};
pub use subscriber::{MemoryDelivery, MemorySubscriber, MemorySubscription};

/// An in-memory broker. Clones share their state.
///
/// The clock of the broker starts at 2026-01-01 00:00 UTC and runs with Tokio's clock.
///
/// ```standalone_crate
/// # use outbox_core::{DomainEvent, Relay};
/// # use outbox_testing::{MemoryBroker, MemoryStore};
/// # #[derive(DomainEvent, serde::Serialize)] #[domain_event(aggregate = "order", name = "placed")]
/// # struct OrderPlaced { #[domain_event(aggregate_id)] order_id: u64 }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (store, broker) = (MemoryStore::new(), MemoryBroker::new());
/// store.record([OrderPlaced { order_id: 7 }])?;
/// broker.lose_acks(1);
/// let relay = Relay::new(store, broker.publisher());
/// assert!(relay.drain().await.is_err()); // Stored, but the relay cannot know.
/// relay.drain().await?;
/// assert_eq!(broker.messages().len(), 1); // The copy was recognised by its id.
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct MemoryBroker {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changed: Notify,
}

impl Default for MemoryBroker {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryBroker {
    /// An empty broker with unlimited deduplication. Accepts messages of up to 1 MiB, headers
    /// included.
    #[must_use]
    pub fn new() -> Self {
        Self {
            shared: Arc::new(Shared {
                state: Mutex::new(State::default()),
                changed: Notify::new(),
            }),
        }
    }

    /// Sets the reported
    /// [`StreamFacts::retention`](outbox_core::StreamFacts#structfield.retention). Default: `None`.
    /// The broker never deletes messages.
    #[must_use]
    pub fn with_retention(self, retention: Option<Duration>) -> Self {
        self.lock().retention = retention;
        self
    }

    /// Sets the latency of a publish. The confirmation has the same latency. Default: zero.
    #[must_use]
    pub fn with_latency(self, each_way: Duration) -> Self {
        self.lock().latency = each_way;
        self
    }

    /// Enables prefetch of up to [`ConsumerSpec::prefetch`](outbox_core::ConsumerSpec::prefetch)
    /// messages. Default: off. The broker redelivers messages of a dropped subscription after
    /// `ack_wait`.
    #[must_use]
    pub fn with_prefetch(self) -> Self {
        self.lock().prefetches = true;
        self
    }

    /// A publisher to this broker.
    #[must_use]
    pub fn publisher(&self) -> MemoryPublisher {
        MemoryPublisher::new(self.clone())
    }

    /// A subscriber of this broker.
    #[must_use]
    pub fn subscriber(&self) -> MemorySubscriber {
        MemorySubscriber::new(self.clone())
    }

    /// Appends an entry as another program would, and returns its stream sequence. Consumers that
    /// requested its `ce-type` receive the entry; without a `ce-type`, all consumers receive it.
    pub fn inject(
        &self,
        subject: impl Into<String>,
        headers: Vec<(String, String)>,
        payload: impl Into<Bytes>,
    ) -> u64 {
        let stream_sequence = self.lock().inject(subject.into(), headers, payload.into());
        self.notify();
        stream_sequence
    }

    /// The broker's clock.
    #[must_use]
    pub fn now(&self) -> OffsetDateTime {
        self.lock().now()
    }

    /// All entries of the log, in order.
    #[must_use]
    pub fn log(&self) -> Vec<LogEntry> {
        self.lock().log().map(|entry| entry.decoded()).collect()
    }

    /// The messages on the log, in order. Skips entries that cannot be decoded.
    #[must_use]
    pub fn messages(&self) -> Vec<Message> {
        let entries = self.log().into_iter();
        entries.filter_map(|entry| entry.message.ok()).collect()
    }

    /// Number of publish calls, including rejected calls.
    #[must_use]
    pub fn publishes(&self) -> u64 {
        self.lock().publishes
    }

    /// Number of deliveries to this consumer.
    #[must_use]
    pub fn deliveries(&self, consumer: &str) -> u64 {
        let state = self.lock();
        state.consumer(consumer).map_or(0, |consumer| consumer.deliveries)
    }

    /// Whether this consumer exists and has acknowledged every wanted message.
    #[must_use]
    pub fn is_idle(&self, consumer: &str) -> bool {
        self.lock().is_idle(consumer)
    }

    /// Waits until [`Self::is_idle`] returns `true` for this consumer.
    pub async fn until_idle(&self, consumer: &str) {
        loop {
            let changed = self.shared.changed.notified();
            tokio::pin!(changed);
            // The wait is registered before the state is read, so that no change is missed.
            changed.as_mut().enable();
            if self.is_idle(consumer) {
                return;
            }
            changed.await;
        }
    }

    /// Deletes a consumer. Its subscriptions end with
    /// [`SubscriberError::Gone`](outbox_core::SubscriberError::Gone).
    pub fn delete_consumer(&self, consumer: &str) {
        self.lock().delete_consumer(consumer);
        self.notify();
    }

    /// Stores a message without latency and faults. Not public API.
    #[doc(hidden)]
    pub fn store_message(&self, message: &Message) -> Receipt {
        self.lock().store(message)
    }

    /// Deletes these entries and, if `forgets_ids`, their message ids. Not public API.
    #[doc(hidden)]
    pub fn lose_stream_sequences(&self, stream_sequences: &HashSet<u64>, forgets_ids: bool) {
        self.lock().lose(stream_sequences, forgets_ids);
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn notify(&self) {
        self.shared.changed.notify_waiters();
    }
}

impl StreamLog for MemoryBroker {
    /// Returns [`FailureClass::Unknown`](outbox_core::FailureClass::Unknown) while the broker is
    /// down.
    async fn message_ids(&self, from: OffsetDateTime) -> Result<HashSet<MessageId>, PublishError> {
        let state = self.lock();
        state.reachable()?;
        Ok(state.message_ids(from))
    }
}

impl StreamSearch for MemoryBroker {
    /// Returns [`FailureClass::Unknown`](outbox_core::FailureClass::Unknown) while the broker is
    /// down.
    async fn locate(&self, message: &Message) -> Result<Option<u64>, PublishError> {
        let state = self.lock();
        state.reachable()?;
        Ok(state.locate(message.id))
    }
}

impl StreamReader for MemoryBroker {
    /// Returns [`FailureClass::Unknown`](outbox_core::FailureClass::Unknown) while the broker is
    /// down. `see` must not call the broker: the lock is held.
    async fn read(
        &self,
        from: OffsetDateTime,
        mut see: impl FnMut(StreamedMessage) -> bool + Send,
    ) -> Result<StreamExtent, PublishError> {
        let state = self.lock();
        state.reachable()?;
        Ok(state.read(from, &mut see))
    }
}

/// An entry of the stream.
#[derive(Debug, Clone, PartialEq)]
pub struct LogEntry {
    /// The sequence of the entry in the stream, from 1.
    pub stream_sequence: u64,
    /// The subject of the entry.
    pub subject: String,
    /// The message, or the reason why the entry is not a message.
    pub message: Result<Message, DecodeError>,
}

impl LogEntry {
    /// Decodes an entry of a stream.
    #[must_use]
    pub fn decode(
        stream_sequence: u64,
        subject: String,
        headers: &[(String, String)],
        payload: Bytes,
    ) -> Self {
        Self {
            stream_sequence,
            subject,
            message: codec::decode(headers, payload),
        }
    }
}
