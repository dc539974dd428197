//! The subscriber of the in-memory broker. If the broker is down, calls return after a delay, so
//! that a retry loop does not stop a paused clock.

use std::collections::VecDeque;
use std::time::Duration;

use outbox_core::message::Message;
use outbox_core::subscriber::{
    ConsumerSpec, ConsumerStanding, Delivery, Incoming, StreamFacts, Subscriber, SubscriberError,
    Subscription,
};
use tokio::time::{sleep, sleep_until};

use super::MemoryBroker;
use super::state::{DEFAULT_SUBJECTS, Next, default_subject};

const OUTAGE_ANSWER_AFTER: Duration = Duration::from_millis(100);

/// Opens subscriptions of a [`MemoryBroker`].
#[derive(Debug, Clone)]
pub struct MemorySubscriber {
    broker: MemoryBroker,
}

impl MemorySubscriber {
    pub(super) fn new(broker: MemoryBroker) -> Self {
        Self { broker }
    }

    /// The broker of this subscriber.
    #[must_use]
    pub fn broker(&self) -> &MemoryBroker {
        &self.broker
    }
}

impl Subscriber for MemorySubscriber {
    type Subscription = MemorySubscription;

    async fn subscribe(&self, consumer: &ConsumerSpec) -> Result<MemorySubscription, SubscriberError> {
        check(consumer)?;
        self.broker.until_up().await?;
        let generation = self.broker.lock().subscribe(consumer);
        self.broker.notify();
        let prefetches = self.broker.lock().prefetches;
        Ok(MemorySubscription {
            broker: self.broker.clone(),
            consumer: consumer.name.clone(),
            generation,
            prefetch: if prefetches { consumer.prefetch } else { 0 },
            fetched: VecDeque::new(),
        })
    }

    async fn facts(&self) -> Result<StreamFacts, SubscriberError> {
        self.broker.until_up().await?;
        Ok(self.broker.lock().facts())
    }

    async fn standing(&self, consumer: &str) -> Result<Option<ConsumerStanding>, SubscriberError> {
        self.broker.until_up().await?;
        Ok(self.broker.lock().standing(consumer))
    }

    fn belongs(&self, message: &Message, subject: &str, fixed: Option<&[&'static str]>) -> bool {
        let own_type = format!("{}.{}", message.aggregate.aggregate_type, message.event_name());
        let is_default = subject == default_subject(message) && message.event_type == own_type;
        let is_fixed = fixed.map_or(!subject.starts_with(DEFAULT_SUBJECTS), |fixed| {
            fixed.contains(&subject)
        });
        is_default || is_fixed
    }
}

fn check(consumer: &ConsumerSpec) -> Result<(), SubscriberError> {
    let is_token = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
    let name = &consumer.name;
    let context = if name.is_empty() || name.len() > 64 || !name.bytes().all(is_token) {
        format!("consumer name {name:?} is malformed; use `[A-Za-z0-9_-]{{1,64}}`")
    } else if consumer.in_flight_max == 0 {
        format!("consumer `{name}` may have nothing in flight; set `in_flight_max` to 1 or more")
    } else {
        return Ok(());
    };
    Err(SubscriberError::Configuration {
        context,
        source: None,
    })
}

impl MemoryBroker {
    async fn until_up(&self) -> Result<(), SubscriberError> {
        if self.lock().faults.down {
            sleep(OUTAGE_ANSWER_AFTER).await;
        }
        self.check_up()
    }

    fn check_up(&self) -> Result<(), SubscriberError> {
        if self.lock().faults.down {
            let context = "injected fault: the broker is down".to_owned();
            return Err(SubscriberError::Interrupted {
                context,
                source: None,
            });
        }
        Ok(())
    }
}

/// A subscription of a [`MemoryBroker`].
#[derive(Debug)]
pub struct MemorySubscription {
    broker: MemoryBroker,
    consumer: String,
    generation: u64,
    prefetch: usize,
    fetched: VecDeque<Incoming>,
}

impl MemorySubscription {
    fn delivery(&self, incoming: Incoming) -> MemoryDelivery {
        MemoryDelivery {
            broker: self.broker.clone(),
            consumer: self.consumer.clone(),
            incoming,
        }
    }

