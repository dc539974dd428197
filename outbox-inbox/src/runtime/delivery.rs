//! The life of one delivery in memory: wait for its turn, be handled, be answered.
//!
//! Invariant: the answer comes after the commit, and from receipt to answer the broker hears from us every third of `ack_wait`, from a task of
//! its own, so that a handler that blocks its thread cannot silence it. Absent here: what is done with the message.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use outbox_core::codec::DecodeError;
use outbox_core::{Delivery, Message};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};
use tracing::Instrument as _;

use super::consumer::{Consumer, Stop};
use super::handling::Handling;
use super::lanes::Place;

/// A delivery on its way through the inbox.
pub(super) struct InFlight<D> {
    pub(super) consumer: Arc<Consumer>,
    pub(super) delivery: D,
    pub(super) message: Result<Arc<Message>, DecodeError>,
    pub(super) place: Place,
    /// Slots for running handlers.
    pub(super) slots: Arc<Semaphore>,
    /// Counts it against `in_flight_max` until it is answered.
    pub(super) permit: OwnedSemaphorePermit,
    pub(super) stop: Stop,
}

impl<D: Delivery> InFlight<D> {
    /// Sees the delivery through to its answer.
    pub(super) async fn run(self) {
        let Self {
            consumer,
            delivery,
            message,
            mut place,
            slots,
            permit,
            stop,
        } = self;
        let mut progress = every(consumer.progress_interval());

        let ready = async {
            place.turn().await;
            // Never closed.
            slots.acquire_owned().await.ok()
        };
        // A crash while waiting: the broker delivers again after `ack_wait`.
        let waited = tokio::select! {
            biased;
            () = stop.soft.cancelled() => None,
            slot = while_alive(&delivery, &mut progress, ready) => Some(slot),
        };
        let Some(slot) = waited else {
            count(&consumer, Handling::Returned);
            answer(delivery, Handling::Returned).await;
            return;
        };

        let delivery = Arc::new(delivery);
        let work = {
            let (consumer, delivery) = (consumer.clone(), delivery.clone());
            let span = span(consumer.name, &message);
            async move { consumer.handle(delivery.incoming(), message, &stop).await }.instrument(span)
        };
        // A task of its own: nothing that happens to this one can drop a transaction that is being begun.
        let work = tokio::spawn(work);
        let handling = while_alive(&*delivery, &mut progress, work)
            .await
            .unwrap_or_else(|error| {
                tracing::error!(%error, "inbox failed; the message is delivered again");
                Handling::Failed {
                    retry_after: consumer.shared.config.backoff.max,
                }
            });
        count(&consumer, handling);
        drop((slot, place));
        // A crash before the answer arrives: the message comes again, and its row says what became of it.
        if let Some(delivery) = Arc::into_inner(delivery) {
            answer(delivery, handling).await;
        }
        drop(permit);
    }
}

fn every(period: Duration) -> Interval {
    let mut interval = interval_at(Instant::now() + period, period);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    interval
}

/// Waits for a future and tells the broker meanwhile that the delivery is not forgotten.
async fn while_alive<D: Delivery, T>(
    delivery: &D,
    progress: &mut Interval,
    future: impl Future<Output = T>,
) -> T {
    tokio::pin!(future);
    loop {
        tokio::select! {
            biased;
            value = &mut future => return value,
            _ = progress.tick() => {
                // A lost one at worst makes the broker deliver again, which the row absorbs.
                if let Err(error) = delivery.progress().await {
                    tracing::debug!(%error, "progress was not acknowledged");
                }
            }
        }
    }
}

fn count(consumer: &Consumer, handling: Handling) {
    let tally = &consumer.shared.tally;
    let counter = match handling {
        Handling::Handled => &tally.handled,
        Handling::Duplicate => &tally.duplicates,
        Handling::Failed { .. } => &tally.failed,
        Handling::DeadLettered => &tally.dead_letters,
        Handling::Skipped => &tally.skipped,
        Handling::Returned => &tally.returned,
    };
    counter.fetch_add(1, Ordering::Relaxed);
}

async fn answer<D: Delivery>(delivery: D, handling: Handling) {
    let position = delivery.incoming().position;
    let answered = match handling {
        Handling::Handled | Handling::Duplicate | Handling::DeadLettered | Handling::Skipped => {
            delivery.ack().await
        }
        Handling::Failed { retry_after } => delivery.retry_after(retry_after).await,
        Handling::Returned => delivery.retry_after(Duration::ZERO).await,
    };
    if let Err(error) = answered {
        // Normal in an outage of the broker: the message comes again, and its row says what became of it.
        tracing::debug!(%error, position, "answer was lost");
    }
}

fn span(consumer: &str, message: &Result<Arc<Message>, DecodeError>) -> tracing::Span {
    match message {
        Ok(message) => tracing::info_span!(
            "handle",
            consumer,
            message_id = %message.id,
            event_type = %message.event_type,
            aggregate = %message.aggregate,
        ),
        Err(_) => tracing::info_span!("handle", consumer),
    }
}
