//! Subscribers with one mistake each.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use outbox_core::event::{DomainEvent, EventDescriptor};
use outbox_core::message::Message;
use outbox_core::subscriber::{
    ConsumerSpec, ConsumerStanding, Delivery, Incoming, StartAt, StreamFacts, Subscriber, SubscriberError,
    Subscription,
};
use tokio::sync::OnceCell;

use outbox_testing::conformance::probe::Probe;
use outbox_testing::{MemoryDelivery, MemorySubscriber, MemorySubscription};

use SubscriberMistake as M;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SubscriberMistake {
    NeverRedelivers,
    AcksOnDelivery,
    LosesAcks,
    LosesProgress,
    /// A consumer starts with messages published after the subscription.
    SkipsWhatWasThere,
    OnlyFirstType,
    DoesNotShare,
    SharesAcrossNames,
    /// The subscription neither returns nor acknowledges unwanted messages.
    HoardsOtherTypes,
    /// The subscription delivers one message at a time, regardless of `in_flight_max`.
    OneAtATime,
    IgnoresInFlightMax,
    IgnoresRetryDelay,
    ForgetsProgress,
    /// Each delivery has the delivery count of a first delivery.
    ForgetsCount,
    ReportsNoBacklog,
    LosesDroppedWaits,
    RemembersFacts,
    KeepsWhatItFetched,
    DoesNotStop,
    /// `flush` returns before the answers are sent.
    FlushesNothing,
    /// The subscription acknowledges messages that only other subscriptions requested.
    AcksOtherTypes,
    /// `is_asked_for` uses only the event types of its own subscription.
    ForgetsOtherVersions,
    /// `is_asked_for` returns `true` for every message.
    AsksForEverything,
    OverlooksPredecessors,
    IgnoresStart,
    /// A subscription with another start position recreates the consumer.
    StartsAnew,
    LooksBeforeTheStart,
    FindsPredecessorsEverywhere,
    /// The subscription omits an aggregate's messages with a fixed subject.
    ForgetsSiblings,
    IgnoresSelections,
    NarrowsEverything,
    /// The subscription reports that every message belongs on its subject.
    BelievesHeaders,
    /// The subscription reports that no message belongs on its subject.
    BelievesNothing,
    SeesNothingWaiting,
    CountsDeliveredOnes,
    /// The standing reports the age of the youngest message instead of the oldest.
    TellsTheYoungest,
    HidesTheBound,
    /// The standing reports that no process receives messages.
    SeesNobody,
}

#[derive(Debug)]
pub struct WrongSubscriber {
    inner: MemorySubscriber,
    mistake: SubscriberMistake,
    subscriptions: AtomicUsize,
    facts: OnceCell<StreamFacts>,
}

impl WrongSubscriber {
    #[must_use]
    pub fn new(inner: MemorySubscriber, mistake: SubscriberMistake) -> Self {
        Self {
            inner,
            mistake,
            subscriptions: AtomicUsize::new(0),
            facts: OnceCell::new(),
        }
    }
}

impl Subscriber for WrongSubscriber {
    type Subscription = WrongSubscription;

    async fn subscribe(&self, consumer: &ConsumerSpec) -> Result<WrongSubscription, SubscriberError> {
        let mut spec = consumer.clone();
        let number = self.subscriptions.fetch_add(1, Ordering::Relaxed);
        match self.mistake {
            M::NeverRedelivers => spec.ack_wait = Duration::from_secs(1_000_000),
            M::LosesProgress => self.inner.broker().delete_consumer(&spec.name),
            M::IgnoresStart => spec.start_at = StartAt::Beginning,
            M::StartsAnew if spec.start_at != StartAt::Beginning => {
                self.inner.broker().delete_consumer(&spec.name);
            }
            M::OnlyFirstType => spec.events.truncate(1),
            M::DoesNotShare => spec.name = format!("{}-{number}", spec.name),
            M::SharesAcrossNames => spec.name = "everybody".to_owned(),
            M::HoardsOtherTypes => spec.events = Probe::DESCRIPTORS.iter().collect(),
            M::IgnoresSelections => spec.events.retain(|event| !event.is_selection()),
            M::NarrowsEverything => {
                for event in spec.events.iter_mut().filter(|event| event.is_everything()) {
                    *event = const { &EventDescriptor::of_aggregate("probe") };
                }
            }
            M::OneAtATime => spec.in_flight_max = 1,
            M::IgnoresInFlightMax => spec.in_flight_max = usize::MAX,
            _ => {}
        }
        let mut inner = self.inner.subscribe(&spec).await?;
        if self.mistake == M::SkipsWhatWasThere {
            while inner.backlog().await? > 0 {
                inner.next().await?.ack().await?;
            }
        }
        Ok(WrongSubscription {
            inner,
            mistake: self.mistake,
            wanted: consumer.events.iter().map(|event| event.event_type()).collect(),
            subscriber: self.inner.clone(),
            spec,
        })
    }

    async fn facts(&self) -> Result<StreamFacts, SubscriberError> {
        if self.mistake == M::RemembersFacts {
            return self.facts.get_or_try_init(|| self.inner.facts()).await.cloned();
        }
        self.inner.facts().await
    }

