//! Receives the deliveries of one consumer and starts a task for each.
//!
//! Invariants: at most `in_flight_max` deliveries are in memory; trouble of the broker pauses and never ends the loop. Absent here:
//! handling and answering.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use outbox_core::retry::Backoff;
use outbox_core::{Delivery, Source, SourceError, Subscription, codec};
use tokio::sync::Semaphore;
use tokio_util::task::TaskTracker;

use super::consumer::{Consumer, Stop};
use super::delivery::InFlight;
use super::lanes::{Lanes, Place};
use crate::handler::describe;

/// Waits after trouble with the broker.
const TROUBLE: Backoff = Backoff {
    min: Duration::from_millis(100),
    max: Duration::from_secs(10),
};

/// How often a consumer that has nothing to do asks whether that is all.
const IDLE_CHECK: Duration = Duration::from_millis(10);

/// Which consumers of an inbox have nothing left to do; used by `drain_until_idle` only.
#[derive(Debug)]
pub(super) struct Idle {
    consumers: Vec<AtomicBool>,
}

impl Idle {
    pub(super) fn new(consumers: usize) -> Self {
        Self {
            consumers: (0..consumers).map(|_| AtomicBool::new(false)).collect(),
        }
    }

    /// Notes whether a consumer is idle; returns whether all are.
    fn set(&self, consumer: usize, idle: bool) -> bool {
        self.consumers[consumer].store(idle, Ordering::Relaxed);
        idle && self.consumers.iter().all(|idle| idle.load(Ordering::Relaxed))
    }
}

/// The receiving side of a consumer.
pub(super) struct Receiver<S: Source> {
    pub(super) source: Arc<S>,
    pub(super) consumer: Arc<Consumer>,
    /// `None`: subscribe first.
    pub(super) subscription: Option<S::Subscription>,
    pub(super) stop: Stop,
    pub(super) tasks: TaskTracker,
    /// Stop when all are idle; and this consumer's index.
    pub(super) idle: Option<(Arc<Idle>, usize)>,
}

impl<S: Source> Receiver<S> {
    /// Receives until the soft stop. The tasks go on.
    pub(super) async fn run(mut self) {
        let config = &self.consumer.shared.config;
        let in_flight = Arc::new(Semaphore::new(config.in_flight_max));
        let slots = Arc::new(Semaphore::new(config.concurrency));
        let mut lanes = Lanes::default();
        let mut failures = 0;
        let stop = self.stop.clone();
        // Dropping what is awaited here loses no delivery: each comes again after `ack_wait`.
        while !stop.soft.is_cancelled() {
            let Some(received) = stop.soft.run_until_cancelled(self.receive(&in_flight)).await else {
                break;
            };
            let error = match received {
                Ok(None) => continue,
                Ok(Some((delivery, permit))) => {
                    failures = 0;
                    let incoming = delivery.incoming();
                    let message = codec::decode(&incoming.headers, incoming.payload.clone()).map(Arc::new);
                    let place = match &message {
                        Ok(message) => lanes.enter(&message.aggregate),
                        Err(_) => Place::alone(),
                    };
                    let in_flight = InFlight {
                        consumer: self.consumer.clone(),
                        delivery,
                        message,
                        place,
                        slots: slots.clone(),
                        permit,
                        stop: stop.clone(),
                    };
                    self.tasks.spawn(in_flight.run());
                    continue;
                }
                Err(error) => error,
            };
            failures += 1;
            let pause = TROUBLE.delay(failures, &mut fastrand::Rng::new());
            let (consumer, text) = (self.consumer.name, describe(&error));
            match error {
                SourceError::Configuration { .. } => {
                    tracing::error!(consumer, error = %text, ?pause, "consumer cannot be set up, tried again");
                    self.subscription = None;
                }
                SourceError::Gone { .. } => {
                    tracing::warn!(consumer, error = %text, ?pause, "subscription is over, subscribes again");
                    self.subscription = None;
                }
                _ => tracing::warn!(consumer, error = %text, ?pause, "broker trouble, consumer pauses"),
            }
            stop.soft.run_until_cancelled(tokio::time::sleep(pause)).await;
        }
        tracing::debug!(consumer = self.consumer.name, "receives no more");
    }

    /// Receives one delivery, after room for it. `None`: nothing came for a moment, or it has just subscribed.
    async fn receive(
        &mut self,
        in_flight: &Arc<Semaphore>,
    ) -> Result<Option<(DeliveryOf<S>, tokio::sync::OwnedSemaphorePermit)>, SourceError> {
        let Some(subscription) = &mut self.subscription else {
            self.subscription = Some(self.source.subscribe(&self.consumer.spec()).await?);
            return Ok(None);
        };
        let Ok(permit) = in_flight.clone().acquire_owned().await else {
            return Ok(None);
        };
        let Some((idle, index)) = &self.idle else {
            return Ok(Some((subscription.next().await?, permit)));
        };
        match tokio::time::timeout(IDLE_CHECK, subscription.next()).await {
            Ok(delivery) => {
                idle.set(*index, false);
                Ok(Some((delivery?, permit)))
            }
            Err(_) => {
                let backlog = subscription.backlog().await?;
                if idle.set(*index, backlog == 0) {
                    self.stop.soft.cancel();
                }
                Ok(None)
            }
        }
    }
}

type DeliveryOf<S> = <<S as Source>::Subscription as Subscription>::Delivery;
