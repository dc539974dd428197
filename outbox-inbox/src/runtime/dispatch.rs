//! The loop of one consumer: keeps the lanes, starts jobs, and keeps the broker informed.
//!
//! Invariants: memory is bounded ([`super::capacity`]); from receipt to answer the broker hears of each delivery every third of `ack_wait`, whatever its handler does
//! to its thread; a message that failed waits in front of its lane, here or at the broker, so that nothing of its aggregate overtakes it.
//! Not here: receiving ([`super::receive`]), which job is next ([`super::turns`]), handling ([`super::job`]), bounds ([`super::capacity`]), the end ([`super::shutdown`]).

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use outbox_core::Subscriber;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at, sleep_until};
use tokio_util::task::TaskTracker;

use super::beginnings::Beginnings;
use super::consumer::{Consumer, Stop};
use super::deliveries::{Deliveries, DeliveryOf, SILENCE_MAX, TROUBLE};
use super::idle::Idle;
use super::job::{self, Ended, InFlight, Origin, Taken};
use super::lanes::{LaneKey, Lanes, Queue};
use super::limits::Limits;
use super::predecessors::Predecessors;
use super::refill::Refill;
use super::retries::{self, Held, Retries};
use super::returning::Returning;
use super::routed::{Handling, Left, RoutedMessage};
use super::slots::{MEAN_WEIGHT, Slots, to_f64};
use crate::dead_letter::StoredDeadLetter;
use crate::handler::Order;
use crate::panics::guard_async;
use crate::telemetry;

/// The loop of one consumer.
pub(super) struct Dispatcher<S: Subscriber> {
    pub(super) subscriber: Arc<S>,
    pub(super) consumer: Arc<Consumer>,
    pub(super) stop: Stop,
    pub(super) tasks: TaskTracker,
    pub(super) deliveries: Deliveries<S>,
    /// What the deliveries of the subscription show, where sequences are kept.
    pub(super) beginnings: Beginnings,
    /// Whether the consumer is paused, as it was told last.
    pub(super) is_paused: bool,
    pub(super) paused: watch::Receiver<bool>,
    pub(super) failures: u32,
    /// Time spent waiting for deliveries that `lanes` has not been told of.
    waited: Duration,
    pub(super) heard_at: Instant,
    pub(super) lanes: Lanes<InFlight<DeliveryOf<S>>>,
    /// Everything that has no answer yet, by local id.
    pub(super) unanswered: HashMap<u64, Origin<DeliveryOf<S>>>,
    /// What is on its way back to the broker. No longer among `unanswered`.
    pub(super) returning: Returning<DeliveryOf<S>>,
    /// What `unanswered` takes in memory.
    pub(super) bytes: usize,
    pub(super) refill: Refill,
    last_local_id: u64,
    pub(super) jobs: usize,
    pub(super) slots: Slots,
    /// Jobs that wait for the limits of their handlers. Their lanes stand still, as if they ran.
    pub(super) limits: Limits<Taken<DeliveryOf<S>>>,
    /// Whether what has waited for a limit has had the last turn.
    pub(super) limited_first: bool,
    /// Mean time that a message occupies a job, in seconds. Failing ones do not count: they may take as long as a handler may.
    pub(super) mean: f64,
    pub(super) predecessors: Predecessors,
    pub(super) ended: mpsc::UnboundedReceiver<JobEnded<DeliveryOf<S>>>,
    end: mpsc::UnboundedSender<JobEnded<DeliveryOf<S>>>,
    progress: Option<JoinHandle<()>>,
    pub(super) retries: Retries,
    /// If the inbox is to stop as soon as all consumers are idle: which are, and the index of this one.
    pub(super) idle: Option<(Arc<Idle>, usize)>,
}

/// A job is over.
pub(super) struct JobEnded<D> {
    from: Queue,
    pub(super) lanes: Vec<Ended<D>>,
    messages: usize,
    took: Duration,
    /// Its handler, if that has limits.
    limited: Option<&'static str>,
}

