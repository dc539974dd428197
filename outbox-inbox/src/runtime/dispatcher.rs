//! The main loop of one consumer. The loop moves messages between these components:
//!
//! - [`Receiver`] receives deliveries.
//! - [`DeadLetterPolls`] finds dead letters to retry.
//! - [`Unanswered`] keeps unacknowledged messages, and reports progress to the broker.
//! - [`Scheduler`] keeps the order, and selects what runs.
//! - [`Jobs`] runs handlers.
//!
//! Invariant: a failed message precedes all later messages of its lane (usually one aggregate),
//! even if the broker redelivers it.

use std::sync::Arc;
use std::time::Duration;

use outbox_core::Subscriber;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at, sleep_until};
use tokio_util::task::TaskTracker;

use super::consumer::{Consumer, Stop};
use super::receive::dead_letters::{self, DeadLetterPolls};
use super::receive::origin::Origin;
use super::receive::receiver::{DeliveryOf, Idleness, Received, Receiver, SILENCE_MAX};
use super::receive::unanswered::{InFlight, Unanswered};
use super::run::job::{EndedJob, EndedLane, Jobs};
use super::schedule::lanes::LaneKey;
use super::schedule::scheduler::Scheduler;
use crate::dead_letter::StoredDeadLetter;
use crate::dedup::{Outcome, Retry};
use crate::handler::Order;
use crate::telemetry;

pub(crate) struct Dispatcher<S: Subscriber> {
    pub(super) consumer: Arc<Consumer>,
    pub(super) stop: Stop,
    tasks: TaskTracker,
    pub(super) receiver: Receiver<S>,
    letters: DeadLetterPolls,
    pub(super) unanswered: Unanswered<DeliveryOf<S>>,
    pub(super) scheduler: Scheduler<DeliveryOf<S>>,
    pub(super) jobs: Jobs<DeliveryOf<S>>,
}

impl<S: Subscriber> Dispatcher<S> {
    pub(super) fn new(
        subscriber: Arc<S>,
        consumer: Arc<Consumer>,
        subscription: Option<S::Subscription>,
        stop: Stop,
        tasks: TaskTracker,
        idleness: Option<Idleness>,
    ) -> Self {
        Self {
            letters: DeadLetterPolls::new(consumer.clone()),
            unanswered: Unanswered::new(consumer.clone(), stop.clone(), tasks.clone()),
            scheduler: Scheduler::new(consumer.clone()),
            jobs: Jobs::new(consumer.clone(), stop.clone(), tasks.clone()),
            receiver: Receiver::new(subscriber, consumer.clone(), subscription, idleness),
            consumer,
            stop,
            tasks,
        }
    }

    pub(super) async fn run(mut self) {
        let soft = self.stop.soft.clone();
        let mut progress = every(self.consumer.progress_interval());
        let mut watch = every(SILENCE_MAX);
        let mut letters = dead_letters::times();
        self.receiver.follow_pause();
        loop {
            self.consumer.vitals.turned();
            self.scheduler.lanes.received_for(self.receiver.take_waited());
            let is_paused = self.receiver.is_paused();
            while !is_paused && let Some(job) = self.scheduler.step() {
                self.jobs.start(job);
            }
            let has_room = self.make_room();
            let (lanes, predecessors) = (&mut self.scheduler.lanes, &mut self.scheduler.predecessors);
            tokio::select! {
                biased;
                () = soft.cancelled() => break,
                Some(ended) = self.jobs.ended() => self.job_ended(ended),
                _ = progress.tick() => self.report_progress(),
                _ = watch.tick() => self.receiver.watch(has_room, self.unanswered.usage().messages).await,
                _ = letters.tick(), if has_room && !is_paused => self.poll_letters(),
                Some(found) = self.letters.found() => self.accept_letters(found),
                () = until(lanes.next_release()) => lanes.release(Instant::now()),
                () = until(predecessors.next_poll()) => self.poll_predecessors(),
                Some(found) = predecessors.found() => predecessors.accept(&found, lanes),
                received = self.receiver.next(has_room || is_paused) => self.received(received).await,
            }
        }
        self.shut_down(progress).await;
    }

    async fn received(&mut self, received: Received<S>) {
        if matches!(received, Received::Nothing) {
            let (jobs, messages) = (self.scheduler.has_jobs(), self.scheduler.has_messages());
            if self
                .receiver
                .all_idle(jobs, messages, self.letters.is_settled())
                .await
            {
                self.stop.soft.cancel();
            }
            return;
        }
        for delivery in self.receiver.step(received) {
            self.accept(delivery);
        }
        while self.scheduler.has_room(self.unanswered.usage())
            && let Some(delivery) = self.receiver.arrived()
        {
            self.accept(delivery);
        }
    }

    fn accept(&mut self, delivery: DeliveryOf<S>) {
        let (origin, routed) = self.receiver.take_in(delivery);
        let deliveries = origin.incoming().delivery_count;
        let (key, mut in_flight) = self.unanswered.enter(origin, routed);
        let lanes = &mut self.scheduler.lanes;
        if let Some(awaited) = lanes.arrived(&key, in_flight.order_key, deliveries <= 1)
            && awaited.deliveries + 1 == deliveries
        {
            in_flight.routed.memory = awaited.memory;
        }
        lanes.push(key, in_flight, Instant::now());
    }

