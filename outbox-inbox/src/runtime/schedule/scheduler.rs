//! Which job has its turn when a slot is free.
//!
//! Invariants: jobs that have waited for the limits of their handlers and jobs from the lanes take
//! turns, so that neither kind keeps the other from the slots; suspects of both kinds share the
//! slots that [`super::slots`] gives them. Not here: limits ([`super::limits`]), how much is in
//! memory ([`super::capacity`]), and running a job ([`crate::runtime::run::job`]).

use std::sync::Arc;

use outbox_core::Delivery;
use tokio::time::Instant;

use super::capacity::Refill;
use super::lanes::{LaneItem as _, LaneKey, Lanes, Queue};
use super::limits::{Admission, Limits};
use super::predecessors::Predecessors;
use super::slots::{MEAN_WEIGHT, Slots, to_f64};
use crate::runtime::consumer::{Consumer, batch_max};
use crate::runtime::receive::unanswered::InFlight;
use crate::runtime::run::job::{EndedJob, Job, Taken};

/// The waiting messages of a consumer, and the slots in which they run.
pub(crate) struct Scheduler<D> {
    pub(super) consumer: Arc<Consumer>,
    pub(crate) lanes: Lanes<InFlight<D>>,
    /// Jobs that wait for the limits of their handlers. Their lanes stand still, as if they ran.
    pub(crate) limits: Limits<Taken<D>>,
    pub(crate) predecessors: Predecessors,
    pub(super) slots: Slots,
    pub(super) refill: Refill,
    /// Jobs that run.
    pub(super) jobs: usize,
    /// Whether a job that had waited for a limit had the last turn.
    limited_first: bool,
    /// Mean time that a message occupies a job, in seconds. Failing ones do not count: they may
    /// take as long as a handler may.
    pub(super) mean: f64,
}

/// What the lanes had to offer.
enum Offered<D> {
    Job(Queue, Taken<D>),
    /// A job that may not begin now, and waits elsewhere. There may be others.
    Another,
    Nothing,
}

impl<D: Delivery> Scheduler<D> {
    pub(crate) fn new(consumer: Arc<Consumer>) -> Self {
        Self {
            lanes: Lanes::new(consumer.prefetch()),
            limits: Limits::new(consumer.limits(), consumer.in_flight_max()),
            predecessors: Predecessors::default(),
            slots: Slots::new(consumer.shared.config.concurrency),
            refill: Refill::default(),
            jobs: 0,
            limited_first: false,
            mean: 0.0,
            consumer,
        }
    }

    /// The next job, if there is a slot for it. It must begin.
    pub(crate) fn step(&mut self) -> Option<Job<D>> {
        if !self.has_slot() {
            return None;
        }
        let (from, lanes) = self.next_job()?;
        self.jobs += 1;
        if from != Queue::Ready {
            self.slots.suspect_begins();
        }
        let limited = self.limited(&lanes);
        Some(Job { from, lanes, limited })
    }

    /// A job has ended. Its lanes stand still until the caller finishes them.
    pub(crate) fn ended(&mut self, ended: &EndedJob<D>) {
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
    }

    pub(crate) fn has_slot(&self) -> bool {
        self.jobs < self.consumer.shared.config.concurrency
    }

    pub(crate) fn has_jobs(&self) -> bool {
        self.jobs > 0
    }

    /// Whether messages wait.
    pub(crate) fn has_messages(&self) -> bool {
        self.lanes.waiting() > 0 || self.limits.waiting() > 0
    }

    /// Removes all messages that wait.
    pub(crate) fn drain(&mut self) -> Vec<InFlight<D>> {
        let mut waiting = self.lanes.drain();
        let limited = self.limits.drain().into_iter().flatten();
        waiting.extend(limited.flat_map(|(_, items)| items));
        waiting
    }

    /// The time before which the first message of a lane must not claim its turn after the sequence
    /// `done` took effect, because other processes have the messages between them.
    pub(crate) fn wait_for_number(&mut self, key: &Arc<LaneKey>, done: u64, now: Instant) -> Option<Instant> {
        let is_numbered = self.consumer.keeps_sequences() && matches!(**key, LaneKey::Aggregate(..));
        // With `done` 0, nothing took effect that tells where the aggregate is.
        let next = self
            .lanes
            .first_order_key(key)
            .filter(|_| is_numbered && done > 0)?;
        self.predecessors.watch_gap(key, done, next, now)
    }