impl<S: Subscriber> Dispatcher<S> {
    pub(super) fn new(
        subscriber: Arc<S>,
        consumer: Arc<Consumer>,
        subscription: Option<S::Subscription>,
        stop: Stop,
        tasks: TaskTracker,
        idle: Option<(Arc<Idle>, usize)>,
    ) -> Self {
        let (end, ended) = mpsc::unbounded_channel();
        let concurrency = consumer.shared.config.concurrency;
        let lanes = Lanes::new(consumer.prefetch());
        let deliveries = match subscription {
            Some(subscription) => Deliveries::Open(subscription),
            None => Deliveries::Paused(Instant::now() + TROUBLE.min, None),
        };
        let paused = consumer.paused.subscribe();
        let limits = Limits::new(consumer.limits(), consumer.in_flight_max());
        Self {
            subscriber,
            consumer,
            stop,
            tasks,
            deliveries,
            beginnings: Beginnings::default(),
            is_paused: false,
            paused,
            failures: 0,
            waited: Duration::ZERO,
            heard_at: Instant::now(),
            lanes,
            unanswered: HashMap::new(),
            returning: Returning::default(),
            last_local_id: 0,
            bytes: 0,
            refill: Refill::default(),
            jobs: 0,
            slots: Slots::new(concurrency),
            limits,
            limited_first: false,
            mean: 0.0,
            predecessors: Predecessors::default(),
            ended,
            end,
            progress: None,
            retries: Retries::default(),
            idle,
        }
    }

    /// Runs until the soft stop, and then until what is running has ended.
    ///
    /// Dropping it loses no message: each comes again after `ack_wait`.
    pub(super) async fn run(mut self) {
        let soft = self.stop.soft.clone();
        let mut progress = every(self.consumer.progress_interval());
        let mut watch = every(SILENCE_MAX);
        let mut retries = retries::times();
        self.follow_pause();
        loop {
            self.consumer.vitals.turned();
            self.lanes.received_for(std::mem::take(&mut self.waited));
            self.start_jobs();
            let has_room = self.make_room();
            tokio::select! {
                biased;
                () = soft.cancelled() => break,
                Some(ended) = self.ended.recv() => self.job_ended(ended),
                _ = progress.tick() => self.tell_progress(),
                _ = watch.tick() => self.watch(has_room).await,
                Ok(()) = self.paused.changed() => self.follow_pause(),
                _ = retries.tick(), if has_room && !self.is_paused => self.poll_retries(),
                Some(found) = self.retries.found() => self.accept_retries(found),
                () = until(self.lanes.next_release()) => self.lanes.release(Instant::now()),
                () = until(self.limits.due()), if self.has_slot() && !self.is_paused => {}
                () = until(self.predecessors.next_poll()) => self.poll_predecessors(),
                Some(found) = self.predecessors.found() => self.predecessors.accept(&found, &mut self.lanes),
                received = self.deliveries.next(self.idle.is_some(), &mut self.waited), if has_room || self.is_paused => self.received(received).await,
            }
        }
        self.shut_down(progress).await;
    }

    pub(super) fn start_job(&mut self, from: Queue, taken: Taken<DeliveryOf<S>>) {
        self.jobs += 1;
        if from != Queue::Ready {
            self.slots.suspect_begins();
        }
        let (consumer, stop, end) = (self.consumer.clone(), self.stop.clone(), self.end.clone());
        let messages = taken.iter().map(|(_, items)| items.len()).sum();
        let limited = self.limited(&taken);
        // A task that nobody aborts, because it begins transactions.
        self.tasks.spawn(async move {
            let _begun = consumer.vitals.begin_job();
            let started = Instant::now();
            let copies = taken.clone();
            let lanes = match guard_async("job", || job::run(&consumer, taken, &stop)).await {
                Ok(lanes) => lanes,
                // Not logged: the subscriber may be what panics.
                Err(_) => job::lost(&consumer, copies),
            };
            // Nobody listens after the end of the loop.
            let _ = end.send(JobEnded {
                from,
                lanes,
                messages,
                took: started.elapsed(),
                limited,
            });
        });
    }

    fn job_ended(&mut self, ended: JobEnded<DeliveryOf<S>>) {
        self.show();
        self.jobs -= 1;
        if let Some(handler) = ended.limited {
            self.limits.ended(handler, ended.took);
        }
        match ended.from {
            Queue::Ready => self.slots.other_ended(ended.took),
            Queue::Doubtful | Queue::Retries => self.slots.suspect_ended(ended.took),
        }
        if ended.lanes.iter().all(|lane| lane.stopped.is_none()) {
            let each = ended.took.as_secs_f64() / to_f64(ended.messages.max(1));
            self.mean += MEAN_WEIGHT * (each - self.mean);
        }
        for lane in ended.lanes {
            self.lane_ended(lane);
        }
    }

