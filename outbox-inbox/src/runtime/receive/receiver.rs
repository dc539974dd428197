//! Receives the deliveries of a consumer.
//!
//! Invariants: a broker error never ends the loop. Fetched deliveries of an ended subscription are
//! accepted before the next subscription begins.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::FutureExt as _;
use outbox_core::retry::Backoff;
use outbox_core::{Delivery, Subscriber, SubscriberError, Subscription};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::origin::Origin;
use crate::handler::describe;
use crate::runtime::consumer::Consumer;
use crate::runtime::message::RoutedMessage;
use crate::telemetry;

pub(crate) const TROUBLE: Backoff = Backoff {
    min: Duration::from_millis(100),
    max: Duration::from_secs(10),
};

pub(crate) const SILENCE_MAX: Duration = Duration::from_secs(30);

const IDLE_CHECK: Duration = Duration::from_millis(10);

const WAITED_MAX: Duration = Duration::from_millis(500);

pub(crate) type DeliveryOf<S> = <<S as Subscriber>::Subscription as Subscription>::Delivery;
type Subscribing<S> =
    Pin<Box<dyn Future<Output = Result<<S as Subscriber>::Subscription, SubscriberError>> + Send>>;

pub(crate) type Ended<S> = (<S as Subscriber>::Subscription, Vec<DeliveryOf<S>>);

pub(crate) enum Deliveries<S: Subscriber> {
    Open(S::Subscription),
    Ending(Pin<Box<dyn Future<Output = Ended<S>> + Send>>),
    Subscribing(Subscribing<S>),
    Paused(Instant, Option<S::Subscription>),
    /// The subscription has ended. Its acknowledgements may still have to be flushed.
    Closed(Option<S::Subscription>),
}

pub(crate) enum Received<S: Subscriber> {
    Delivery(DeliveryOf<S>),
    Nothing,
    PauseChanged,
    Subscribed(S::Subscription),
    Ended(Ended<S>),
    Resume(Option<S::Subscription>),
    Trouble(SubscriberError),
}

impl<S: Subscriber> Deliveries<S> {
    pub(crate) async fn stop(self) -> (Option<S::Subscription>, Vec<DeliveryOf<S>>) {
        match self {
            Self::Open(mut subscription) | Self::Paused(_, Some(mut subscription)) => {
                let fetched = subscription.stop().await;
                (Some(subscription), fetched)
            }
            Self::Ending(ending) => {
                let (subscription, fetched) = ending.await;
                (Some(subscription), fetched)
            }
            Self::Closed(subscription) => (subscription, Vec::new()),
            Self::Subscribing(_) | Self::Paused(_, None) => (None, Vec::new()),
        }
    }

    /// Cancel-safe.
    pub(crate) async fn next(&mut self, with_pauses: bool, waited: &mut Duration) -> Received<S> {
        match self {
            Self::Open(subscription) => {
                let _stopwatch = Stopwatch(Instant::now(), waited);
                let next = subscription.next();
                let delivery = if with_pauses {
                    match timeout(IDLE_CHECK, next).await {
                        Ok(delivery) => delivery,
                        Err(_) => return Received::Nothing,
                    }
                } else {
                    next.await
                };
                delivery.map_or_else(Received::Trouble, Received::Delivery)
            }
            Self::Ending(ending) => Received::Ended(ending.await),
            Self::Subscribing(subscribing) => subscribing
                .await
                .map_or_else(Received::Trouble, Received::Subscribed),
            Self::Paused(until, subscription) => {
                sleep_until(*until).await;
                Received::Resume(subscription.take())
            }
            Self::Closed(_) if with_pauses => {
                sleep(IDLE_CHECK).await;
                Received::Nothing
            }
            Self::Closed(_) => std::future::pending().await,
        }
    }
}

struct Stopwatch<'a>(Instant, &'a mut Duration);

impl Drop for Stopwatch<'_> {
    fn drop(&mut self) {
        *self.1 += self.0.elapsed().min(WAITED_MAX);
    }
}

const QUESTION_MAX: Duration = Duration::from_secs(2);

pub(crate) struct Receiver<S: Subscriber> {
    subscriber: Arc<S>,
    consumer: Arc<Consumer>,
    deliveries: Deliveries<S>,
    paused: watch::Receiver<bool>,
    is_paused: bool,
    failures: u32,
    waited: Duration,
    heard_at: Instant,
    idleness: Option<Idleness>,
}

