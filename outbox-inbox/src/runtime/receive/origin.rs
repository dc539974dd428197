//! The source of a message, and the answers to the source.
//!
//! Invariant: a returned delivery reports no more progress.

use std::sync::Arc;
use std::time::Duration;

use outbox_core::{Delivery, Incoming};
use tokio::sync::Mutex;

use crate::dead_letter::StoredDeadLetter;

#[derive(Debug)]
pub(crate) enum Origin<D> {
    Broker(Arc<Delivered<D>>),
    DeadLetter(Arc<StoredDeadLetter>),
}

#[derive(Debug)]
pub(crate) struct Delivered<D> {
    delivery: D,
    is_returned: Mutex<bool>,
}

impl<D> Delivered<D> {
    pub(crate) fn delivery(&self) -> &D {
        &self.delivery
    }
}

impl<D> Clone for Origin<D> {
    fn clone(&self) -> Self {
        match self {
            Self::Broker(delivery) => Self::Broker(delivery.clone()),
            Self::DeadLetter(letter) => Self::DeadLetter(letter.clone()),
        }
    }
}

impl<D: Delivery> Origin<D> {
    pub(crate) fn broker(delivery: D) -> Self {
        Self::Broker(Arc::new(Delivered {
            delivery,
            is_returned: Mutex::new(false),
        }))
    }

    pub(crate) fn letter(&self) -> Option<&Arc<StoredDeadLetter>> {
        match self {
            Self::Broker(_) => None,
            Self::DeadLetter(letter) => Some(letter),
        }
    }

    pub(crate) fn incoming(&self) -> &Incoming {
        match self {
            Self::Broker(message) => message.delivery.incoming(),
            Self::DeadLetter(letter) => &letter.incoming,
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        let incoming = self.incoming();
        let headers = incoming
            .headers
            .iter()
            .map(|(name, value)| name.len() + value.len());
        incoming.subject.len() + incoming.payload.len() + headers.sum::<usize>()
    }

    pub(crate) async fn acknowledge(&self) {
        if let Self::Broker(message) = self
            && let Err(error) = message.delivery.ack().await
        {
            tracing::debug!(%error, stream_sequence = self.incoming().stream_sequence, "acknowledgement was lost");
        }
    }

    /// Reports progress. After a return, a report would undo the redelivery delay.
    pub(crate) async fn progress(&self) {
        let Self::Broker(message) = self else { return };
        let is_returned = message.is_returned.lock().await;
        if !*is_returned && let Err(error) = message.delivery.progress().await {
            tracing::debug!(%error, "progress was not acknowledged");
        }
    }

    pub(crate) async fn give_back(&self, wait: Duration) {
        let Self::Broker(message) = self else { return };
        let mut is_returned = message.is_returned.lock().await;
        *is_returned = true;
        if let Err(error) = message.delivery.retry_after(wait).await {
            tracing::debug!(%error, "a delivery could not be returned to the broker; redelivered after ack_wait");
        }
    }
}

#[cfg(test)]
mod tests {
    use outbox_core::{ConsumerSpec, Subscriber as _, Subscription as _};
    use outbox_testing::MemoryBroker;
    use tokio::time::{Instant, timeout};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn progress_does_not_undo_redelivery_delay() {
        let broker = MemoryBroker::new();
        broker.inject("a foreign message", Vec::new(), "{}");
        let spec = ConsumerSpec {
            name: "books".to_owned(),
            events: Vec::new(),
            ack_wait: Duration::from_secs(30),
            whole_aggregates: false,
            siblings: Vec::new(),
            in_flight_max: 10,
            prefetch: 1,
            start_at: outbox_core::StartAt::Beginning,
        };
        let mut subscription = broker.subscriber().subscribe(&spec).await.unwrap();
        let origin = Origin::broker(subscription.next().await.unwrap());
        origin.give_back(Duration::from_millis(500)).await;
        origin.progress().await;
        let went_at = Instant::now();
        let again = timeout(spec.ack_wait * 2, subscription.next()).await.unwrap();
        assert_eq!(again.unwrap().incoming().delivery_count, 2);
        assert_eq!(went_at.elapsed().as_millis(), 500);
    }
}
