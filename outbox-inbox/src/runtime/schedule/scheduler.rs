//! Selects the next job for a free slot.

use std::sync::Arc;

use outbox_core::Delivery;
use tokio::time::Instant;

use super::capacity::Refill;
use super::lanes::{LaneKey, Lanes, Queue};
use super::predecessors::Predecessors;
use super::slots::{MEAN_WEIGHT, Slots, to_f64};
use crate::runtime::consumer::{Consumer, batch_max};
use crate::runtime::receive::unanswered::InFlight;
use crate::runtime::run::job::{EndedJob, Job, Taken};

pub(crate) struct Scheduler<D> {
    pub(super) consumer: Arc<Consumer>,
    pub(crate) lanes: Lanes<InFlight<D>>,
    pub(crate) predecessors: Predecessors,
    pub(super) slots: Slots,
    pub(super) refill: Refill,
    pub(super) jobs: usize,
    /// Mean seconds per message of jobs without failures. Failures may take the whole timeout.
    pub(super) mean: f64,
}

impl<D: Delivery> Scheduler<D> {
    pub(crate) fn new(consumer: Arc<Consumer>) -> Self {
        Self {
            lanes: Lanes::new(consumer.prefetch()),
            predecessors: Predecessors::default(),
            slots: Slots::new(consumer.shared.config.concurrency),
            refill: Refill::default(),
            jobs: 0,
            mean: 0.0,
            consumer,
        }
    }

    pub(crate) fn step(&mut self) -> Option<Job<D>> {
        if !self.has_slot() {
            return None;
        }
        let (from, lanes) = self.next_job()?;
        self.jobs += 1;
        if from != Queue::Ready {
            self.slots.suspect_begins();
        }
        Some(Job { from, lanes })
    }

    /// Frees the slot of a job. The job's lanes stay paused until the caller finishes them.
    pub(crate) fn ended(&mut self, ended: &EndedJob<D>) {
        self.jobs -= 1;
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

    pub(crate) fn has_messages(&self) -> bool {
        self.lanes.waiting() > 0
    }

    pub(crate) fn drain(&mut self) -> Vec<InFlight<D>> {
        self.lanes.drain()
    }

    /// Returns how long the lane waits if other processes may handle the messages after sequence
    /// `done`.
    pub(crate) fn wait_for_number(&mut self, key: &Arc<LaneKey>, done: u64, now: Instant) -> Option<Instant> {
        let is_numbered = self.consumer.keeps_sequences() && matches!(**key, LaneKey::Aggregate(..));
        let next = self
            .lanes
            .first_order_key(key)
            .filter(|_| is_numbered && done > 0)?;
        self.predecessors.watch_gap(key, done, next, now)
    }

    fn next_job(&mut self) -> Option<(Queue, Taken<D>)> {
        let now = Instant::now();
        loop {
            let from = self.next_queue();
            let taken = self.take(from, now);
            if taken.is_empty() {
                if self.next_queue() == from {
                    return None;
                }
            } else if let Some(taken) = self.letters_come_back(taken, now) {
                return Some((from, taken));
            }
        }
    }

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
}
