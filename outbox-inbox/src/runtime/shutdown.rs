//! Shutdown of a consumer: unhandled deliveries return to the broker in stream order.
//!
//! Invariants: until the hard stop, no delivery of an aggregate is returned while a message of the
//! aggregate runs here, or another process would overtake that message. [`ROLLED_BACK_AFTER`] after
//! the hard stop, every delivery is returned. Every wait is bounded.

use std::collections::{HashMap, HashSet};
use std::pin::pin;
use std::time::Duration;

use futures_util::future::join_all;
use outbox_core::{Subscriber, Subscription as _};
use tokio::join;
use tokio::time::{Interval, sleep, timeout};

use super::conclude::failure::{self, CORRECTIONS_MAX};
use super::dispatcher::Dispatcher;
use super::message::Route;
use super::receive::origin::Origin;
use super::receive::receiver::DeliveryOf;
use super::receive::unanswered::InFlight;
use super::run::job::{ANSWERS_MAX, EndedLane};
use super::schedule::lanes::LaneKey;
use crate::dedup::Outcome;
use crate::handler::describe;
use crate::telemetry;

/// Time for rollbacks after the hard stop. Leaves a second of `ROLLBACK_GRACE` in
/// [`crate::runtime::lifecycle`] for the return of deliveries.
const ROLLED_BACK_AFTER: Duration = Duration::from_secs(1);

struct Rest<D> {
    unstarted: Vec<InFlight<D>>,
    running: HashMap<u64, LaneKey>,
}

impl<S: Subscriber> Dispatcher<S> {
    pub(crate) async fn shut_down(mut self, mut progress: Interval) {
        let deliveries = self.receiver.close();
        let mut rest = self.rest();
        self.log_what_runs(&rest);
        let mut subscription = None;
        {
            let returned = self.unanswered.returned();
            let mut stopping = pin!(async { join!(deliveries.stop(), returned).0 });
            let hard = self.stop.hard.clone();
            let mut late = pin!(async {
                hard.cancelled().await;
                sleep(ROLLED_BACK_AFTER).await;
            });
            let mut is_stopped = false;
            loop {
                if is_stopped {
                    self.give_back_what_is_free(&mut rest).await;
                    if !self.scheduler.has_jobs() {
                        break;
                    }
                }
                tokio::select! {
                    (stopped, fetched) = &mut stopping, if !is_stopped => {
                        is_stopped = true;
                        subscription = stopped;
                        self.take_in(fetched, &mut rest);
                    }
                    Some(ended) = self.jobs.ended() => {
                        self.scheduler.ended(&ended);
                        for lane in ended.lanes {
                            self.lane_returned(lane, &mut rest);
                        }
                    }
                    _ = progress.tick() => self.report_progress(),
                    () = &mut late => break,
                }
            }
        }
        self.give_back_all(rest).await;
        if let Some(mut subscription) = subscription
            && let Err(error) = subscription.flush().await
        {
            tracing::debug!(consumer = self.consumer.name, error = %describe(&error), "last acknowledgements may be lost; their messages are redelivered");
        }
        for gauge in [telemetry::IN_FLIGHT, telemetry::BLOCKED] {
            telemetry::gauge(gauge, self.consumer.name, 0);
        }
        tracing::debug!(consumer = self.consumer.name, "consumer stopped");
    }

    fn rest(&mut self) -> Rest<DeliveryOf<S>> {
        let unstarted = self.scheduler.drain();
        for _ in &unstarted {
            self.consumer.shared.tally.count(&Outcome::Returned);
        }
        let waiting: HashSet<u64> = unstarted.iter().map(|in_flight| in_flight.local_id).collect();
        let running = self
            .unanswered
            .origins()
            .filter(|(local_id, _)| !waiting.contains(local_id))
            .map(|(local_id, origin)| {
                let routed = self.consumer.routed(origin.incoming());
                (local_id, self.unanswered.lane_of(&routed))
            })
            .collect();
        Rest { unstarted, running }
    }

