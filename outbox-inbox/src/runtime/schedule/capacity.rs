//! Bounds the memory of a consumer, and selects deliveries to return to the broker.
//!
//! - `in_flight_max`, and the number of messages that the consumer handles within half of
//!   `ack_wait`: two bounds of the runnable deliveries, including later deliveries of their lanes.
//! - `blocked_max`: bounds deliveries of aggregates that are blocked or likely to fail.
//! - `buffer_bytes`: bounds all deliveries together.
//!
//! Invariant: while slots are free and no message is runnable, the consumer keeps receiving.
//! Messages with predecessors in other processes do not count as blocked: otherwise a process ahead
//! of the other processes would fill its memory.

use std::sync::Arc;
use std::time::Duration;

use outbox_core::Delivery;
use tokio::time::Instant;

use super::lanes::{Awaited, Evicted, LaneKey, Queue};
use super::scheduler::Scheduler;
use super::slots::to_f64;
use crate::runtime::message::Left;
use crate::runtime::receive::origin::Origin;
use crate::runtime::receive::unanswered::{InFlight, Usage};

const ABSENCE_MIN: Duration = Duration::from_secs(1);
const ABSENCE_MAX: Duration = Duration::from_secs(60);
const LONG_BLOCKED: Duration = Duration::from_secs(5);

const EVICT_TO: f64 = 0.875;

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "a part of a bound need not be exact"
)]
fn part_of(bound: usize, part: f64) -> usize {
    (bound as f64 * part) as usize
}

/// Number of messages handled within half of `ack_wait`. A `mean` of zero is no measurement.
fn timely(ack_wait: Duration, concurrency: usize, mean: f64) -> usize {
    if mean <= 0.0 {
        return usize::MAX;
    }
    let timely = ack_wait.as_secs_f64() / 2.0 * to_f64(concurrency) / mean;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped")]
    let timely = timely.clamp(0.0, 1e9) as usize;
    timely
}

pub(crate) struct Departure<D> {
    pub(crate) items: Vec<InFlight<D>>,
    pub(crate) absence: Duration,
    key: Arc<LaneKey>,
    awaited: Vec<(u64, Awaited)>,
}

impl<D: Delivery> Scheduler<D> {
    pub(crate) fn may_receive(&mut self, usage: Usage) -> bool {
        let patience = match self.consumer.keeps_sequences() {
            true if !self.is_starving() => self.consumer.shared.config.ack_wait / 4,
            _ => Duration::ZERO,
        };
        let (has_room, flows, bound) = (self.has_room(usage), self.flows(usage), self.flows_bound());
        self.refill.may_receive(has_room, flows, bound, patience)
    }

    pub(crate) fn has_room(&self, usage: Usage) -> bool {
        let config = &self.consumer.shared.config;
        (usage.messages == 0 || usage.bytes < config.buffer_bytes)
            && self.lanes.set_aside() <= config.blocked_max
            && self.flows(usage) < self.flows_bound()
    }

    pub(crate) fn is_crowded(&self, usage: Usage) -> bool {
        self.is_crowded_to(usage, 1.0)
    }

    /// Selects deliveries to return. The caller returns them and calls [`Self::departed`].
    pub(crate) fn next_departure(&mut self, usage: Usage, now: Instant) -> Option<Departure<D>> {
        if !self.is_crowded_to(usage, EVICT_TO) {
            return None;
        }
        let Evicted {
            key,
            items,
            blocked_until,
        } = self.lanes.evict(now + LONG_BLOCKED, self.is_starving(), now)?;
        let blocked = blocked_until.map_or(Duration::ZERO, |until| until - now);
        let absence = blocked.max(self.suspect_wait()).max(ABSENCE_MIN);
        let is_awaited = |in_flight: &&InFlight<D>| {
            matches!(
                (&in_flight.origin, &*key),
                (Origin::Broker(_), LaneKey::Aggregate(..))
            )
        };
        let awaited = items.iter().filter(is_awaited).map(|in_flight| {
            let awaited = Awaited {
                left: Left::default(),
                absence,
                deliveries: in_flight.origin.incoming().delivery_count,
                precedes: !self.consumer.keeps_sequences(),
                memory: in_flight.routed.memory.sent_away(),
                overdue: None,
            };
            (in_flight.order_key, awaited)
        });
        let awaited = awaited.collect();
        Some(Departure {
            items,
            absence,
            key,
            awaited,
        })
    }