    /// Counts what ended, and puts the rest back in front of its lane.
    fn lane_ended(&mut self, lane: Ended<DeliveryOf<S>>) {
        let now = Instant::now();
        self.predecessors.forget(&lane.key);
        for (local_id, handling) in lane.over {
            let letter = matches!(self.unanswered.get(&local_id), Some(Origin::DeadLetter(_)));
            if letter && handling == Handling::DeadLettered {
                self.forget_retries(&lane.key, now);
            }
            self.answered(local_id);
            self.consumer.shared.tally.count(handling);
            self.consumer.vitals.ended(handling);
        }
        let Some((in_flight, handling)) = lane.stopped else {
            let until = self.wait_for_number(&lane.key, lane.over_to, now);
            self.lanes.finish(&lane.key, Vec::new(), until, now);
            self.lanes.set_moving(&lane.key, until.is_some(), now);
            return;
        };
        self.consumer.shared.tally.count(handling);
        let retry_after = handling.retry_after();
        if let (Origin::DeadLetter(_), Handling::Deferred { .. }) = (&in_flight.origin, handling) {
            self.letter_waits(&lane.key, in_flight, now + retry_after, now);
            return;
        }
        if self.consumer.order == Order::None || handling == Handling::Returned {
            // Nothing waits for it.
            self.lanes.finish(&lane.key, Vec::new(), None, now);
            let back = std::iter::once(in_flight).chain(lane.rest).collect();
            self.give_back(back, retry_after);
            return;
        }
        let mut is_moving = false;
        if let Handling::Early { came_to, .. } = handling
            && self.consumer.keeps_sequences()
        {
            self.predecessors.watch(&lane.key, came_to, now);
            is_moving = came_to.is_some();
        }
        let back = std::iter::once(in_flight).chain(lane.rest).collect();
        self.lanes.finish(&lane.key, back, Some(now + retry_after), now);
        self.lanes.set_moving(&lane.key, is_moving, now);
    }

    /// The time before which the first message of a lane must not claim its turn after the sequence `done` took effect, because other processes have the messages
    /// between them.
    fn wait_for_number(&mut self, key: &Arc<LaneKey>, done: u64, now: Instant) -> Option<Instant> {
        let is_numbered = self.consumer.keeps_sequences() && matches!(**key, LaneKey::Aggregate(..));
        // With `done` 0, nothing took effect that tells where the aggregate is.
        let next = self
            .lanes
            .first_order_key(key)
            .filter(|_| is_numbered && done > 0)?;
        self.predecessors.watch_gap(key, done, next, now)
    }

    fn poll_predecessors(&mut self) {
        if let Some(poll) = self.predecessors.poll(self.consumer.clone()) {
            self.tasks.spawn(poll);
        }
    }

    fn poll_retries(&mut self) {
        let mut held = Held::default();
        let is_of_aggregates = self.consumer.order == Order::Aggregate;
        for letter in self.unanswered.values().filter_map(Origin::letter) {
            held.known.insert(letter.id);
            held.aggregates
                .extend(letter.aggregate.clone().filter(|_| is_of_aggregates));
        }
        held.ready = held.aggregates.len().saturating_sub(self.lanes.apart());
        if is_of_aggregates {
            // The table shows them as open until they have gone back.
            let leaving = self.returning.origins();
            let leaving = leaving.iter().filter_map(Origin::letter);
            held.aggregates
                .extend(leaving.filter_map(|letter| letter.aggregate.clone()));
        }
        let room = self
            .consumer
            .shared
            .config
            .buffer_bytes
            .saturating_sub(self.bytes);
        self.tasks
            .spawn(self.retries.poll(self.consumer.clone(), held, room));
    }

    /// Dead letters wait in the lane of their aggregate like any other message, or where those of the aggregate wait that are not ready yet.
    ///
    /// Lanes have the order of the stream, and a stream that was made anew counts from 1 again. So a letter is left out as long as one is here that must be
    /// tried first: the table shows that one as open, because its try has begun. The next poll finds the letter again.
    fn accept_retries(&mut self, letters: Vec<StoredDeadLetter>) {
        let leaving = self.returning.origins();
        for letter in letters {
            if self.consumer.order != Order::None && self.holds_older(&letter, &leaving) {
                continue;
            }
            let letter = Arc::new(letter);
            let routed = self.consumer.routed_letter(letter.clone());
            let (key, in_flight) = self.enter(Origin::DeadLetter(letter), routed);
            let beside = LaneKey::Letters(Arc::new(key.clone()));
            let key = match self.lanes.contains(&beside) {
                true => beside,
                false => key,
            };
            self.lanes.push(key, in_flight, Instant::now());
        }
    }

    /// Whether a dead letter of the same aggregate is here that is of an older stream, or `leaving`: that one is marked again in a moment, and both come in their
    /// order then.
    fn holds_older(&self, letter: &StoredDeadLetter, leaving: &[Origin<DeliveryOf<S>>]) -> bool {
        let is_strict = self.consumer.order == Order::Strict;
        let precedes = |left: &Arc<StoredDeadLetter>| {
            is_strict || left.aggregate.is_some() && left.aggregate == letter.aggregate
        };
        let mut held = self.unanswered.values().filter_map(Origin::letter);
        held.any(|held| held.is_of_older_stream_than(letter))
            || leaving.iter().filter_map(Origin::letter).any(precedes)
    }

