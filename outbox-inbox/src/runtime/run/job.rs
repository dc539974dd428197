//! Runs messages that the scheduler selected together.
//!
//! Invariant: the acknowledgement follows the commit. If a run ends without a stored outcome, no
//! later message of its lane runs.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use outbox_core::Delivery;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;
use tracing::Instrument as _;

use super::{attempt, batch};
use crate::dedup::{Outcome, Retry};
use crate::panics::{guard, guard_async};
use crate::runtime::conclude::unknown_event;
use crate::runtime::consumer::{Consumer, Stop};
use crate::runtime::message::{Route, RoutedMessage};
use crate::runtime::receive::origin::Origin;
use crate::runtime::receive::unanswered::InFlight;
use crate::runtime::schedule::lanes::{LaneKey, Queue};
use crate::telemetry;

const PANICKED: &str = "handling of the message";

pub(crate) const ANSWERS_MAX: Duration = Duration::from_secs(2);

pub(crate) type Taken<D> = Vec<(Arc<LaneKey>, Vec<InFlight<D>>)>;

pub(crate) struct Job<D> {
    pub(crate) from: Queue,
    pub(crate) lanes: Taken<D>,
}

pub(crate) struct EndedJob<D> {
    pub(crate) from: Queue,
    pub(crate) lanes: Vec<EndedLane<D>>,
    pub(crate) messages: usize,
    pub(crate) took: Duration,
}

pub(crate) struct EndedLane<D> {
    pub(crate) key: Arc<LaneKey>,
    pub(crate) over: Vec<(u64, Outcome)>,
    pub(crate) over_to: u64,
    pub(crate) stopped: Option<(InFlight<D>, Outcome)>,
    pub(crate) rest: Vec<InFlight<D>>,
}

pub(crate) struct Jobs<D> {
    consumer: Arc<Consumer>,
    stop: Stop,
    tasks: TaskTracker,
    ended: mpsc::UnboundedReceiver<EndedJob<D>>,
    end: mpsc::UnboundedSender<EndedJob<D>>,
}

impl<D: Delivery> Jobs<D> {
    pub(crate) fn new(consumer: Arc<Consumer>, stop: Stop, tasks: TaskTracker) -> Self {
        let (end, ended) = mpsc::unbounded_channel();
        Self {
            consumer,
            stop,
            tasks,
            ended,
            end,
        }
    }

    pub(crate) fn start(&self, job: Job<D>) {
        let (consumer, stop, end) = (self.consumer.clone(), self.stop.clone(), self.end.clone());
        self.tasks.spawn(async move {
            let _begun = consumer.vitals.begin_job();
            let started = Instant::now();
            let messages = job.lanes.iter().map(|(_, items)| items.len()).sum();
            let copies = job.lanes.clone();
            let lanes = match guard_async("job", || run(&consumer, job.lanes, &stop)).await {
                Ok(lanes) => lanes,
                Err(_) => lost(&consumer, copies),
            };
            let _ = end.send(EndedJob {
                from: job.from,
                lanes,
                messages,
                took: started.elapsed(),
            });
        });
    }

    pub(crate) async fn ended(&mut self) -> Option<EndedJob<D>> {
        self.ended.recv().await
    }
}

async fn run<D: Delivery>(consumer: &Consumer, taken: Taken<D>, stop: &Stop) -> Vec<EndedLane<D>> {
    let together = together(consumer, &taken, stop).await;
    let mut outcomes = together.map(Vec::into_iter);
    let mut ended = Vec::with_capacity(taken.len());
    for (key, items) in taken {
        let mut lane = EndedLane {
            key,
            over: Vec::with_capacity(items.len()),
            over_to: 0,
            stopped: None,
            rest: Vec::new(),
        };
        for mut in_flight in items {
            let outcome = outcomes.as_mut().and_then(Iterator::next).flatten();
            if lane.stopped.is_some() {
                in_flight.routed.memory.deferred |= outcome.as_ref().is_some_and(is_deferred);
                lane.rest.push(in_flight);
                continue;
            }
            let outcome = match outcome {
                Some(outcome) => outcome,
                None if stop.soft.is_cancelled() => Outcome::Returned,
                None => one(consumer, &mut in_flight, stop).await,
            };
            if let Err(error) = guard("metrics recorder", || {
                report(consumer, &in_flight.routed, &outcome)
            }) {
                tracing::error!(consumer = consumer.name, %error, "outcome of a message was not counted");
            }
            in_flight.note_health(&outcome);
            in_flight.routed.memory.deferred |= is_deferred(&outcome);
            if let Outcome::SentBack { after } = outcome {
                let told = guard_async("broker's driver", || in_flight.origin.give_back(after)).await;
                if let Err(error) = told {
                    tracing::error!(consumer = consumer.name, %error, "a delivery could not be returned to the broker");
                }
                lane.over.push((in_flight.local_id, outcome));
            } else if outcome.is_final() {
                // If a crash loses the acknowledgement, the redelivered message finds its inbox row
                // and is a duplicate.
                let told = guard_async("broker's driver", || in_flight.origin.acknowledge()).await;
                if let Err(error) = told {
                    tracing::error!(consumer = consumer.name, %error, "acknowledgement was lost");
                }
                lane.over.push((in_flight.local_id, outcome));
                lane.over_to = lane.over_to.max(in_flight.order_key);
            } else {
                lane.stopped = Some((in_flight, outcome));
            }
        }
        ended.push(lane);
    }
    ended
}

