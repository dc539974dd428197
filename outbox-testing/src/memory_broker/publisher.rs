//! The publisher of the in-memory broker.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use outbox_core::message::Message;
use outbox_core::publisher::{Destination, FailureClass, PublishError, Publisher, Receipt};
use tokio::time::sleep;

use super::MemoryBroker;

/// Publishes to a [`MemoryBroker`]. A publish takes twice the [`MemoryBroker::with_latency`].
/// Clones share a connection. [`Publisher::abandon`] replaces the connection and drops its
/// publishes in flight.
#[derive(Debug, Clone)]
pub struct MemoryPublisher {
    broker: MemoryBroker,
    connection: Arc<AtomicU64>,
    destination: Option<Destination>,
}

impl MemoryPublisher {
    pub(super) fn new(broker: MemoryBroker) -> Self {
        Self {
            broker,
            connection: Arc::default(),
            destination: None,
        }
    }

    /// Sets the result of [`Publisher::destination`]. Default: `None`.
    #[must_use]
    pub fn with_destination(mut self, destination: Destination) -> Self {
        self.destination = Some(destination);
        self
    }

    /// The broker of this publisher.
    #[must_use]
    pub fn broker(&self) -> &MemoryBroker {
        &self.broker
    }

    fn connection(&self) -> u64 {
        self.connection.load(Ordering::Relaxed)
    }
}

impl Publisher for MemoryPublisher {
    fn destination(&self) -> Option<Destination> {
        self.destination.clone()
    }

    async fn publish(&self, message: &Message) -> Result<Receipt, PublishError> {
        let (latency, connection) = (self.broker.lock().latency, self.connection());
        if !latency.is_zero() {
            sleep(latency).await;
        }
        if connection != self.connection() {
            let context = "the publish was abandoned before it arrived";
            return Err(PublishError::new(FailureClass::Unknown, context));
        }
        // A future of `publish` that is dropped before this line stores nothing.
        let result = self.broker.lock().publish(message);
        self.broker.notify();
        if !latency.is_zero() {
            sleep(latency).await;
        }
        result
    }

    async fn abandon(&self) {
        self.connection.fetch_add(1, Ordering::Relaxed);
    }
}