    /// A dead letter whose handler says *not yet* waits beside the lane of its aggregate, and so do the dead letters behind it, which must not overtake it. The
    /// aggregate has gone on without them before, and goes on. None of them goes back: the next look would find it again.
    fn letter_waits(
        &mut self,
        lane: &Arc<LaneKey>,
        letter: InFlight<DeliveryOf<S>>,
        until: Instant,
        now: Instant,
    ) {
        let is_letter = |in_flight: &InFlight<_>| matches!(in_flight.origin, Origin::DeadLetter(_));
        let behind = self.lanes.withdraw(lane, is_letter, now);
        self.lanes.finish(lane, Vec::new(), None, now);
        let letters = std::iter::once(letter).chain(behind).collect();
        self.lanes
            .set_apart(LaneKey::Letters(lane.clone()), letters, until, now);
    }

    /// A dead letter failed again, and with it those behind it in its aggregate have been taken off the list. They must not run if an operator marks all of
    /// them again meanwhile: the one that failed comes first, in the next look.
    fn forget_retries(&mut self, lane: &Arc<LaneKey>, now: Instant) {
        let is_letter = |in_flight: &InFlight<_>| matches!(in_flight.origin, Origin::DeadLetter(_));
        for letter in self.lanes.withdraw(lane, is_letter, now) {
            self.answered(letter.local_id);
        }
    }

    /// The broker has an answer, or one is on its way to it.
    pub(super) fn answered(&mut self, local_id: u64) {
        if let Some(origin) = self.unanswered.remove(&local_id) {
            self.bytes -= origin.bytes();
        }
    }

    pub(super) fn enter(
        &mut self,
        origin: Origin<DeliveryOf<S>>,
        routed: RoutedMessage,
    ) -> (LaneKey, InFlight<DeliveryOf<S>>) {
        self.last_local_id += 1;
        let local_id = self.last_local_id;
        self.bytes += origin.bytes();
        self.unanswered.insert(local_id, origin.clone());
        let key = self.lane_of(&routed);
        let order_key = self
            .number_of(&key, &routed)
            .unwrap_or(origin.incoming().stream_sequence);
        let health = self.consumer.health_of(&routed);
        let in_flight = InFlight {
            local_id,
            order_key,
            origin,
            routed,
            health,
        };
        (key, in_flight)
    }

    /// The message's number, where numbers are waited for. They are the order then, whatever the order of the stream: a message must not wait behind those
    /// that wait for it.
    fn number_of(&self, key: &LaneKey, routed: &RoutedMessage) -> Option<u64> {
        match (key, &routed.message) {
            (LaneKey::Aggregate(..), Ok(message)) if self.consumer.keeps_sequences() => message.sequence,
            _ => None,
        }
    }

    pub(super) fn lane_of(&self, routed: &RoutedMessage) -> LaneKey {
        match (self.consumer.order, &routed.message) {
            (Order::Strict, _) => LaneKey::All,
            (Order::Aggregate, Ok(message)) if !self.consumer.stands_alone(routed) => {
                LaneKey::Aggregate(message.aggregate.clone(), self.consumer.numbering_source(routed))
            }
            _ => LaneKey::Alone(self.last_local_id),
        }
    }

    /// Gives deliveries back beside the loop: the database may have to be asked, and the loop must tell the broker of the others meanwhile.
    pub(super) fn give_back(&mut self, in_flight: Vec<InFlight<DeliveryOf<S>>>, wait: Duration) -> Left {
        for in_flight in &in_flight {
            self.answered(in_flight.local_id);
        }
        let (consumer, stop) = (self.consumer.clone(), self.stop.clone());
        let (left, task) = self.returning.give_back(in_flight, wait, consumer, stop);
        self.tasks.spawn(task);
        left
    }

    /// Shows how much is in memory: at each end of a job, and with each progress, because no job may end for long.
    fn show(&self) {
        telemetry::in_memory(self.consumer.name, self.unanswered.len(), self.lanes.blocked());
        telemetry::limited(self.consumer.name, self.limits.waiting());
    }

    /// Tells the broker of everything in memory, beside the loop.
    pub(super) fn tell_progress(&mut self) {
        self.show();
        if self.progress.as_ref().is_some_and(|task| !task.is_finished()) {
            return;
        }
        let mut origins = self.returning.origins();
        origins.extend(self.unanswered.values().cloned());
        self.progress = Some(self.tasks.spawn(async move {
            for origin in origins {
                origin.progress().await;
            }
        }));
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
