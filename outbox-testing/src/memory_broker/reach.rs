//! The connection of one relay to the broker.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use outbox_core::message::Message;
use outbox_core::publisher::{Destination, FailureClass, PublishError, Publisher, Receipt};

use super::{MemoryBroker, MemoryPublisher};

/// How the broker answers one relay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// The broker answers normally.
    Open,
    /// The broker answers no call.
    Silent,
    /// The broker rejects publishes and answers probes.
    Refused(FailureClass),
    /// The broker answers probes but no publishes.
    SilentToMessages,
}

/// A publisher with a connection that a test can impair. Clones share the connection.
#[derive(Debug, Clone)]
pub struct Reached {
    broker: MemoryPublisher,
    way: Arc<Mutex<Way>>,
}

const ACK_TIMEOUT: Duration = Duration::from_secs(5);

impl Reached {
    /// A publisher with a working connection.
    #[must_use]
    pub fn new(broker: &MemoryBroker) -> Self {
        Self {
            broker: broker.publisher(),
            way: Arc::new(Mutex::new(Way::Open)),
        }
    }

    /// Sets how the broker answers this publisher.
    pub fn set(&self, way: Way) {
        *self.way.lock().unwrap_or_else(PoisonError::into_inner) = way;
    }

    fn way(&self) -> Way {
        *self.way.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn no_answer<T>() -> Result<T, PublishError> {
    tokio::time::sleep(ACK_TIMEOUT).await;
    Err(PublishError::new(FailureClass::Unknown, "no answer"))
}

impl Publisher for Reached {
    fn destination(&self) -> Option<Destination> {
        self.broker.destination()
    }

    async fn publish(&self, message: &Message) -> Result<Receipt, PublishError> {
        match self.way() {
            Way::Open => self.broker.publish(message).await,
            Way::Silent | Way::SilentToMessages => no_answer().await,
            Way::Refused(class) => Err(PublishError::new(class, "refused")),
        }
    }

    async fn preflight(&self) -> Result<Vec<String>, PublishError> {
        match self.way() {
            Way::Silent => no_answer().await,
            _ => Ok(Vec::new()),
        }
    }
}
