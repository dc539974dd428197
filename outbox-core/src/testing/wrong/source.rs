//! Sources with one mistake each.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::OnceCell;

use crate::event::DomainEvent;
use crate::source::{ConsumerSpec, Delivery, Incoming, Source, SourceError, StreamFacts, Subscription};
use crate::testing::conformance::probe::Probe;
use crate::testing::{MemoryDelivery, MemorySource, MemorySubscription};

/// What a [`WrongSource`] does wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SourceMistake {
    /// Delivers each message once and never again.
    NeverRedelivers,
    /// Acknowledges as it delivers, before anything is handled.
    AcksOnDelivery,
    /// Sends no acknowledgements.
    LosesAcks,
    /// Starts from the beginning whenever it subscribes.
    LosesPosition,
    /// Starts with what comes after the subscription.
    SkipsWhatWasThere,
    /// Asks the broker for the first event type only, as a filter for one subject does.
    OnlyFirstType,
    /// Gives each subscription a consumer of its own, so that all of them get everything.
    DoesNotShare,
    /// Uses one consumer for all names.
    SharesAcrossNames,
    /// Asks for everything, and neither hands out nor acknowledges what is not wanted.
    HoardsOtherTypes,
    /// Has one message in flight, whatever is asked for.
    OneAtATime,
    /// Does not bound what is in flight.
    IgnoresInFlightMax,
    /// Brings messages again at once, whatever `retry_after` says.
    IgnoresRetryDelay,
    /// Does not tell the broker that work goes on.
    ForgetsProgress,
    /// Says of each delivery that it is the first.
    ForgetsCount,
    /// Reports no backlog.
    ReportsNoBacklog,
    /// Takes a delivery off the stream before its caller can have it, and drops it when the caller gives up.
    LosesDroppedWaits,
    /// Tells of the stream as it was at first.
    RemembersFacts,
    /// Keeps what it has fetched when it is stopped.
    KeepsWhatItFetched,
    /// Goes on receiving after it was stopped.
    DoesNotStop,
    /// Sends answers when it finds time, and says that they have arrived.
    FlushesNothing,
    /// Acknowledges what its own subscriber did not ask for.
    AcksOtherTypes,
    /// Knows of its own subscriber's wishes only.
    ForgetsOtherVersions,
    /// Takes everything that comes for something that was asked for.
    AsksForEverything,
}

/// A source with one mistake.
#[derive(Debug)]
pub struct WrongSource {
    inner: MemorySource,
    mistake: SourceMistake,
    subscriptions: AtomicUsize,
    facts: OnceCell<StreamFacts>,
}

impl WrongSource {
    /// Wraps a source.
    #[must_use]
    pub fn new(inner: MemorySource, mistake: SourceMistake) -> Self {
        Self {
            inner,
            mistake,
            subscriptions: AtomicUsize::new(0),
            facts: OnceCell::new(),
        }
    }
}

impl Source for WrongSource {
    type Subscription = WrongSubscription;

    async fn subscribe(&self, consumer: &ConsumerSpec) -> Result<WrongSubscription, SourceError> {
        let mut spec = consumer.clone();
        let number = self.subscriptions.fetch_add(1, Ordering::Relaxed);
        match self.mistake {
            SourceMistake::NeverRedelivers => spec.ack_wait = Duration::from_secs(1_000_000),
            SourceMistake::LosesPosition => self.inner.broker().delete_consumer(&spec.name),
            SourceMistake::OnlyFirstType => spec.events.truncate(1),
            SourceMistake::DoesNotShare => spec.name = format!("{}-{number}", spec.name),
            SourceMistake::SharesAcrossNames => spec.name = "everybody".to_owned(),
            SourceMistake::HoardsOtherTypes => spec.events = Probe::DESCRIPTORS.iter().collect(),
            SourceMistake::OneAtATime => spec.in_flight_max = 1,
            SourceMistake::IgnoresInFlightMax => spec.in_flight_max = usize::MAX,
            _ => {}
        }
        let mut inner = self.inner.subscribe(&spec).await?;
        if self.mistake == SourceMistake::SkipsWhatWasThere {
            while inner.backlog().await? > 0 {
                inner.next().await?.ack().await?;
            }
        }
        let wanted = consumer
            .events
            .iter()
            .map(|descriptor| descriptor.event_type())
            .collect();
        Ok(WrongSubscription {
            inner,
            mistake: self.mistake,
            wanted,
            source: self.inner.clone(),
            spec,
        })
    }