    fn fetch(&mut self) -> Next {
        let mut state = self.broker.lock();
        let next = match self.fetched.pop_front() {
            Some(incoming) => Next::Delivery(incoming),
            None => state.next(&self.consumer),
        };
        while self.fetched.len() < self.prefetch
            && let Next::Delivery(incoming) = state.next(&self.consumer)
        {
            self.fetched.push_back(incoming);
        }
        next
    }

    fn check_exists(&self) -> Result<(), SubscriberError> {
        let state = self.broker.lock();
        let consumer = state.consumer(&self.consumer);
        if consumer.is_some_and(|consumer| consumer.generation == self.generation) {
            return Ok(());
        }
        let context = format!("consumer `{}` was deleted", self.consumer);
        Err(SubscriberError::Gone {
            context,
            source: None,
        })
    }
}

struct Waiting {
    broker: MemoryBroker,
    consumer: String,
    generation: u64,
}

impl Waiting {
    fn new(subscription: &MemorySubscription) -> Self {
        let waiting = Self {
            broker: subscription.broker.clone(),
            consumer: subscription.consumer.clone(),
            generation: subscription.generation,
        };
        waiting.tell(true);
        waiting
    }

    fn tell(&self, begins: bool) {
        self.broker.lock().waits(&self.consumer, self.generation, begins);
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.tell(false);
    }
}

impl Subscription for MemorySubscription {
    type Delivery = MemoryDelivery;

    async fn next(&mut self) -> Result<MemoryDelivery, SubscriberError> {
        let _waiting = Waiting::new(self);
        loop {
            self.broker.until_up().await?;
            let shared = self.broker.shared.clone();
            let changed = shared.changed.notified();
            tokio::pin!(changed);
            // The wait is registered before the stream is read, so that no message is missed.
            changed.as_mut().enable();
            self.check_exists()?;
            let next = self.fetch();
            match next {
                Next::Delivery(incoming) => return Ok(self.delivery(incoming)),
                Next::Wait(None) => changed.await,
                Next::Wait(Some(due)) => tokio::select! {
                    () = changed => {}
                    () = sleep_until(due) => {}
                },
            }
        }
    }

    async fn backlog(&mut self) -> Result<u64, SubscriberError> {
        self.broker.until_up().await?;
        self.check_exists()?;
        Ok(self.broker.lock().backlog(&self.consumer))
    }

    async fn stop(&mut self) -> Vec<MemoryDelivery> {
        let fetched = std::mem::take(&mut self.fetched).into_iter();
        fetched.map(|incoming| self.delivery(incoming)).collect()
    }

    async fn flush(&mut self) -> Result<(), SubscriberError> {
        self.broker.until_up().await
    }
}

/// A delivery of a [`MemoryBroker`].
#[derive(Debug)]
pub struct MemoryDelivery {
    broker: MemoryBroker,
    consumer: String,
    incoming: Incoming,
}

impl MemoryDelivery {
    /// Acknowledges without a fault. Not public API.
    #[doc(hidden)]
    pub fn acknowledge(&self) {
        self.broker
            .lock()
            .ack(&self.consumer, self.incoming.stream_sequence);
        self.broker.notify();
    }

    fn postpone(&self, delay: Option<Duration>) -> Result<(), SubscriberError> {
        self.broker.check_up()?;
        let mut state = self.broker.lock();
        state.postpone(&self.consumer, self.incoming.stream_sequence, delay);
        Ok(())
    }
}

impl Delivery for MemoryDelivery {
    fn incoming(&self) -> &Incoming {
        &self.incoming
    }

    async fn ack(&self) -> Result<(), SubscriberError> {
        self.broker.check_up()?;
        self.acknowledge();
        Ok(())
    }

    async fn retry_after(&self, delay: Duration) -> Result<(), SubscriberError> {
        self.postpone(Some(delay))?;
        self.broker.notify();
        Ok(())
    }

    async fn progress(&self) -> Result<(), SubscriberError> {
        self.postpone(None)
    }

    async fn is_asked_for(&self) -> Result<bool, SubscriberError> {
        self.broker.until_up().await?;
        let state = self.broker.lock();
        Ok(state.is_asked_for(&self.consumer, self.incoming.stream_sequence))
    }

    async fn has_predecessors(&self) -> Result<bool, SubscriberError> {
        self.broker.check_up()?;
        let state = self.broker.lock();
        Ok(state.has_predecessors(&self.consumer, self.incoming.stream_sequence))
    }
}