    pub(crate) fn departed(&mut self, departure: Departure<D>, left: &Left, now: Instant) {
        for (order_key, awaited) in departure.awaited {
            let left = left.clone();
            let awaited = Awaited { left, ..awaited };
            self.lanes
                .expect_back((*departure.key).clone(), order_key, awaited, now);
        }
    }

    fn flow_max(&self) -> usize {
        let consumer = &self.consumer;
        let config = &consumer.shared.config;
        let least = (2 * config.concurrency).max(2 * consumer.batch_max);
        let most = consumer.in_flight_max();
        timely(config.ack_wait, config.concurrency, self.mean).clamp(least.min(most), most)
    }

    fn has_free_slots(&self) -> bool {
        self.has_slot() && self.lanes.waiting_in(Queue::Ready) == 0
    }

    /// Whether slots are free and no message is ready for them. A lane that waits for another
    /// process counts as a used slot, because the wait is short.
    fn is_starving(&self) -> bool {
        let soon = self.jobs + self.lanes.moving();
        self.has_free_slots() && soon < self.consumer.shared.config.concurrency
    }

    fn flows(&self, usage: Usage) -> usize {
        usage.messages.saturating_sub(self.lanes.set_aside())
    }

    fn flows_bound(&self) -> usize {
        let config = &self.consumer.shared.config;
        let more = match self.has_free_slots() {
            true if self.is_starving() => config.blocked_max,
            true => config.blocked_max / 2,
            false => 0,
        };
        self.flow_max() + more
    }

    fn is_crowded_to(&self, usage: Usage, part: f64) -> bool {
        let config = &self.consumer.shared.config;
        let (set_aside, starving) = (self.lanes.set_aside(), self.is_starving());
        let (blocked_max, buffer_bytes) = (
            part_of(config.blocked_max, part),
            part_of(config.buffer_bytes, part),
        );
        set_aside > blocked_max
            || usage.bytes >= buffer_bytes && (starving || set_aside > self.slots.most_suspects(true))
            || starving && usage.messages >= self.flow_max() + blocked_max
    }

    fn suspect_wait(&self) -> Duration {
        let runs = to_f64(self.lanes.suspects()) / to_f64(self.slots.most_suspects(true));
        Duration::from_secs_f64((runs * self.slots.suspect_mean()).min(ABSENCE_MAX.as_secs_f64()))
    }
}

/// Decides when a process whose memory is full receives again. With strategy `sequence`, half of
/// the memory must be free. Otherwise deliveries of one aggregate would alternate between processes
/// and wait for each other.
#[derive(Debug, Default)]
pub(crate) struct Refill {
    full_since: Option<Instant>,
}

impl Refill {
    pub(crate) fn may_receive(
        &mut self,
        has_room: bool,
        flows: usize,
        bound: usize,
        patience: Duration,
    ) -> bool {
        let is_patient = self.full_since.is_some_and(|since| since.elapsed() < patience);
        if has_room && !(is_patient && flows > bound / 2) {
            self.full_since = None;
            return true;
        }
        self.full_since.get_or_insert_with(Instant::now);
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_handlers_receive_fewer_deliveries() {
        let ack_wait = Duration::from_secs(30);
        assert_eq!(timely(ack_wait, 8, 0.0), usize::MAX);
        assert_eq!(timely(ack_wait, 8, 0.001), 120_000);
        assert_eq!(timely(ack_wait, 8, 10.0), 12);
        assert_eq!(timely(ack_wait, 1, 1e12), 0);
    }

    #[test]
    fn sequence_consumer_receives_again_when_half_is_free() {
        let mut refill = Refill::default();
        let mut may_receive = |flows, patience| refill.may_receive(flows < 100, flows, 100, patience);
        assert!(may_receive(99, Duration::MAX));
        assert!(!may_receive(100, Duration::MAX));
        assert!(!may_receive(51, Duration::MAX));
        assert!(may_receive(50, Duration::MAX));
        assert!(may_receive(99, Duration::MAX));
        assert!(!may_receive(100, Duration::MAX));
        assert!(may_receive(99, Duration::ZERO));
    }
}
