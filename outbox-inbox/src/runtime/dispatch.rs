//! The loop of one consumer: receives, keeps the lanes, starts jobs, and keeps the broker informed.
//!
//! Invariants: memory is bounded ([`super::capacity`]); from receipt to answer the broker hears of each delivery every third of `ack_wait`, whatever its handler does
//! to its thread; a message that failed waits in front of its lane, here or at the broker, so that nothing of its aggregate overtakes it; trouble of the
//! broker pauses and never ends the loop. Not here: handling ([`super::job`]), bounds ([`super::capacity`]),
//! the end ([`super::shutdown`]).

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use outbox_core::retry::Backoff;
use outbox_core::{Delivery, Subscriber, SubscriberError, Subscription};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval, interval_at, sleep_until, timeout};
use tokio_util::task::TaskTracker;

use super::capacity::to_f64;
use super::consumer::{Consumer, Stop, batch_max};
use super::deliveries::{Deliveries, DeliveryOf, Received};
use super::idle::Idle;
use super::job::{self, Ended, InFlight, Origin};
use super::lanes::{LaneKey, Lanes, Queue, RECEIVED_MIN};
use super::predecessors::Predecessors;
use super::retries;
use super::returning::{Left, Returning};
use super::routed::{Handling, RoutedMessage};
use super::slots::{MEAN_WEIGHT, Slots};
use crate::dead_letter::StoredDeadLetter;
use crate::handler::{Order, describe};
use crate::panics::guard_async;
use crate::telemetry;

/// Waits after trouble with the broker.
const TROUBLE: Backoff = Backoff {
    min: Duration::from_millis(100),
    max: Duration::from_secs(10),
};

/// A subscription that has been silent for so long, although the broker has messages, is opened anew.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// Longest wait for the broker's answer while nothing else goes on.
const QUESTION_MAX: Duration = Duration::from_secs(2);

/// The loop of one consumer.
pub(super) struct Dispatcher<S: Subscriber> {
    subscriber: Arc<S>,
    pub(super) consumer: Arc<Consumer>,
    pub(super) stop: Stop,
    pub(super) tasks: TaskTracker,
    pub(super) deliveries: Deliveries<S>,
    failures: u32,
    /// Time of waiting for deliveries that `lanes` has not been told of.
    waited: Duration,
    heard_at: Instant,
    pub(super) lanes: Lanes<InFlight<DeliveryOf<S>>>,
    /// Everything that has no answer yet, by local id.
    pub(super) unanswered: HashMap<u64, Origin<DeliveryOf<S>>>,
    /// What is on its way back to the broker. No longer among `unanswered`.
    pub(super) returning: Returning<DeliveryOf<S>>,
    /// What `unanswered` takes in memory.
    pub(super) bytes: usize,
    last_local_id: u64,
    pub(super) jobs: usize,
    pub(super) slots: Slots,
    /// Mean time that a message occupies a job, in seconds. Failing ones do not count: they may take as long as a handler may.
    pub(super) mean: f64,
    pub(super) predecessors: Predecessors,
    pub(super) ended: mpsc::UnboundedReceiver<JobEnded<DeliveryOf<S>>>,
    end: mpsc::UnboundedSender<JobEnded<DeliveryOf<S>>>,
    progress: Option<JoinHandle<()>>,
    /// Dead letters that were found.
    pub(super) retries: (
        mpsc::UnboundedSender<Vec<StoredDeadLetter>>,
        mpsc::UnboundedReceiver<Vec<StoredDeadLetter>>,
    ),
    /// Stop when all are idle; and this consumer's index.
    idle: Option<(Arc<Idle>, usize)>,
}