    fn make_room(&mut self) -> bool {
        if self.scheduler.is_crowded(self.unanswered.usage()) {
            let now = Instant::now();
            while let Some(mut departure) = self.scheduler.next_departure(self.unanswered.usage(), now) {
                let items = std::mem::take(&mut departure.items);
                let (consumer, deliveries, absence) = (self.consumer.name, items.len(), departure.absence);
                tracing::debug!(
                    consumer,
                    deliveries,
                    ?absence,
                    "memory bound reached, deliveries return to the broker"
                );
                telemetry::returned(consumer, "room", deliveries);
                let left = self.unanswered.give_back(items, absence);
                self.scheduler.departed(departure, &left, now);
            }
        }
        self.scheduler.may_receive(self.unanswered.usage())
    }

    fn job_ended(&mut self, ended: EndedJob<DeliveryOf<S>>) {
        self.show();
        self.scheduler.ended(&ended);
        for lane in ended.lanes {
            self.lane_ended(lane);
        }
    }

    fn lane_ended(&mut self, lane: EndedLane<DeliveryOf<S>>) {
        let now = Instant::now();
        let (consumer, tally) = (&self.consumer, &self.consumer.shared.tally);
        self.scheduler.predecessors.forget(&lane.key);
        let mut failed_again = false;
        for (local_id, outcome) in lane.over {
            let origin = self.unanswered.answered(local_id);
            failed_again |=
                origin.is_some_and(|origin| origin.letter().is_some()) && outcome == Outcome::DeadLettered;
            tally.count(&outcome);
            consumer.vitals.ended(&outcome);
        }
        if failed_again {
            // If an operator marks all dead letters of the aggregate again, the next poll must
            // return the failed dead letter first.
            for letter in self.scheduler.lanes.withdraw(&lane.key, InFlight::is_letter, now) {
                self.unanswered.answered(letter.local_id);
            }
        }
        let Some((in_flight, outcome)) = lane.stopped else {
            let until = self.scheduler.wait_for_number(&lane.key, lane.over_to, now);
            let lanes = &mut self.scheduler.lanes;
            lanes.finish(&lane.key, Vec::new(), until, now);
            lanes.set_moving(&lane.key, until.is_some(), now);
            return;
        };
        tally.count(&outcome);
        let (lanes, after) = (&mut self.scheduler.lanes, outcome.after());
        if in_flight.is_letter() && outcome.retry() == Some(Retry::Deferred) {
            let behind = lanes.withdraw(&lane.key, InFlight::is_letter, now);
            lanes.finish(&lane.key, Vec::new(), None, now);
            let letters = std::iter::once(in_flight).chain(behind).collect();
            lanes.set_apart(LaneKey::Letters(lane.key), letters, now + after, now);
            return;
        }
        let back = std::iter::once(in_flight).chain(lane.rest).collect();
        if consumer.order == Order::None || outcome == Outcome::Returned {
            lanes.finish(&lane.key, Vec::new(), None, now);
            self.unanswered.give_back(back, after);
            return;
        }
        let mut is_moving = false;
        if let Some(Retry::Early { last }) = outcome.retry()
            && consumer.keeps_sequences()
        {
            self.scheduler.predecessors.watch(&lane.key, last, now);
            is_moving = last.is_some();
        }
        lanes.finish(&lane.key, back, Some(now + after), now);
        lanes.set_moving(&lane.key, is_moving, now);
    }

    fn poll_predecessors(&mut self) {
        if let Some(poll) = self.scheduler.predecessors.poll(self.consumer.clone()) {
            self.tasks.spawn(poll);
        }
    }

    fn poll_letters(&mut self) {
        let held = self.unanswered.held_letters(self.scheduler.lanes.apart());
        self.tasks.spawn(self.letters.poll(held));
    }

    /// Skips a dead letter while memory holds an earlier one, because lanes would sort dead letters
    /// of a recreated stream first. The next poll returns a skipped dead letter again.
    fn accept_letters(&mut self, letters: Vec<StoredDeadLetter>) {
        for letter in letters {
            if self.unanswered.holds_older(&letter) {
                continue;
            }
            let letter = Arc::new(letter);
            let routed = self.consumer.routed_letter(letter.clone());
            let (key, in_flight) = self.unanswered.enter(Origin::DeadLetter(letter), routed);
            let beside = LaneKey::Letters(Arc::new(key.clone()));
            let lanes = &mut self.scheduler.lanes;
            let key = match lanes.contains(&beside) {
                true => beside,
                false => key,
            };
            lanes.push(key, in_flight, Instant::now());
        }
    }

    fn show(&self) {
        let (consumer, messages) = (self.consumer.name, self.unanswered.usage().messages);
        telemetry::gauge(telemetry::IN_FLIGHT, consumer, messages);
        telemetry::gauge(telemetry::BLOCKED, consumer, self.scheduler.lanes.blocked());
    }

    pub(super) fn report_progress(&mut self) {
        self.show();
        self.unanswered.report_progress();
    }
}

fn every(period: Duration) -> Interval {
    let mut interval = interval_at(Instant::now() + period, period);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    interval
}

async fn until(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => std::future::pending().await,
    }
}