    fn log_what_runs(&self, rest: &Rest<DeliveryOf<S>>) {
        let (consumer, messages) = (self.consumer.name, rest.running.len());
        if messages == 0 {
            return;
        }
        let origins = rest.running.keys().filter_map(|id| self.unanswered.get(*id));
        let mut handlers: Vec<_> = origins
            .filter_map(|origin| match self.consumer.routed(origin.incoming()).route {
                Route::Handler { handler, .. } => Some(handler.handler),
                _ => None,
            })
            .collect();
        handlers.sort_unstable();
        handlers.dedup();
        let at_most = self.consumer.shared.config.shutdown_timeout;
        tracing::info!(
            consumer,
            ?handlers,
            messages,
            ?at_most,
            "consumer stops, waiting for running handlers"
        );
    }

    fn take_in(&mut self, fetched: Vec<DeliveryOf<S>>, rest: &mut Rest<DeliveryOf<S>>) {
        for delivery in fetched {
            self.consumer.shared.tally.received();
            self.consumer.shared.tally.count(&Outcome::Returned);
            let origin = Origin::broker(delivery);
            let routed = self.consumer.routed(origin.incoming());
            rest.unstarted.push(self.unanswered.enter(origin, routed).1);
        }
    }

    fn lane_returned(&mut self, lane: EndedLane<DeliveryOf<S>>, rest: &mut Rest<DeliveryOf<S>>) {
        let tally = &self.consumer.shared.tally;
        for (local_id, outcome) in lane.over {
            tally.count(&outcome);
            self.unanswered.answered(local_id);
            rest.running.remove(&local_id);
        }
        if let Some((in_flight, outcome)) = lane.stopped {
            tally.count(&outcome);
            rest.running.remove(&in_flight.local_id);
            rest.unstarted.push(in_flight);
        }
        for in_flight in lane.rest {
            tally.count(&Outcome::Returned);
            rest.running.remove(&in_flight.local_id);
            rest.unstarted.push(in_flight);
        }
    }

    async fn give_back_what_is_free(&mut self, rest: &mut Rest<DeliveryOf<S>>) {
        let busy: HashSet<&LaneKey> = rest.running.values().collect();
        let (wait, free) = std::mem::take(&mut rest.unstarted)
            .into_iter()
            .partition(|in_flight| match self.unanswered.lane_of(&in_flight.routed) {
                LaneKey::Alone(_) => false,
                key => busy.contains(&key),
            });
        rest.unstarted = wait;
        self.give_back_in_order(free, HashMap::new()).await;
    }

    async fn give_back_all(&mut self, rest: Rest<DeliveryOf<S>>) {
        self.give_back_in_order(rest.unstarted, rest.running).await;
    }

    async fn give_back_in_order(
        &mut self,
        mut unstarted: Vec<InFlight<DeliveryOf<S>>>,
        running: HashMap<u64, LaneKey>,
    ) {
        if unstarted.is_empty() && running.is_empty() {
            return;
        }
        // The runtime subtracts attempts that did not run from the stored count. Otherwise the next
        // process may find no attempt left.
        let corrections = unstarted.iter_mut().filter_map(|in_flight| {
            let routed = &mut in_flight.routed;
            let message = routed.message.as_ref().ok()?.clone();
            let consumer = &self.consumer;
            Some(async move { failure::take_back(consumer, routed, &message).await })
        });
        if timeout(CORRECTIONS_MAX, join_all(corrections)).await.is_err() {
            tracing::debug!(
                consumer = self.consumer.name,
                "database does not answer; attempts stay counted although no handler ran"
            );
        }
        let local_ids = unstarted.iter().map(|in_flight| in_flight.local_id);
        let mut origins: Vec<_> = local_ids
            .chain(running.into_keys())
            .filter_map(|local_id| self.unanswered.answered(local_id))
            .collect();
        origins.sort_by_key(|origin| origin.incoming().stream_sequence);
        telemetry::returned(self.consumer.name, "shutdown", origins.len());
        let answers = async {
            for origin in origins {
                origin.give_back(Duration::ZERO).await;
            }
        };
        if timeout(ANSWERS_MAX, answers).await.is_err() {
            tracing::debug!(
                consumer = self.consumer.name,
                "broker connection is blocked; the remaining deliveries are redelivered after ack_wait"
            );
        }
    }
}
