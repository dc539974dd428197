//! The loop of one consumer: receives, keeps the lanes, starts jobs, and keeps the broker informed.
//!
//! Invariants: at most [`Consumer::in_flight_max`] deliveries are in memory, and not more than can be handled before half of `ack_wait` is over; from receipt to
//! answer the broker hears of each every third of `ack_wait`, whatever its handler does to its thread; a message that failed waits here, in front of its
//! lane, so that nothing of its aggregate overtakes it; trouble of the broker pauses and never ends the loop. Absent here: handling
//! ([`super::job`]) and the end ([`super::wind_up`]).

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use outbox_core::retry::Backoff;
use outbox_core::{Delivery, Source, SourceError, Subscription};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval, interval_at, sleep_until, timeout};
use tokio_util::task::TaskTracker;

use super::consumer::{Consumer, Stop, batch_max};
use super::feed::{DeliveryOf, Feed, Received};
use super::idle::Idle;
use super::item::{Handling, Item};
use super::job::{self, Ended, InFlight, Origin};
use super::lanes::{LaneKey, Lanes};
use super::letters;
use super::pace::{self, timely};
use crate::dead_letter::StoredLetter;
use crate::handler::{Order, describe};
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

/// Shortest time for which a delivery goes back to the broker for want of room.
const SHED_MIN: Duration = Duration::from_secs(1);

/// Weight of the last job in the mean time that a message takes.
const MEAN_WEIGHT: f64 = 0.1;

/// The loop of one consumer.
pub(super) struct Dispatcher<S: Source> {
    source: Arc<S>,
    pub(super) consumer: Arc<Consumer>,
    pub(super) stop: Stop,
    pub(super) tasks: TaskTracker,
    pub(super) feed: Feed<S>,
    failures: u32,
    heard_at: Instant,
    pub(super) lanes: Lanes<InFlight<DeliveryOf<S>>>,
    /// Everything that has no answer yet, by ticket.
    pub(super) unanswered: HashMap<u64, Origin<DeliveryOf<S>>>,
    tickets: u64,
    pub(super) jobs: usize,
    /// Mean time that a message occupies a job, in seconds.
    mean: f64,
    pub(super) ended: mpsc::UnboundedReceiver<JobEnded<DeliveryOf<S>>>,
    end: mpsc::UnboundedSender<JobEnded<DeliveryOf<S>>>,
    progress: Option<JoinHandle<()>>,
    /// Dead letters that were found.
    pub(super) letters: (
        mpsc::UnboundedSender<Vec<StoredLetter>>,
        mpsc::UnboundedReceiver<Vec<StoredLetter>>,
    ),
    /// Stop when all are idle; and this consumer's index.
    idle: Option<(Arc<Idle>, usize)>,
}

pub(super) struct JobEnded<D> {
    pub(super) lanes: Vec<Ended<D>>,
    messages: usize,
    took: Duration,
}

impl<S: Source> Dispatcher<S> {
    pub(super) fn new(
        source: Arc<S>,
        consumer: Arc<Consumer>,
        subscription: Option<S::Subscription>,
        stop: Stop,
        tasks: TaskTracker,
        idle: Option<(Arc<Idle>, usize)>,
    ) -> Self {
        let (end, ended) = mpsc::unbounded_channel();
        let feed = match subscription {
            Some(subscription) => Feed::Open(subscription),
            None => Feed::Paused(Instant::now() + TROUBLE.min, None),
        };
        Self {
            source,
            consumer,
            stop,
            tasks,
            feed,
            failures: 0,
            heard_at: Instant::now(),
            lanes: Lanes::default(),
            unanswered: HashMap::new(),
            tickets: 0,
            jobs: 0,
            mean: 0.0,
            ended,
            end,
            progress: None,
            letters: mpsc::unbounded_channel(),
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
        let mut letters = interval(letters::EVERY);
        letters.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            self.start_jobs();
            let has_room = self.make_room().await;
            tokio::select! {
                biased;
                () = soft.cancelled() => break,
                Some(ended) = self.ended.recv() => self.job_ended(ended).await,
                _ = progress.tick() => self.tell_progress(),
                _ = watch.tick() => self.watch(has_room).await,
                _ = letters.tick(), if has_room => self.look_for_letters(),
                Some(found) = self.letters.1.recv() => self.accept_letters(found),
                () = until(self.lanes.next_release()) => self.lanes.release(Instant::now()),
                received = self.feed.next(self.idle.is_some()), if has_room => self.received(received).await,
            }
        }
        self.wind_up(progress).await;
    }