    async fn facts(&self) -> Result<StreamFacts, SourceError> {
        if self.mistake == SourceMistake::RemembersFacts {
            return self.facts.get_or_try_init(|| self.inner.facts()).await.cloned();
        }
        self.inner.facts().await
    }
}

/// A subscription of a [`WrongSource`].
#[derive(Debug)]
pub struct WrongSubscription {
    inner: MemorySubscription,
    mistake: SourceMistake,
    wanted: Vec<String>,
    source: MemorySource,
    spec: ConsumerSpec,
}

impl WrongSubscription {
    fn wants(&self, incoming: &Incoming) -> bool {
        let event_type = incoming.headers.iter().find(|(name, _)| name == "ce-type");
        event_type.is_some_and(|(_, event_type)| self.wanted.contains(event_type))
    }

    fn delivery(&self, inner: MemoryDelivery) -> WrongDelivery {
        let mut incoming = inner.incoming().clone();
        if self.mistake == SourceMistake::ForgetsCount {
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

    async fn next(&mut self) -> Result<WrongDelivery, SourceError> {
        let mut inner = self.inner.next().await?;
        while self.mistake == SourceMistake::HoardsOtherTypes && !self.wants(inner.incoming()) {
            inner = self.inner.next().await?;
        }
        while self.mistake == SourceMistake::AcksOtherTypes && !self.wants(inner.incoming()) {
            inner.acknowledge();
            inner = self.inner.next().await?;
        }
        match self.mistake {
            SourceMistake::AcksOnDelivery => inner.acknowledge(),
            SourceMistake::LosesDroppedWaits => {
                inner.acknowledge();
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            _ => {}
        }
        Ok(self.delivery(inner))
    }

    async fn backlog(&mut self) -> Result<u64, SourceError> {
        let backlog = self.inner.backlog().await?;
        Ok(if self.mistake == SourceMistake::ReportsNoBacklog {
            0
        } else {
            backlog
        })
    }

    async fn stop(&mut self) -> Vec<WrongDelivery> {
        let fetched = self.inner.stop().await;
        if self.mistake == SourceMistake::KeepsWhatItFetched {
            return Vec::new();
        }
        if self.mistake == SourceMistake::DoesNotStop
            && let Ok(mut subscription) = self.source.subscribe(&self.spec).await
        {
            tokio::spawn(async move { while subscription.next().await.is_ok() {} });
        }
        fetched.into_iter().map(|inner| self.delivery(inner)).collect()
    }

    async fn flush(&mut self) -> Result<(), SourceError> {
        self.inner.flush().await
    }
}

/// A delivery of a [`WrongSource`].
#[derive(Debug)]
pub struct WrongDelivery {
    inner: Arc<MemoryDelivery>,
    incoming: Incoming,
    mistake: SourceMistake,
    /// Whether its own subscriber has asked for it.
    wanted: bool,
}

impl Delivery for WrongDelivery {
    fn incoming(&self) -> &Incoming {
        &self.incoming
    }

    async fn ack(&self) -> Result<(), SourceError> {
        if self.mistake == SourceMistake::LosesAcks {
            return Ok(());
        }
        if self.mistake == SourceMistake::FlushesNothing {
            let inner = self.inner.clone();
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis(50)).await;
                inner.acknowledge();
            });
            return Ok(());
        }
        self.inner.ack().await
    }

    async fn retry_after(&self, delay: Duration) -> Result<(), SourceError> {
        let delay = if self.mistake == SourceMistake::IgnoresRetryDelay {
            Duration::ZERO
        } else {
            delay
        };
        self.inner.retry_after(delay).await
    }

    async fn progress(&self) -> Result<(), SourceError> {
        if self.mistake == SourceMistake::ForgetsProgress {
            return Ok(());
        }
        self.inner.progress().await
    }

    async fn is_asked_for(&self) -> Result<bool, SourceError> {
        match self.mistake {
            SourceMistake::ForgetsOtherVersions => Ok(self.wanted),
            SourceMistake::AsksForEverything => Ok(true),
            _ => self.inner.is_asked_for().await,
        }
    }
}