pub(super) struct JobEnded<D> {
    from: Queue,
    pub(super) lanes: Vec<Ended<D>>,
    messages: usize,
    took: Duration,
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
        let deliveries = match subscription {
            Some(subscription) => Deliveries::Open(subscription),
            None => Deliveries::Paused(Instant::now() + TROUBLE.min, None),
        };
        Self {
            subscriber,
            consumer,
            stop,
            tasks,
            deliveries,
            failures: 0,
            waited: Duration::ZERO,
            heard_at: Instant::now(),
            lanes: Lanes::default(),
            unanswered: HashMap::new(),
            returning: Returning::default(),
            last_local_id: 0,
            bytes: 0,
            jobs: 0,
            slots: Slots::new(concurrency),
            mean: 0.0,
            predecessors: Predecessors::default(),
            ended,
            end,
            progress: None,
            retries: mpsc::unbounded_channel(),
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
        // At once, so that a process that starts takes up what was marked while none ran.
        let mut retries = interval(retries::EVERY);
        retries.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            self.consumer.vitals.turned();
            self.lanes.receives_for(std::mem::take(&mut self.waited));
            self.start_jobs();
            let has_room = self.make_room();
            tokio::select! {
                biased;
                () = soft.cancelled() => break,
                Some(ended) = self.ended.recv() => self.job_ended(ended),
                _ = progress.tick() => self.tell_progress(),
                _ = watch.tick() => self.watch(has_room).await,
                _ = retries.tick(), if has_room => self.poll_retries(),
                Some(found) = self.retries.1.recv() => self.accept_retries(found),
                () = until(self.lanes.next_release()) => self.lanes.release(Instant::now()),
                () = until(self.predecessors.next_poll()) => self.poll_predecessors(),
                Some(found) = self.predecessors.found() => self.accept_predecessors(&found),
                received = self.deliveries.next(self.idle.is_some(), &mut self.waited), if has_room => self.received(received).await,
            }
        }
        self.shut_down(progress).await;
    }

    /// Starts jobs as long as there are slots and messages that may run.
    fn start_jobs(&mut self) {
        while self.jobs < self.consumer.shared.config.concurrency {
            let from = self.next_queue();
            let max = |in_flight: &InFlight<_>| {
                in_flight
                    .routed
                    .batchable()
                    .map_or(1, |handler| batch_max(handler))
            };
            let together = |first: &InFlight<_>, next: &InFlight<_>| match (
                first.routed.batchable(),
                next.routed.batchable(),
            ) {
                (Some(first), Some(next)) => Arc::ptr_eq(first, next),
                _ => false,
            };
            let taken = self.lanes.take(from, max, together, Instant::now());
            if taken.is_empty() {
                // What stood there may belong elsewhere by now.
                if self.next_queue() == from {
                    break;
                }
                continue;
            }
            self.jobs += 1;
            if from != Queue::Ready {
                self.slots.suspect_begins();
            }
            let (consumer, stop, end) = (self.consumer.clone(), self.stop.clone(), self.end.clone());
            let messages = taken.iter().map(|(_, items)| items.len()).sum();
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
                });
            });
        }
    }

    /// Whose turn it is: what has failed before, or is likely to fail, gets its share; and of those two each is asked in turn.
    fn next_queue(&self) -> Queue {
        let waiting = |queue| self.lanes.waiting_in(queue) > 0;
        if !self.slots.may_begin_suspect(waiting(Queue::Ready)) {
            return Queue::Ready;
        }
        match (waiting(Queue::Doubtful), waiting(Queue::Retries)) {
            (true, false) => Queue::Doubtful,
            (true, true) if self.slots.is_first_kind() => Queue::Doubtful,
            (_, true) => Queue::Retries,
            (false, false) => Queue::Ready,
        }
    }

    fn job_ended(&mut self, ended: JobEnded<DeliveryOf<S>>) {
        telemetry::in_memory(self.consumer.name, self.unanswered.len(), self.lanes.blocked());
        self.jobs -= 1;
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
            return;
        };
        self.consumer.shared.tally.count(handling);
        let retry_after = handling.retry_after();
        if self.consumer.order == Order::None || handling == Handling::Returned {
            // Nothing waits for it.
            self.lanes.finish(&lane.key, Vec::new(), None, now);
            let back = std::iter::once(in_flight).chain(lane.rest).collect();
            self.give_back(back, retry_after);
            return;
        }
        if matches!(handling, Handling::Early { .. }) && self.consumer.keeps_sequences() {
            self.predecessors.await_those_of(&lane.key, now);
        }
        let back = std::iter::once(in_flight).chain(lane.rest).collect();
        self.lanes.finish(&lane.key, back, Some(now + retry_after), now);
    }

    /// The broker has an answer, or will have one that is under way.
    pub(super) fn answered(&mut self, local_id: u64) {
        if let Some(origin) = self.unanswered.remove(&local_id) {
            self.bytes -= origin.bytes();
        }
    }

    async fn received(&mut self, received: Received<S>) {
        match received {
            Received::Subscribed(subscription) => {
                self.consumer.vitals.subscribed();
                self.heard_at = Instant::now();
                self.deliveries = Deliveries::Open(subscription);
            }
            Received::Ended(fetched) => {
                self.deliveries = self.subscribe();
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

    fn accept(&mut self, delivery: DeliveryOf<S>) {
        self.heard_at = Instant::now();
        // Of what was sent before, no more than this can still be on its way.
        let prefetch = self.consumer.prefetch().max(1);
        self.lanes
            .receives_for(RECEIVED_MIN / u32::try_from(prefetch).unwrap_or(u32::MAX));
        if let Some((idle, index)) = &self.idle {
            idle.set(*index, false);
        }
        self.consumer.shared.tally.received();
        self.consumer.vitals.received();
        telemetry::received(self.consumer.name);
        let routed = self.consumer.routed(delivery.incoming());
        let deliveries = delivery.incoming().delivery_count;
        let (key, mut in_flight) = self.enter(Origin::broker(delivery), routed);
        // If no other process had it meanwhile, what was known of it holds.
        if let Some(awaited) = self.lanes.came_back(&key, in_flight.order_key)
            && awaited.deliveries + 1 == deliveries
        {
            in_flight.routed.memory = awaited.memory;
        }
        self.lanes.push(key, in_flight, Instant::now());
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

    /// Where numbers are waited for, they are the order, whatever that of the stream: one must not wait behind those that wait for it.
    fn number_of(&self, key: &LaneKey, routed: &RoutedMessage) -> Option<u64> {
        match (key, &routed.message) {
            (LaneKey::Aggregate(_), Ok(message)) if self.consumer.keeps_sequences() => message.sequence,
            _ => None,
        }
    }

    pub(super) fn lane_of(&self, routed: &RoutedMessage) -> LaneKey {
        match (self.consumer.order, &routed.message) {
            (Order::Strict, _) => LaneKey::All,
            (Order::Aggregate, Ok(message)) if !self.consumer.stands_alone(routed) => {
                LaneKey::Aggregate(message.aggregate.clone())
            }
            _ => LaneKey::Alone(self.last_local_id),
        }
    }

    /// Gives deliveries back beside the loop, because the database may have to be asked: nothing else would be kept alive meanwhile.
    pub(super) fn give_back(&mut self, in_flight: Vec<InFlight<DeliveryOf<S>>>, wait: Duration) -> Left {
        for in_flight in &in_flight {
            self.answered(in_flight.local_id);
        }
        let (consumer, stop) = (self.consumer.clone(), self.stop.clone());
        let (left, task) = self.returning.give_back(in_flight, wait, consumer, stop);
        self.tasks.spawn(task);
        left
    }

    /// Tells the broker of everything in memory, beside the loop.
    pub(super) fn tell_progress(&mut self) {
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

    /// Opens a subscription anew that has fallen silent. One too many costs nothing.
    async fn watch(&mut self, has_room: bool) {
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

    async fn ask_whether_idle(&mut self) {
        let Some((idle, index)) = &self.idle else { return };
        let Deliveries::Open(subscription) = &mut self.deliveries else {
            return;
        };
        let nothing_here = self.jobs == 0 && self.lanes.waiting() == 0;
        match subscription.backlog().await {
            Ok(backlog) => {
                if idle.set(*index, nothing_here && backlog == 0) {
                    self.stop.soft.cancel();
                }
            }
            Err(error) => self.trouble(&error),
        }
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
        self.consumer.vitals.trouble(&text);
        let deliveries = std::mem::replace(&mut self.deliveries, Deliveries::Paused(until, None));
        match error {
            SubscriberError::Configuration { .. } => {
                tracing::error!(consumer, error = %text, ?pause, "consumer cannot be set up, tried again");
            }
            SubscriberError::Gone { .. } => {
                tracing::warn!(consumer, error = %text, ?pause, "subscription is over, subscribes again");
            }
            _ => {
                tracing::warn!(consumer, error = %text, ?pause, "broker trouble, consumer pauses");
                if let Deliveries::Open(subscription) = deliveries {
                    self.deliveries = Deliveries::Paused(until, Some(subscription));
                }
            }
        }
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