    /// Starts jobs as long as there are slots and messages that may run.
    fn start_jobs(&mut self) {
        while self.jobs < self.consumer.shared.config.concurrency {
            let max =
                |in_flight: &InFlight<_>| in_flight.item.batchable().map_or(1, |handler| batch_max(handler));
            let together = |first: &InFlight<_>, next: &InFlight<_>| match (
                first.item.batchable(),
                next.item.batchable(),
            ) {
                (Some(first), Some(next)) => Arc::ptr_eq(first, next),
                _ => false,
            };
            let taken = self.lanes.take(max, together);
            if taken.is_empty() {
                break;
            }
            self.jobs += 1;
            let (consumer, stop, end) = (self.consumer.clone(), self.stop.clone(), self.end.clone());
            let messages = taken.iter().map(|(_, items)| items.len()).sum();
            // A task that nobody aborts, because it begins transactions.
            self.tasks.spawn(async move {
                let started = Instant::now();
                let lanes = job::run(&consumer, taken, &stop).await;
                // Nobody listens after the end of the loop.
                let _ = end.send(JobEnded {
                    lanes,
                    messages,
                    took: started.elapsed(),
                });
            });
        }
    }

    async fn job_ended(&mut self, ended: JobEnded<DeliveryOf<S>>) {
        telemetry::in_memory(self.consumer.name, self.unanswered.len(), self.lanes.held());
        self.jobs -= 1;
        let each = ended.took.as_secs_f64() / pace::to_f64(ended.messages.max(1));
        self.mean += MEAN_WEIGHT * (each - self.mean);
        for lane in ended.lanes {
            self.lane_ended(lane).await;
        }
    }

    /// Counts what ended, and puts the rest back in front of its lane.
    async fn lane_ended(&mut self, lane: Ended<DeliveryOf<S>>) {
        for (ticket, handling) in lane.over {
            self.unanswered.remove(&ticket);
            self.consumer.shared.tally.count(handling);
        }
        let Some((in_flight, handling)) = lane.stopped else {
            self.lanes.finish(&lane.key, Vec::new(), None);
            return;
        };
        self.consumer.shared.tally.count(handling);
        let retry_after = handling.retry_after();
        if self.consumer.order == Order::None || handling == Handling::Returned {
            // Nothing waits for it.
            self.lanes.finish(&lane.key, Vec::new(), None);
            for in_flight in std::iter::once(in_flight).chain(lane.rest) {
                self.give_back(in_flight, retry_after).await;
            }
            return;
        }
        let back = std::iter::once(in_flight).chain(lane.rest).collect();
        self.lanes
            .finish(&lane.key, back, Some(Instant::now() + retry_after));
    }

    /// Whether another delivery may be received. If held lanes take all the room, the last of them goes back to the broker, so that
    /// a failing aggregate does not hold back the others.
    async fn make_room(&mut self) -> bool {
        let most = self.room();
        if self.unanswered.len() < most {
            return true;
        }
        let config = &self.consumer.shared.config;
        if self.jobs >= config.concurrency || !self.lanes.is_blocked() {
            return false;
        }
        let Some((key, in_flight, held_until)) = self.lanes.shed() else {
            return false;
        };
        let held = held_until.map_or(Duration::ZERO, |until| {
            until.saturating_duration_since(Instant::now())
        });
        self.owe(&key, in_flight, held).await;
        true
    }

    /// Gives a delivery back whose successors must not overtake it.
    async fn owe(&mut self, key: &LaneKey, in_flight: InFlight<DeliveryOf<S>>, wait: Duration) {
        let ack_wait = self.consumer.shared.config.ack_wait;
        let wait = wait.clamp(SHED_MIN.min(ack_wait), ack_wait);
        // It is sent again after `wait`, and received when there is room; or by another process, so it is not waited for without end.
        // Not much longer than it takes to come either, because everything behind it goes back as well.
        self.lanes
            .owe(key.clone(), in_flight.rank, Instant::now() + wait + SHED_MIN);
        self.give_back(in_flight, wait).await;
    }

    /// Most deliveries in memory now.
    fn room(&self) -> usize {
        let consumer = &self.consumer;
        let config = &consumer.shared.config;
        let least = (2 * config.concurrency).max(2 * consumer.batch_max);
        let most = consumer.in_flight_max();
        timely(config.ack_wait, config.concurrency, self.mean).clamp(least.min(most), most)
    }

    async fn received(&mut self, received: Received<S>) {
        match received {
            Received::Subscribed(subscription) => {
                self.heard_at = Instant::now();
                self.feed = Feed::Open(subscription);
            }
            Received::Resume(subscription) => {
                self.feed = match subscription {
                    Some(subscription) => Feed::Open(subscription),
                    None => self.subscribe(),
                };
            }
            Received::Delivery(delivery) => {
                self.failures = 0;
                self.accept(delivery).await;
                // What has arrived with it is taken at once.
                while self.unanswered.len() < self.room()
                    && let Feed::Open(subscription) = &mut self.feed
                {
                    match subscription.next().now_or_never() {
                        Some(Ok(delivery)) => self.accept(delivery).await,
                        Some(Err(error)) => self.trouble(&error),
                        None => break,
                    }
                }
            }
            Received::Nothing => self.ask_whether_idle().await,
            Received::Trouble(error) => self.trouble(&error),
        }
    }