    async fn standing(&self, consumer: &str) -> Result<Option<ConsumerStanding>, SubscriberError> {
        let Some(mut standing) = self.inner.standing(consumer).await? else {
            return Ok(None);
        };
        match self.mistake {
            M::SeesNothingWaiting => {
                (standing.undelivered, standing.unacknowledged) = (0, 0);
            }
            M::CountsDeliveredOnes => standing.undelivered += standing.unacknowledged,
            M::TellsTheYoungest => {
                standing.oldest_age = standing.oldest_age.map(|_| Duration::ZERO);
            }
            M::HidesTheBound => standing.max_unacknowledged = None,
            M::SeesNobody => standing.is_receiving = false,
            _ => {}
        }
        Ok(Some(standing))
    }

    fn belongs(&self, message: &Message, subject: &str, fixed: Option<&[&'static str]>) -> bool {
        match self.mistake {
            M::BelievesHeaders => true,
            M::BelievesNothing => false,
            _ => self.inner.belongs(message, subject, fixed),
        }
    }
}

#[derive(Debug)]
pub struct WrongSubscription {
    inner: MemorySubscription,
    mistake: SubscriberMistake,
    wanted: Vec<String>,
    subscriber: MemorySubscriber,
    spec: ConsumerSpec,
}

impl WrongSubscription {
    fn wants(&self, incoming: &Incoming) -> bool {
        let event_type = incoming.headers.iter().find(|(name, _)| name == "ce-type");
        event_type.is_some_and(|(_, event_type)| self.wanted.contains(event_type))
    }

    fn delivery(&self, inner: MemoryDelivery) -> WrongDelivery {
        let mut incoming = inner.incoming().clone();
        if self.mistake == M::ForgetsCount {
            incoming.delivery_count = 1;
        }
        let wanted = self.wants(&incoming);
        WrongDelivery {
            inner: Arc::new(inner),
            incoming,
            mistake: self.mistake,
            wanted,
        }
    }
}

impl Subscription for WrongSubscription {
    type Delivery = WrongDelivery;

    async fn next(&mut self) -> Result<WrongDelivery, SubscriberError> {
        let inner = loop {
            let inner = self.inner.next().await?;
            let incoming = inner.incoming();
            match self.mistake {
                M::HoardsOtherTypes if !self.wants(incoming) => {}
                M::AcksOtherTypes if !self.wants(incoming) => inner.acknowledge(),
                M::ForgetsSiblings if !incoming.subject.starts_with("events.") => inner.acknowledge(),
                _ => break inner,
            }
        };
        match self.mistake {
            M::AcksOnDelivery => inner.acknowledge(),
            M::LosesDroppedWaits => {
                inner.acknowledge();
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            _ => {}
        }
        Ok(self.delivery(inner))
    }

    async fn backlog(&mut self) -> Result<u64, SubscriberError> {
        let backlog = self.inner.backlog().await?;
        Ok(if self.mistake == M::ReportsNoBacklog {
            0
        } else {
            backlog
        })
    }

    async fn stop(&mut self) -> Vec<WrongDelivery> {
        let fetched = self.inner.stop().await;
        if self.mistake == M::KeepsWhatItFetched {
            return Vec::new();
        }
        if self.mistake == M::DoesNotStop
            && let Ok(mut subscription) = self.subscriber.subscribe(&self.spec).await
        {
            tokio::spawn(async move { while subscription.next().await.is_ok() {} });
        }
        fetched.into_iter().map(|inner| self.delivery(inner)).collect()
    }

    async fn flush(&mut self) -> Result<(), SubscriberError> {
        self.inner.flush().await
    }
}

#[derive(Debug)]
pub struct WrongDelivery {
    inner: Arc<MemoryDelivery>,
    incoming: Incoming,
    mistake: SubscriberMistake,
    wanted: bool,
}

impl Delivery for WrongDelivery {
    fn incoming(&self) -> &Incoming {
        &self.incoming
    }

    async fn ack(&self) -> Result<(), SubscriberError> {
        if self.mistake == M::LosesAcks {
            return Ok(());
        }
        if self.mistake == M::FlushesNothing {
            let inner = self.inner.clone();
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis(50)).await;
                inner.acknowledge();
            });
            return Ok(());
        }
        self.inner.ack().await
    }

    async fn retry_after(&self, delay: Duration) -> Result<(), SubscriberError> {
        let is_ignored = self.mistake == M::IgnoresRetryDelay;
        self.inner
            .retry_after(if is_ignored { Duration::ZERO } else { delay })
            .await
    }

    async fn progress(&self) -> Result<(), SubscriberError> {
        if self.mistake == M::ForgetsProgress {
            return Ok(());
        }
        self.inner.progress().await
    }

    async fn is_asked_for(&self) -> Result<bool, SubscriberError> {
        match self.mistake {
            M::ForgetsOtherVersions => Ok(self.wanted),
            M::AsksForEverything => Ok(true),
            _ => self.inner.is_asked_for().await,
        }
    }

    async fn has_predecessors(&self) -> Result<bool, SubscriberError> {
        match self.mistake {
            M::OverlooksPredecessors => Ok(false),
            M::FindsPredecessorsEverywhere | M::LooksBeforeTheStart => Ok(true),
            _ => self.inner.has_predecessors().await,
        }
    }
}