    fn next_job(&mut self) -> Option<(Queue, Taken<D>)> {
        let now = Instant::now();
        loop {
            self.limited_first = !self.limited_first;
            if self.limited_first
                && let Some(job) = self.next_limited(now)
            {
                return Some(job);
            }
            match self.next_of_lanes(now) {
                Offered::Job(from, taken) => return Some((from, taken)),
                Offered::Another => {}
                Offered::Nothing => return self.next_limited(now),
            }
        }
    }

    /// A job that has waited for the limits of its handler and may begin.
    fn next_limited(&mut self, now: Instant) -> Option<(Queue, Taken<D>)> {
        let may_begin_suspect = self.may_begin_suspect(now);
        let may = |taken: &Taken<_>| may_begin_suspect || !is_suspect(taken);
        let taken = self.limits.next(now, may)?;
        Some((queue_of(&taken), taken))
    }

    fn next_of_lanes(&mut self, now: Instant) -> Offered<D> {
        let from = self.next_queue(now);
        let taken = self.take(from, now);
        if taken.is_empty() {
            // What stood there may belong elsewhere by now.
            return match self.next_queue(now) == from {
                true => Offered::Nothing,
                false => Offered::Another,
            };
        }
        let Some(taken) = self.letters_come_back(taken, now) else {
            return Offered::Another;
        };
        let Some(handler) = self.limited(&taken) else {
            return Offered::Job(from, taken);
        };
        let messages = taken.iter().map(|(_, items)| items.len()).sum();
        match self.limits.admit(handler, taken, messages, is_suspect, now) {
            Admission::Begin(taken) => return Offered::Job(from, taken),
            Admission::Waits => {}
            Admission::Later(taken, until) => {
                for (key, items) in taken {
                    self.lanes.finish(&key, items, Some(until), now);
                }
            }
        }
        Offered::Another
    }

    /// Dead letters that waited beside the lane of their aggregate go back to it, to have their
    /// turn there. `None`: these are such.
    fn letters_come_back(&mut self, mut taken: Taken<D>, now: Instant) -> Option<Taken<D>> {
        let of = match taken.as_slice() {
            [(key, _)] => match &**key {
                LaneKey::Letters(of) => of.clone(),
                _ => return Some(taken),
            },
            _ => return Some(taken),
        };
        let (key, mut letters) = taken.pop()?;
        letters.extend(self.lanes.withdraw(&key, |_| true, now));
        self.lanes.finish(&key, Vec::new(), None, now);
        for letter in letters {
            self.lanes.push((*of).clone(), letter, now);
        }
        None
    }

    /// The handler of a job, if it has limits.
    fn limited(&self, taken: &Taken<D>) -> Option<&'static str> {
        let (_, items) = taken.first()?;
        let handler = items.first()?.routed.handler()?.handler;
        self.limits.is_limited(handler).then_some(handler)
    }

    fn take(&mut self, from: Queue, now: Instant) -> Taken<D> {
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
        self.lanes.take(from, max, together, now)
    }

    /// Whether the next free slot may go to a suspect. Others are in the lanes, or have waited for
    /// a limit and may begin.
    fn may_begin_suspect(&self, now: Instant) -> bool {
        let others_wait =
            self.lanes.waiting_in(Queue::Ready) > 0 || self.limits.has_next(now, |taken| !is_suspect(taken));
        self.slots.may_begin_suspect(others_wait)
    }

    /// Which queue has its turn. Suspects get their share, and their two queues take turns.
    fn next_queue(&self, now: Instant) -> Queue {
        if !self.may_begin_suspect(now) {
            return Queue::Ready;
        }
        let waiting = |queue| self.lanes.waiting_in(queue) > 0;
        match (waiting(Queue::Doubtful), waiting(Queue::Retries)) {
            (true, false) => Queue::Doubtful,
            (true, true) if self.slots.is_first_kind() => Queue::Doubtful,
            (_, true) => Queue::Retries,
            (false, false) => Queue::Ready,
        }
    }
}

/// The queue that a job counts for as things are.
fn queue_of<D: Delivery>(taken: &Taken<D>) -> Queue {
    let first = taken.first().and_then(|(_, items)| items.first());
    first.map_or(Queue::Ready, |in_flight| in_flight.queue())
}

fn is_suspect<D: Delivery>(taken: &Taken<D>) -> bool {
    queue_of(taken) != Queue::Ready
}