impl<S: Subscriber> Receiver<S> {
    pub(crate) fn new(
        subscriber: Arc<S>,
        consumer: Arc<Consumer>,
        subscription: Option<S::Subscription>,
        idleness: Option<Idleness>,
    ) -> Self {
        let deliveries = match subscription {
            Some(subscription) => Deliveries::Open(subscription),
            None => Deliveries::Paused(Instant::now() + TROUBLE.min, None),
        };
        Self {
            subscriber,
            paused: consumer.pause.subscribe(),
            consumer,
            deliveries,
            is_paused: false,
            failures: 0,
            waited: Duration::ZERO,
            heard_at: Instant::now(),
            idleness,
        }
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.is_paused
    }

    pub(crate) fn take_waited(&mut self) -> Duration {
        std::mem::take(&mut self.waited)
    }

    /// Cancel-safe.
    pub(crate) async fn next(&mut self, receives: bool) -> Received<S> {
        let with_pauses = self.idleness.is_some();
        tokio::select! {
            biased;
            Ok(()) = self.paused.changed() => Received::PauseChanged,
            received = self.deliveries.next(with_pauses, &mut self.waited), if receives => received,
            else => std::future::pending().await,
        }
    }

    pub(crate) fn step(&mut self, received: Received<S>) -> Vec<DeliveryOf<S>> {
        match received {
            Received::Subscribed(subscription) => {
                self.consumer.vitals.subscribed();
                self.heard_at = Instant::now();
                self.deliveries = Deliveries::Open(subscription);
            }
            Received::Ended((subscription, fetched)) => {
                self.deliveries = match self.is_paused {
                    true => Deliveries::Closed(Some(subscription)),
                    false => self.subscribe(),
                };
                return fetched;
            }
            Received::Resume(subscription) => {
                self.deliveries = match subscription {
                    Some(subscription) => Deliveries::Open(subscription),
                    None => self.subscribe(),
                };
            }
            Received::Delivery(delivery) => {
                self.failures = 0;
                return vec![delivery];
            }
            Received::PauseChanged => self.follow_pause(),
            Received::Nothing => {}
            Received::Trouble(error) => self.trouble(&error),
        }
        Vec::new()
    }

    pub(crate) fn arrived(&mut self) -> Option<DeliveryOf<S>> {
        while let Deliveries::Open(subscription) = &mut self.deliveries {
            match subscription.next().now_or_never()? {
                Ok(delivery) => {
                    self.failures = 0;
                    return Some(delivery);
                }
                Err(error) => self.trouble(&error),
            }
        }
        None
    }

    pub(crate) fn take_in(&mut self, delivery: DeliveryOf<S>) -> (Origin<DeliveryOf<S>>, RoutedMessage) {
        self.heard_at = Instant::now();
        if let Some(idleness) = &self.idleness {
            idleness.set(false);
        }
        let consumer = &self.consumer;
        consumer.shared.tally.received();
        consumer.vitals.received();
        telemetry::received(consumer.name);
        let routed = consumer.routed(delivery.incoming());
        (Origin::broker(delivery), routed)
    }

    pub(crate) async fn watch(&mut self, has_room: bool, unanswered: usize) {
        if !has_room || self.heard_at.elapsed() < SILENCE_MAX {
            return;
        }
        let Deliveries::Open(subscription) = &mut self.deliveries else {
            return;
        };
        if let Ok(Ok(backlog)) = timeout(QUESTION_MAX, subscription.backlog()).await
            && usize::try_from(backlog).is_ok_and(|backlog| backlog > unanswered)
        {
            tracing::debug!(
                consumer = self.consumer.name,
                backlog,
                "no deliveries for long, subscribing again"
            );
            self.end();
        }
    }

    fn end(&mut self) {
        let deliveries = std::mem::replace(&mut self.deliveries, Deliveries::Closed(None));
        self.deliveries = match deliveries {
            Deliveries::Open(mut subscription) | Deliveries::Paused(_, Some(mut subscription)) => {
                Deliveries::Ending(Box::pin(async move {
                    let fetched = subscription.stop().await;
                    (subscription, fetched)
                }))
            }
            deliveries => deliveries,
        };
    }