/// Messages of a panicked job are retried one by one and counted before they run.
fn lost<D>(consumer: &Consumer, taken: Taken<D>) -> Vec<EndedLane<D>> {
    let outcome = Outcome::postponed(consumer.shared.config.backoff.max);
    let lanes = taken.into_iter().map(|(key, mut items)| {
        for in_flight in &mut items {
            in_flight.routed.memory.count_first = true;
        }
        let mut items = items.into_iter();
        EndedLane {
            key,
            over: Vec::new(),
            over_to: 0,
            stopped: items.next().map(|first| (first, outcome.clone())),
            rest: items.collect(),
        }
    });
    lanes.collect()
}

async fn together<D: Delivery>(
    consumer: &Consumer,
    taken: &Taken<D>,
    stop: &Stop,
) -> Option<Vec<Option<Outcome>>> {
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
    let handling = batch::handle(consumer, &members, handler, stop).instrument(span);
    AssertUnwindSafe(handling).catch_unwind().await.ok().flatten()
}

async fn one<D: Delivery>(consumer: &Consumer, in_flight: &mut InFlight<D>, stop: &Stop) -> Outcome {
    let reborrowed = &mut *in_flight;
    let panic = match guard_async(PANICKED, move || in_span(consumer, reborrowed, stop)).await {
        Ok(outcome) => return outcome,
        Err(panic) => panic.to_string(),
    };
    let failing = guard_async(PANICKED, async || {
        tracing::error!(consumer = consumer.name, error = panic, "a panic was caught");
        let incoming = in_flight.origin.incoming();
        attempt::handle(consumer, incoming, &mut in_flight.routed, stop, Some(&panic)).await
    });
    let later = || Outcome::postponed(consumer.shared.config.backoff.max);
    failing.await.unwrap_or_else(|_| later())
}

async fn in_span<D: Delivery>(consumer: &Consumer, in_flight: &mut InFlight<D>, stop: &Stop) -> Outcome {
    if let (Route::NotWanted, Origin::Broker(message)) = (&in_flight.routed.route, &in_flight.origin) {
        match guard_async("broker's driver", || message.delivery().is_asked_for()).await {
            Ok(Ok(true)) | Err(_) => in_flight.routed.route = Route::UnknownEvent,
            Ok(Ok(false)) => {}
            Ok(Err(error)) => return unknown_event::unknown_wishes(consumer, &error),
        }
    }
    let span = telemetry::handle_span(consumer.name, in_flight.routed.message.as_deref().ok());
    let outcome = run_once(consumer, in_flight, stop, &span).await;
    let Origin::Broker(message) = &in_flight.origin else {
        return outcome;
    };
    if !consumer.may_begin_late(&outcome, &in_flight.routed) {
        return outcome;
    }
    let asked = guard_async("broker's driver", || message.delivery().has_predecessors()).await;
    if !consumer.begins_late(asked, &mut in_flight.routed) {
        return outcome;
    }
    run_once(consumer, in_flight, stop, &span).await
}

async fn run_once<D: Delivery>(
    consumer: &Consumer,
    in_flight: &mut InFlight<D>,
    stop: &Stop,
    span: &tracing::Span,
) -> Outcome {
    let incoming = in_flight.origin.incoming();
    let handling = attempt::handle(consumer, incoming, &mut in_flight.routed, stop, None);
    handling.instrument(span.clone()).await
}

fn is_deferred(outcome: &Outcome) -> bool {
    outcome.retry() == Some(Retry::Deferred)
}

fn report(consumer: &Consumer, routed: &RoutedMessage, outcome: &Outcome) {
    let event_type = match (&routed.message, &routed.route) {
        (Err(_), _) => telemetry::UNREADABLE,
        (_, Route::UnknownVersion) => telemetry::UNKNOWN_VERSION,
        (_, Route::NotWanted) => telemetry::NOT_ASKED_FOR,
        (Ok(message), Route::Handler { handler, .. }) => handler.label(message),
        (Ok(message), _) => &message.event_type,
    };
    let name = consumer.name;
    let counter = match (outcome, outcome.retry()) {
        (Outcome::Handled, _) => {
            let lag = routed.message.as_deref().map(telemetry::lag).unwrap_or_default();
            return telemetry::handled(name, event_type, lag);
        }
        (Outcome::Duplicate | Outcome::Buried, _) => telemetry::DUPLICATES,
        (Outcome::DeadLettered, _) => telemetry::DEAD_LETTERS,
        (Outcome::Skipped, _) if routed.letter.is_none() => telemetry::SKIPPED,
        (Outcome::SentBack { .. }, _) => telemetry::SENT_BACK,
        (_, Some(Retry::Failed)) => telemetry::RETRIES,
        (_, Some(Retry::Deferred)) => telemetry::DEFERRED,
        (_, Some(Retry::Postponed)) => telemetry::POSTPONED,
        _ => return,
    };
    telemetry::count(counter, name, event_type);
}
