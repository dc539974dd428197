//! The way into the in-memory broker.

use tokio::time::sleep;

use super::MemoryBroker;
use crate::message::Message;
use crate::publisher::{PublishError, Publisher, Receipt};

/// Publishes to a [`MemoryBroker`]. A publish takes twice [`MemoryBroker::with_latency`]; by default it does not wait at all.
#[derive(Debug, Clone)]
pub struct MemoryPublisher {
    broker: MemoryBroker,
}

impl MemoryPublisher {
    pub(super) fn new(broker: MemoryBroker) -> Self {
        Self { broker }
    }

    /// The broker it publishes to.
    #[must_use]
    pub fn broker(&self) -> &MemoryBroker {
        &self.broker
    }
}

impl Publisher for MemoryPublisher {
    async fn publish(&self, message: &Message) -> Result<Receipt, PublishError> {
        let latency = self.broker.lock().latency;
        if !latency.is_zero() {
            sleep(latency).await;
        }
        // A caller that gives up before here leaves nothing stored, and one that gives up later leaves the message stored.
        let result = self.broker.lock().publish(message);
        self.broker.notify();
        if !latency.is_zero() {
            sleep(latency).await;
        }
        result
    }
}
