//! Handles what was taken from the lanes together, and answers the broker.
//!
//! Invariant: the answer comes after the commit; of one lane, nothing runs after a message that did not end. Not here: which messages these are
//! ([`super::dispatch`]).

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use outbox_core::{Delivery, Incoming};
use tokio::sync::Mutex;
use tracing::Instrument as _;

use super::consumer::{Consumer, HandlerHealth, Stop};
use super::lanes::{LaneKey, Queue, Queued};
use super::routed::{Handling, Route, RoutedMessage};
use crate::dead_letter::StoredDeadLetter;
use crate::panics::{guard, guard_async};
use crate::telemetry;

/// What has panicked, in the error of a panic that nothing else has caught.
const PANICKED: &str = "the inbox, or what it called for this message,";

/// Longest wait for the connection to take the answers of all messages together.
pub(super) const ANSWERS_MAX: Duration = Duration::from_secs(2);

/// A message in memory.
#[derive(Debug)]
pub(super) struct InFlight<D> {
    /// Number of the message in this process.
    pub(super) local_id: u64,
    /// Its place in its lane.
    pub(super) order_key: u64,
    pub(super) origin: Origin<D>,
    pub(super) routed: RoutedMessage,
    /// How its handler fares, if it has one.
    pub(super) health: Option<Arc<HandlerHealth>>,
}

impl<D: Delivery> Queued for InFlight<D> {
    fn order_key(&self) -> u64 {
        self.order_key
    }

    fn queue(&self) -> Queue {
        if self.routed.has_failed() {
            Queue::Retries
        } else if self.health.as_ref().is_some_and(|health| health.is_failing()) {
            Queue::Doubtful
        } else {
            Queue::Ready
        }
    }
}

impl<D> Clone for InFlight<D> {
    fn clone(&self) -> Self {
        Self {
            local_id: self.local_id,
            order_key: self.order_key,
            origin: self.origin.clone(),
            routed: self.routed.clone(),
            health: self.health.clone(),
        }
    }
}

impl<D> InFlight<D> {
    /// Tells the handler's health what became of a run.
    fn note_health(&self, handling: Handling) {
        let Some(health) = &self.health else { return };
        match handling {
            Handling::Handled => health.succeeded(),
            Handling::Failed { .. } | Handling::DeadLettered => health.failed(),
            Handling::Later { .. } if self.routed.memory.interruptions > 0 => health.failed(),
            _ => {}
        }
    }
}

/// Where a message came from, and who is told what became of it.
#[derive(Debug)]
pub(super) enum Origin<D> {
    Broker(Arc<Unanswered<D>>),
    /// A dead letter that is tried again. Its row says what became of it.
    DeadLetter(Arc<StoredDeadLetter>),
}

/// A delivery that the broker has had no answer to.
#[derive(Debug)]
pub(super) struct Unanswered<D> {
    delivery: D,
    /// Whether it went back. Locked while the broker is told.
    is_returned: Mutex<bool>,
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
    pub(super) fn broker(delivery: D) -> Self {
        Self::Broker(Arc::new(Unanswered {
            delivery,
            is_returned: Mutex::new(false),
        }))
    }

    /// The dead letter, if it is one.
    pub(super) fn letter(&self) -> Option<&Arc<StoredDeadLetter>> {
        match self {
            Self::Broker(_) => None,
            Self::DeadLetter(letter) => Some(letter),
        }
    }

    pub(super) fn incoming(&self) -> &Incoming {
        match self {
            Self::Broker(message) => message.delivery.incoming(),
            Self::DeadLetter(letter) => &letter.incoming,
        }
    }

    /// Roughly what it takes in memory.
    pub(super) fn bytes(&self) -> usize {
        let incoming = self.incoming();
        let headers = incoming
            .headers
            .iter()
            .map(|(name, value)| name.len() + value.len());
        incoming.subject.len() + incoming.payload.len() + headers.sum::<usize>()
    }

    async fn acknowledge(&self) {
        if let Self::Broker(message) = self
            && let Err(error) = message.delivery.ack().await
        {
            // Normal in an outage of the broker: the message comes again, and its row says what became of it.
            tracing::debug!(%error, stream_sequence = self.incoming().stream_sequence, "acknowledgement was lost");
        }
    }

    /// Tells the broker that the delivery is not forgotten. Nothing is said of one that went back: that would undo the time after which it is to come
    /// again.
    pub(super) async fn progress(&self) {
        let Self::Broker(message) = self else { return };
        let is_returned = message.is_returned.lock().await;
        if !*is_returned && let Err(error) = message.delivery.progress().await {
            // A lost one at worst makes the broker deliver again, which the row absorbs.
            tracing::debug!(%error, "progress was not acknowledged");
        }
    }