    pub(crate) async fn all_idle(&mut self, has_jobs: bool, has_messages: bool, letters_found: bool) -> bool {
        let Some(idleness) = &self.idleness else {
            return false;
        };
        if self.is_paused {
            return idleness.set(!has_jobs);
        }
        if !letters_found {
            return false;
        }
        let Deliveries::Open(subscription) = &mut self.deliveries else {
            return false;
        };
        match timeout(QUESTION_MAX, subscription.backlog()).await {
            Ok(Ok(backlog)) => idleness.set(!has_jobs && !has_messages && backlog == 0),
            Ok(Err(error)) => {
                self.trouble(&error);
                false
            }
            Err(_) => false,
        }
    }

    pub(crate) fn follow_pause(&mut self) {
        let is_paused = *self.paused.borrow_and_update();
        let consumer = self.consumer.name;
        if is_paused != self.is_paused {
            tracing::info!(
                consumer,
                "consumer {}",
                if is_paused { "is paused" } else { "goes on" }
            );
        }
        self.is_paused = is_paused;
        self.consumer.vitals.paused(is_paused);
        telemetry::gauge(telemetry::PAUSED, consumer, usize::from(is_paused));
        if !is_paused {
            if let Some(idleness) = &self.idleness {
                idleness.set(false);
            }
            if matches!(self.deliveries, Deliveries::Closed(_)) {
                self.deliveries = self.subscribe();
            }
            return;
        }
        match &self.deliveries {
            Deliveries::Subscribing(_) | Deliveries::Paused(_, None) => {
                self.deliveries = Deliveries::Closed(None);
            }
            _ => self.end(),
        }
    }

    pub(crate) fn close(&mut self) -> Deliveries<S> {
        std::mem::replace(&mut self.deliveries, Deliveries::Closed(None))
    }

    fn subscribe(&self) -> Deliveries<S> {
        self.consumer.vitals.subscribing();
        let (subscriber, spec) = (self.subscriber.clone(), self.consumer.spec());
        Deliveries::Subscribing(Box::pin(async move { subscriber.subscribe(&spec).await }))
    }

    fn trouble(&mut self, error: &SubscriberError) {
        self.failures += 1;
        let pause = TROUBLE.delay(self.failures, &mut fastrand::Rng::new());
        let (consumer, text, until) = (self.consumer.name, describe(error), Instant::now() + pause);
        let is_new = self.consumer.vitals.trouble(&text);
        if self.failures > 1 {
            tracing::debug!(consumer, error = %text, ?pause, "broker still unavailable");
        }
        let deliveries = std::mem::replace(&mut self.deliveries, Deliveries::Paused(until, None));
        match error {
            SubscriberError::Configuration { .. } => {
                if is_new {
                    tracing::error!(consumer, error = %text, "consumer cannot be created, retried");
                }
            }
            SubscriberError::Gone { .. } => {
                if self.failures == 1 {
                    tracing::warn!(consumer, error = %text, "subscription ended, subscribing again");
                }
            }
            _ => {
                if self.failures == 1 {
                    tracing::warn!(consumer, error = %text, "broker unavailable, consumer waits");
                }
                if let Deliveries::Open(subscription) = deliveries {
                    self.deliveries = Deliveries::Paused(until, Some(subscription));
                }
            }
        }
    }
}

#[derive(Debug)]
pub(crate) struct Idleness {
    consumers: Arc<[AtomicBool]>,
    own: usize,
}

impl Idleness {
    pub(crate) fn of_all(consumers: usize) -> impl Iterator<Item = Self> {
        let all: Arc<[_]> = (0..consumers).map(|_| AtomicBool::new(false)).collect();
        (0..consumers).map(move |own| Self {
            consumers: all.clone(),
            own,
        })
    }

    pub(crate) fn set(&self, is_idle: bool) -> bool {
        self.consumers[self.own].store(is_idle, Ordering::Relaxed);
        is_idle && self.consumers.iter().all(|idle| idle.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_consumers_are_idle_when_each_is_idle() {
        let consumers: Vec<_> = Idleness::of_all(2).collect();
        assert!(!consumers[0].set(true));
        assert!(consumers[1].set(true));
        assert!(!consumers[0].set(false));
        assert!(!consumers[1].set(true));
    }
}
