//! What a consumer receives, and what it does about a broker that is in trouble, falls silent, or has nothing more.
//!
//! Invariant: trouble of the broker pauses and never ends the loop; of a subscription that ends, what it had fetched is taken in before the next one begins.
//! Not here: the states of a subscription ([`super::deliveries`]).

use std::time::Duration;

use futures_util::FutureExt as _;
use outbox_core::{Delivery, Subscriber, SubscriberError, Subscription};
use tokio::time::{Instant, timeout};

use super::beginnings::Beginnings;
use super::deliveries::{Deliveries, DeliveryOf, Received, SILENCE_MAX, TROUBLE};
use super::dispatch::Dispatcher;
use super::job::Origin;
use crate::handler::describe;
use crate::telemetry;

/// Longest wait for the broker's answer while nothing else goes on.
const QUESTION_MAX: Duration = Duration::from_secs(2);

impl<S: Subscriber> Dispatcher<S> {
    /// Takes the next step of the deliveries.
    pub(super) async fn received(&mut self, received: Received<S>) {
        match received {
            Received::Subscribed(subscription) => {
                self.consumer.vitals.subscribed();
                self.heard_at = Instant::now();
                self.beginnings = Beginnings::default();
                self.deliveries = Deliveries::Open(subscription);
            }
            Received::Ended((subscription, fetched)) => {
                self.deliveries = match self.is_paused {
                    true => Deliveries::Closed(Some(subscription)),
                    false => self.subscribe(),
                };
                // In their order, behind what waits here; there may be more of them than there is room for.
                fetched.into_iter().for_each(|delivery| self.accept(delivery));
            }
            Received::Resume(subscription) => {
                self.deliveries = match subscription {
                    Some(subscription) => Deliveries::Open(subscription),
                    None => self.subscribe(),
                };
            }
            Received::Delivery(delivery) => {
                self.failures = 0;
                self.accept(delivery);
                // What has arrived with it is taken at once.
                while self.has_room()
                    && let Deliveries::Open(subscription) = &mut self.deliveries
                {
                    match subscription.next().now_or_never() {
                        Some(Ok(delivery)) => self.accept(delivery),
                        Some(Err(error)) => self.trouble(&error),
                        None => break,
                    }
                }
            }
            Received::Nothing => self.ask_whether_idle().await,
            Received::Trouble(error) => self.trouble(&error),
        }
    }

    /// Puts a delivery into its lane.
    fn accept(&mut self, delivery: DeliveryOf<S>) {
        self.heard_at = Instant::now();
        if let Some((idle, index)) = &self.idle {
            idle.set(*index, false);
        }
        self.consumer.shared.tally.received();
        self.consumer.vitals.received();
        telemetry::received(self.consumer.name);
        let mut routed = self.consumer.routed(delivery.incoming());
        if self.consumer.keeps_sequences() {
            let aggregate = routed.message.as_ref().ok().map(|message| &message.aggregate);
            if self.beginnings.is_first(aggregate, delivery.is_unbroken()) {
                self.consumer.begins_here(&mut routed);
            }
        }
        let deliveries = delivery.incoming().delivery_count;
        let (key, mut in_flight) = self.enter(Origin::broker(delivery), routed);
        // If no other process had it meanwhile, what was known of it holds.
        let awaited = self.lanes.arrived(&key, in_flight.order_key, deliveries <= 1);
        if let Some(awaited) = awaited
            && awaited.deliveries + 1 == deliveries
        {
            in_flight.routed.memory = awaited.memory;
        }
        self.lanes.push(key, in_flight, Instant::now());
    }

    /// Subscribes anew if the subscription has fallen silent although the broker has messages. To do so without need costs nothing.
    pub(super) async fn watch(&mut self, has_room: bool) {
        let silent = has_room && self.heard_at.elapsed() >= SILENCE_MAX;
        let Deliveries::Open(subscription) = &mut self.deliveries else {
            return;
        };
        if !silent {
            return;
        }
        let backlog = timeout(QUESTION_MAX, subscription.backlog()).await;
        if let Ok(Ok(backlog)) = backlog
            && usize::try_from(backlog).is_ok_and(|backlog| backlog > self.unanswered.len())
        {
            tracing::debug!(
                consumer = self.consumer.name,
                backlog,
                "nothing has come for long, subscribes again"
            );
            let paused = Deliveries::Paused(Instant::now(), None);
            if let Deliveries::Open(mut silent) = std::mem::replace(&mut self.deliveries, paused) {
                // Before the next one begins, so that the broker does not send to one that nobody listens to.
                self.deliveries = Deliveries::Ending(Box::pin(async move {
                    let fetched = silent.stop().await;
                    (silent, fetched)
                }));
            }
        }
    }

    /// Stops the inbox if the broker has nothing more for any consumer (`drain` only).
    async fn ask_whether_idle(&mut self) {
        let Some((idle, index)) = &self.idle else { return };
        if self.is_paused {
            // It has nothing to do, whatever is on the stream.
            if idle.set(*index, self.jobs == 0) {
                self.stop.soft.cancel();
            }
            return;
        }
        let nothing_here = self.jobs == 0 && self.lanes.waiting() == 0 && self.limits.waiting() == 0;
        // Dead letters that are to be tried again belong to the work, and the first poll for them may not have been answered.
        if !self.retries.is_settled() {
            return;
        }
        let Deliveries::Open(subscription) = &mut self.deliveries else {
            return;
        };
        // The loop must tell the broker of what is in memory meanwhile. Without an answer it asks again.
        let Ok(backlog) = timeout(QUESTION_MAX, subscription.backlog()).await else {
            return;
        };
        match backlog {
            Ok(backlog) => {
                if idle.set(*index, nothing_here && backlog == 0) {
                    self.stop.soft.cancel();
                }
            }
            Err(error) => self.trouble(&error),
        }
    }

    pub(super) fn subscribe(&self) -> Deliveries<S> {
        self.consumer.vitals.subscribing();
        let (subscriber, spec) = (self.subscriber.clone(), self.consumer.spec());
        Deliveries::Subscribing(Box::pin(async move { subscriber.subscribe(&spec).await }))
    }

    /// Pauses, longer with each trouble in a row, and keeps the subscription if it is still good.
    fn trouble(&mut self, error: &SubscriberError) {
        self.failures += 1;
        let pause = TROUBLE.delay(self.failures, &mut fastrand::Rng::new());
        let (consumer, text, until) = (self.consumer.name, describe(error), Instant::now() + pause);
        let is_new = self.consumer.vitals.trouble(&text);
        if self.failures > 1 {
            tracing::debug!(consumer, error = %text, ?pause, "the trouble goes on");
        }
        let deliveries = std::mem::replace(&mut self.deliveries, Deliveries::Paused(until, None));
        match error {
            SubscriberError::Configuration { .. } => {
                if is_new {
                    tracing::error!(consumer, error = %text, "consumer cannot be set up, tried again");
                }
            }
            SubscriberError::Gone { .. } => {
                if self.failures == 1 {
                    tracing::warn!(consumer, error = %text, "subscription is over, subscribes again");
                }
            }
            _ => {
                if self.failures == 1 {
                    tracing::warn!(consumer, error = %text, "broker trouble, consumer pauses");
                }
                if let Deliveries::Open(subscription) = deliveries {
                    self.deliveries = Deliveries::Paused(until, Some(subscription));
                }
            }
        }
    }
}