    pub(super) async fn give_back(&self, wait: Duration) {
        let Self::Broker(message) = self else { return };
        let mut is_returned = message.is_returned.lock().await;
        *is_returned = true;
        if let Err(error) = message.delivery.retry_after(wait).await {
            tracing::debug!(%error, "a delivery could not be given back; it comes again after ack_wait");
        }
    }
}

/// What was taken from the lanes.
pub(super) type Taken<D> = Vec<(Arc<LaneKey>, Vec<InFlight<D>>)>;

/// What became of the messages of one lane.
pub(super) struct Ended<D> {
    pub(super) key: Arc<LaneKey>,
    /// Messages that the broker can forget, and has been told so.
    pub(super) over: Vec<(u64, Handling)>,
    /// The highest order key among them.
    pub(super) over_to: u64,
    /// The message that did not end.
    pub(super) stopped: Option<(InFlight<D>, Handling)>,
    /// The messages behind it, which did not run.
    pub(super) rest: Vec<InFlight<D>>,
}

/// Handles the messages: together if they are several, and one by one if that fails.
pub(super) async fn run<D: Delivery>(consumer: &Consumer, taken: Taken<D>, stop: &Stop) -> Vec<Ended<D>> {
    let together = together(consumer, &taken, stop).await;
    let mut handlings = together.map(Vec::into_iter);
    let mut ended = Vec::with_capacity(taken.len());
    for (key, items) in taken {
        let mut lane = Ended {
            key,
            over: Vec::with_capacity(items.len()),
            over_to: 0,
            stopped: None,
            rest: Vec::new(),
        };
        for mut in_flight in items {
            let handling = handlings.as_mut().and_then(Iterator::next).flatten();
            if lane.stopped.is_some() {
                in_flight.routed.memory.deferred |= matches!(handling, Some(Handling::Deferred { .. }));
                lane.rest.push(in_flight);
                continue;
            }
            let handling = match handling {
                Some(handling) => handling,
                // What has not begun goes back: a batch that failed would hold up the stop by a run for each of its messages.
                None if stop.soft.is_cancelled() => Handling::Returned,
                None => one(consumer, &mut in_flight, stop).await,
            };
            // A recorder of metrics is the application's.
            if let Err(error) = guard("recorder of metrics", || {
                report(consumer, &in_flight.routed, handling)
            }) {
                tracing::error!(consumer = consumer.name, %error, "what became of a message was not counted");
            }
            in_flight.note_health(handling);
            in_flight.routed.memory.deferred |= matches!(handling, Handling::Deferred { .. });
            if let Handling::SentBack { retry_after } = handling {
                // Nothing was done that a crash here could leave behind.
                let told = guard_async("broker's driver", || in_flight.origin.give_back(retry_after)).await;
                if let Err(error) = told {
                    tracing::error!(consumer = consumer.name, %error, "a delivery could not be given back");
                }
                lane.over.push((in_flight.local_id, handling));
            } else if handling.is_final() {
                // A crash before the answer arrives: the message comes again, and its row says what became of it.
                let told = guard_async("broker's driver", || in_flight.origin.acknowledge()).await;
                if let Err(error) = told {
                    tracing::error!(consumer = consumer.name, %error, "acknowledgement was lost");
                }
                lane.over.push((in_flight.local_id, handling));
                lane.over_to = lane.over_to.max(in_flight.order_key);
            } else {
                lane.stopped = Some((in_flight, handling));
            }
        }
        ended.push(lane);
    }
    ended
}

/// What follows from a job that panicked where nothing catches it: all its messages are tried again, one by one, and counted before they run. Those that
/// have taken effect turn out to be duplicates.
pub(super) fn lost<D>(consumer: &Consumer, taken: Taken<D>) -> Vec<Ended<D>> {
    let handling = Handling::Later {
        retry_after: consumer.shared.config.backoff.max,
    };
    let lanes = taken.into_iter().map(|(key, mut items)| {
        for in_flight in &mut items {
            in_flight.routed.memory.count_first = true;
        }
        let mut items = items.into_iter();
        Ended {
            key,
            over: Vec::new(),
            over_to: 0,
            stopped: items.next().map(|first| (first, handling)),
            rest: items.collect(),
        }
    });
    lanes.collect()
}

async fn together<D: Delivery>(
    consumer: &Consumer,
    taken: &Taken<D>,
    stop: &Stop,
) -> Option<Vec<Option<Handling>>> {
    let members: Vec<&RoutedMessage> = taken
        .iter()
        .flat_map(|(_, items)| items)
        .map(|in_flight| &in_flight.routed)
        .collect();
    if members.len() < 2 {
        return None;
    }
    let handler = members[0].batchable()?;
    let messages = members.iter().filter_map(|routed| routed.message.as_ref().ok());
    let span = telemetry::batch_span(consumer.name, &messages.cloned().collect::<Vec<_>>());
    let handling = consumer.handle_together(&members, handler, stop).instrument(span);
    // The runtime's own code panicking must not take the lanes with it.
    AssertUnwindSafe(handling).catch_unwind().await.ok().flatten()
}

