//! Which job has its turn when a slot is free.
//!
//! Invariants: jobs that have waited for the limits of their handlers and jobs from the lanes take turns, so that neither kind keeps the other from the slots;
//! suspects of both kinds share what [`super::slots`] leaves them. Not here: limits ([`super::limits`]), and running a job ([`super::dispatch`]).

use std::sync::Arc;

use outbox_core::Subscriber;
use tokio::time::Instant;

use super::consumer::batch_max;
use super::deliveries::DeliveryOf;
use super::dispatch::Dispatcher;
use super::job::{InFlight, Taken};
use super::lanes::{LaneKey, Queue, Queued as _};
use super::limits::Admission;

/// Messages that run together, and the queue that they count for.
pub(super) type Job<D> = (Queue, Taken<D>);

/// What the lanes had to offer.
enum Offered<D> {
    Job(Job<D>),
    /// A job that may not begin now, and waits elsewhere. There may be others.
    Another,
    Nothing,
}

impl<S: Subscriber> Dispatcher<S> {
    /// Starts jobs as long as there are slots and messages that may run.
    pub(super) fn start_jobs(&mut self) {
        while !self.is_paused
            && self.has_slot()
            && let Some((from, taken)) = self.next_job()
        {
            self.start_job(from, taken);
        }
    }

    pub(super) fn has_slot(&self) -> bool {
        self.jobs < self.consumer.shared.config.concurrency
    }

    fn next_job(&mut self) -> Option<Job<DeliveryOf<S>>> {
        let now = Instant::now();
        loop {
            self.limited_first = !self.limited_first;
            if self.limited_first
                && let Some(job) = self.next_limited(now)
            {
                return Some(job);
            }
            match self.next_of_lanes(now) {
                Offered::Job(job) => return Some(job),
                Offered::Another => {}
                Offered::Nothing => return self.next_limited(now),
            }
        }
    }

    /// A job that has waited for the limits of its handler and may begin.
    fn next_limited(&mut self, now: Instant) -> Option<Job<DeliveryOf<S>>> {
        let may_begin_suspect = self.may_begin_suspect(now);
        let may = |taken: &Taken<_>| may_begin_suspect || !is_suspect(taken);
        let taken = self.limits.next(now, may)?;
        Some((queue_of(&taken), taken))
    }

    fn next_of_lanes(&mut self, now: Instant) -> Offered<DeliveryOf<S>> {
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
            return Offered::Job((from, taken));
        };
        let messages = taken.iter().map(|(_, items)| items.len()).sum();
        match self.limits.admit(handler, taken, messages, is_suspect, now) {
            Admission::Begin(taken) => return Offered::Job((from, taken)),
            Admission::Waits => {}
            Admission::Later(taken, until) => {
                for (key, items) in taken {
                    self.lanes.finish(&key, items, Some(until), now);
                }
            }
        }
        Offered::Another
    }

    /// Dead letters that waited beside the lane of their aggregate go back to it, to have their turn there. `None`: these are such.
    fn letters_come_back(
        &mut self,
        mut taken: Taken<DeliveryOf<S>>,
        now: Instant,
    ) -> Option<Taken<DeliveryOf<S>>> {
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
    pub(super) fn limited(&self, taken: &Taken<DeliveryOf<S>>) -> Option<&'static str> {
        let (_, items) = taken.first()?;
        let handler = items.first()?.routed.handler()?.handler;
        self.limits.is_limited(handler).then_some(handler)
    }

    fn take(&mut self, from: Queue, now: Instant) -> Taken<DeliveryOf<S>> {
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

    /// Whether the next free slot may go to a suspect. Others are in the lanes, or have waited for a limit and may begin.
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
fn queue_of<D: outbox_core::Delivery>(taken: &Taken<D>) -> Queue {
    let first = taken.first().and_then(|(_, items)| items.first());
    first.map_or(Queue::Ready, |in_flight| in_flight.queue())
}

fn is_suspect<D: outbox_core::Delivery>(taken: &Taken<D>) -> bool {
    queue_of(taken) != Queue::Ready
}