    async fn accept(&mut self, delivery: DeliveryOf<S>) {
        self.heard_at = Instant::now();
        if let Some((idle, index)) = &self.idle {
            idle.set(*index, false);
        }
        self.consumer.shared.tally.received();
        telemetry::received(self.consumer.name);
        let item = self.consumer.item(delivery.incoming());
        let (key, in_flight) = self.enter(Origin::Broker(Arc::new(delivery)), item);
        let now = Instant::now();
        match self.lanes.owes_before(&key, in_flight.rank, now) {
            // Behind those that it must not overtake, and not much longer: in other processes its successors wait for it.
            Some(until) => self.owe(&key, in_flight, until - now).await,
            None => self.lanes.push(key, in_flight),
        }
    }

    pub(super) fn enter(
        &mut self,
        origin: Origin<DeliveryOf<S>>,
        item: Item,
    ) -> (LaneKey, InFlight<DeliveryOf<S>>) {
        self.tickets += 1;
        let ticket = self.tickets;
        self.unanswered.insert(ticket, origin.clone());
        let key = self.lane_of(&item);
        let rank = self.number_of(&key, &item).unwrap_or(origin.incoming().position);
        let in_flight = InFlight {
            ticket,
            rank,
            origin,
            item,
        };
        (key, in_flight)
    }

    /// Where numbers are waited for, they are the order, whatever that of the stream: one must not wait behind those that wait for it.
    fn number_of(&self, key: &LaneKey, item: &Item) -> Option<u64> {
        match (key, &item.message) {
            (LaneKey::Aggregate(_), Ok(message)) if self.consumer.keeps_positions() => message.sequence,
            _ => None,
        }
    }

    pub(super) fn lane_of(&self, item: &Item) -> LaneKey {
        match (self.consumer.order, &item.message) {
            (Order::Strict, _) => LaneKey::All,
            (Order::Aggregate, Ok(message)) if !self.consumer.stands_alone(item) => {
                LaneKey::Aggregate(message.aggregate.clone())
            }
            _ => LaneKey::Alone(self.tickets),
        }
    }

    async fn give_back(&mut self, mut in_flight: InFlight<DeliveryOf<S>>, wait: Duration) {
        self.unanswered.remove(&in_flight.ticket);
        if let Ok(message) = in_flight.item.message.clone() {
            self.consumer.take_back(&mut in_flight.item, &message).await;
        }
        in_flight.origin.give_back(wait).await;
    }

    /// Tells the broker of everything in memory, beside the loop.
    pub(super) fn tell_progress(&mut self) {
        if self.progress.as_ref().is_some_and(|task| !task.is_finished()) {
            return;
        }
        let origins: Vec<_> = self.unanswered.values().cloned().collect();
        self.progress = Some(self.tasks.spawn(async move {
            for origin in origins {
                origin.progress().await;
            }
        }));
    }

    /// Opens a subscription anew that has fallen silent. One too many costs nothing.
    async fn watch(&mut self, has_room: bool) {
        let silent = has_room && self.heard_at.elapsed() >= SILENCE_MAX;
        let Feed::Open(subscription) = &mut self.feed else {
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
            self.feed = self.subscribe();
        }
    }

    async fn ask_whether_idle(&mut self) {
        let Some((idle, index)) = &self.idle else { return };
        let Feed::Open(subscription) = &mut self.feed else {
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

    fn subscribe(&self) -> Feed<S> {
        let (source, spec) = (self.source.clone(), self.consumer.spec());
        Feed::Subscribing(Box::pin(async move { source.subscribe(&spec).await }))
    }

    fn trouble(&mut self, error: &SourceError) {
        self.failures += 1;
        let pause = TROUBLE.delay(self.failures, &mut fastrand::Rng::new());
        let (consumer, text, until) = (self.consumer.name, describe(error), Instant::now() + pause);
        let feed = std::mem::replace(&mut self.feed, Feed::Paused(until, None));
        match error {
            SourceError::Configuration { .. } => {
                tracing::error!(consumer, error = %text, ?pause, "consumer cannot be set up, tried again");
            }
            SourceError::Gone { .. } => {
                tracing::warn!(consumer, error = %text, ?pause, "subscription is over, subscribes again");
            }
            _ => {
                tracing::warn!(consumer, error = %text, ?pause, "broker trouble, consumer pauses");
                if let Feed::Open(subscription) = feed {
                    self.feed = Feed::Paused(until, Some(subscription));
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