async fn one<D: Delivery>(consumer: &Consumer, in_flight: &mut InFlight<D>, stop: &Stop) -> Handling {
    let reborrowed = &mut *in_flight;
    let panic = match guard_async(PANICKED, move || in_span(consumer, reborrowed, stop)).await {
        Ok(handling) => return handling,
        Err(panic) => panic.to_string(),
    };
    // A failure like any other, so that it ends: a transaction that was open is rolled back, one that is committed is found so.
    let failing = guard_async(PANICKED, async || {
        tracing::error!(consumer = consumer.name, error = panic, "a panic was caught");
        let incoming = in_flight.origin.incoming();
        consumer
            .panicked(incoming, &mut in_flight.routed, &panic, stop)
            .await
    });
    failing.await.unwrap_or(Handling::Later {
        retry_after: consumer.shared.config.backoff.max,
    })
}

async fn in_span<D: Delivery>(consumer: &Consumer, in_flight: &mut InFlight<D>, stop: &Stop) -> Handling {
    if let (Route::NotWanted, Origin::Broker(message)) = (&in_flight.routed.route, &in_flight.origin) {
        match guard_async("broker's driver", || message.delivery.is_asked_for()).await {
            // Nobody knows, so it goes back like an event that somebody has asked for.
            Ok(Ok(true)) | Err(_) => in_flight.routed.route = Route::UnknownEvent,
            Ok(Ok(false)) => {}
            Ok(Err(error)) => return consumer.unknown_wishes(&error),
        }
    }
    if let Origin::Broker(message) = &in_flight.origin
        && consumer.asks_ahead(&mut in_flight.routed)
    {
        let asked = guard_async("broker's driver", || message.delivery.has_predecessors()).await;
        if !consumer.begins_late(asked, &mut in_flight.routed) {
            in_flight.routed.memory.early = None;
        }
    }
    let span = telemetry::handle_span(consumer.name, in_flight.routed.message.as_deref().ok());
    let handling = consumer
        .handle(in_flight.origin.incoming(), &mut in_flight.routed, stop)
        .instrument(span.clone())
        .await;
    let Origin::Broker(message) = &in_flight.origin else {
        return handling;
    };
    if !consumer.may_begin_late(handling, &in_flight.routed) {
        return handling;
    }
    let asked = guard_async("broker's driver", || message.delivery.has_predecessors()).await;
    if !consumer.begins_late(asked, &mut in_flight.routed) {
        return handling;
    }
    consumer
        .handle(in_flight.origin.incoming(), &mut in_flight.routed, stop)
        .instrument(span)
        .await
}

/// Counts what became of a message.
fn report(consumer: &Consumer, routed: &RoutedMessage, handling: Handling) {
    let event_type = match (&routed.message, &routed.route) {
        (Err(_), _) => telemetry::UNREADABLE,
        (_, Route::UnknownVersion) => telemetry::UNKNOWN_VERSION,
        (_, Route::NotWanted) => telemetry::NOT_ASKED_FOR,
        (Ok(message), Route::Handler { handler, .. }) => handler.label(message),
        (Ok(message), _) => &message.event_type,
    };
    match handling {
        Handling::Handled => {
            let lag = routed.message.as_deref().map(telemetry::lag).unwrap_or_default();
            telemetry::handled(consumer.name, event_type, lag);
        }
        Handling::Duplicate => telemetry::duplicate(consumer.name, event_type),
        Handling::Failed { .. } => telemetry::retried(consumer.name, event_type),
        Handling::Deferred { .. } => telemetry::deferred(consumer.name, event_type),
        Handling::DeadLettered => telemetry::dead_letter(consumer.name, event_type),
        // A dead letter that somebody else has dealt with meanwhile.
        Handling::Skipped if routed.letter.is_some() => {}
        Handling::Skipped => telemetry::skipped(consumer.name, event_type),
        Handling::SentBack { .. } => telemetry::sent_back(consumer.name, event_type),
        Handling::Later { .. } => telemetry::postponed(consumer.name, event_type),
        Handling::Early { .. } | Handling::Returned => {}
    }
}

#[cfg(test)]
mod tests {
    use outbox_core::{ConsumerSpec, Subscriber as _, Subscription as _};
    use outbox_testing::MemoryBroker;
    use tokio::time::{Instant, timeout};

    use super::*;

    /// Progress that is told of all deliveries of a process takes some time, and some of them go back meanwhile.
    #[tokio::test(start_paused = true)]
    async fn progress_does_not_undo_the_time_of_what_went_back() {
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
