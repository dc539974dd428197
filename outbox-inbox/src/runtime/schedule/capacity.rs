//! Bounds the memory of a consumer, and chooses the deliveries that go back to the broker.
//!
//! | bound | on what |
//! |---|---|
//! | `in_flight_max`, and what can be handled within half of `ack_wait` | deliveries that may run, and those behind them in their aggregates |
//! | `blocked_max` | deliveries that are set aside: their aggregate is blocked, or its first message has failed before or is likely to |
//! | `buffer_bytes` | all of them together |
//!
//! Invariant: as long as there are free slots and no message that may run, another delivery is
//! received, whatever stands still: the deliveries that lose the least time go back to the broker
//! instead. Messages whose predecessors take effect in other processes at this moment do not stand
//! still: a process ahead of the others would fill its memory with late messages. Where sequences
//! are kept, a process receives in runs ([`Refill`]). Not here: which lanes are set aside
//! ([`crate::runtime::schedule::lanes`]).

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

/// Shortest absence of a delivery that goes back to the broker for want of room.
const ABSENCE_MIN: Duration = Duration::from_secs(1);
/// Longest absence of a delivery that waits for a slot and not for a time.
const ABSENCE_MAX: Duration = Duration::from_secs(60);
/// A lane that is blocked for longer leaves memory as a whole: it costs no time, because it could
/// not run anyway.
const LONG_BLOCKED: Duration = Duration::from_secs(5);

/// If a bound is reached, deliveries leave memory until so much of it is used.
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

/// Deliveries that `concurrency` jobs handle within half of `ack_wait`, at `mean` seconds each;
/// without bound while nothing is known.
fn timely(ack_wait: Duration, concurrency: usize, mean: f64) -> usize {
    if mean <= 0.0 {
        return usize::MAX;
    }
    let timely = ack_wait.as_secs_f64() / 2.0 * to_f64(concurrency) / mean;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped")]
    let timely = timely.clamp(0.0, 1e9) as usize;
    timely
}

/// Deliveries that leave memory for want of room, with the time for which they are absent.
pub(crate) struct Departure<D> {
    pub(crate) items: Vec<InFlight<D>>,
    pub(crate) absence: Duration,
    key: Arc<LaneKey>,
    /// Items that the items behind them wait for, by order key.
    awaited: Vec<(u64, Awaited)>,
}

impl<D: Delivery> Scheduler<D> {
    /// Whether there is room for another delivery, in a process that receives in runs where
    /// sequences are kept.
    pub(crate) fn may_receive(&mut self, usage: Usage) -> bool {
        let patience = match self.consumer.keeps_sequences() {
            // Deliveries in the driver are not kept alive during the wait.
            true if !self.is_starving() => self.consumer.shared.config.ack_wait / 4,
            // Slots stay free, and the next delivery may fill one.
            _ => Duration::ZERO,
        };
        let (has_room, flows, bound) = (self.has_room(usage), self.flows(usage), self.flows_bound());
        self.refill.may_receive(has_room, flows, bound, patience)
    }

    /// Whether another delivery may be received as things are.
    pub(crate) fn has_room(&self, usage: Usage) -> bool {
        let config = &self.consumer.shared.config;
        (usage.messages == 0 || usage.bytes < config.buffer_bytes)
            && self.lanes.set_aside() <= config.blocked_max
            && self.flows(usage) < self.flows_bound()
    }

    /// Whether more stands still in memory than the bounds allow, so that others find no room.
    pub(crate) fn is_crowded(&self, usage: Usage) -> bool {
        self.is_crowded_to(usage, 1.0)
    }

    /// Deliveries that leave memory next, of a crowded process. Some at a time, so that the search
    /// for them does not cost more than they do. They go back to the broker, and [`Self::departed`]
    /// follows.
    pub(crate) fn next_departure(&mut self, usage: Usage, now: Instant) -> Option<Departure<D>> {
        if !self.is_crowded_to(usage, EVICT_TO) {
            return None;
        }
        let Evicted {
            key,
            items,
            blocked_until,
        } = self.lanes.evict(now + LONG_BLOCKED, self.is_starving(), now)?;
        // For no longer than they could not run anyway.
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

    /// Deliveries go back to the broker, which has them from the time `left` on. The deliveries
    /// behind them wait for them.
    pub(crate) fn departed(&mut self, departure: Departure<D>, left: &Left, now: Instant) {
        for (order_key, awaited) in departure.awaited {
            let left = left.clone();
            let awaited = Awaited { left, ..awaited };
            self.lanes
                .expect_back((*departure.key).clone(), order_key, awaited, now);
        }
    }

    /// Most deliveries that may run, with the deliveries behind them.
    fn flow_max(&self) -> usize {
        let consumer = &self.consumer;
        let config = &consumer.shared.config;
        let least = (2 * config.concurrency).max(2 * consumer.batch_max);
        let most = consumer.in_flight_max();
        timely(config.ack_wait, config.concurrency, self.mean).clamp(least.min(most), most)
    }

    /// Whether slots are free although deliveries are in memory: all of them wait for a time, or
    /// behind others.
    fn has_free_slots(&self) -> bool {
        self.has_slot() && self.lanes.waiting_in(Queue::Ready) == 0
    }

    /// Whether slots stay free. A lane that moves needs one in a moment.
    fn is_starving(&self) -> bool {
        let soon = self.jobs + self.lanes.moving();
        self.has_free_slots() && soon < self.consumer.shared.config.concurrency
    }

    /// Deliveries that are not set aside.
    fn flows(&self, usage: Usage) -> usize {
        usage.messages.saturating_sub(self.lanes.set_aside())
    }

    /// The current bound of [`Self::flows`].
    fn flows_bound(&self) -> usize {
        let config = &self.consumer.shared.config;
        let more = match self.has_free_slots() {
            true if self.is_starving() => config.blocked_max,
            // Ready messages may be behind the moving ones. But moving messages must never fill
            // memory, or they go back to the broker, and the order is lost.
            true => config.blocked_max / 2,
            false => 0,
        };
        self.flow_max() + more
    }

    /// Whether more stands still in memory than a part of its bounds.
    fn is_crowded_to(&self, usage: Usage, part: f64) -> bool {
        let config = &self.consumer.shared.config;
        let (set_aside, starving) = (self.lanes.set_aside(), self.is_starving());
        let (blocked_max, buffer_bytes) = (
            part_of(config.blocked_max, part),
            part_of(config.buffer_bytes, part),
        );
        set_aside > blocked_max
            // Suspects that wait for a slot stay: memory is full at other times than slots are
            // free.
            || usage.bytes >= buffer_bytes && (starving || set_aside > self.slots.most_suspects(true))
            || starving && usage.messages >= self.flow_max() + blocked_max
    }

    /// Approximate wait of the last retry for a slot.
    fn suspect_wait(&self) -> Duration {
        let runs = to_f64(self.lanes.suspects()) / to_f64(self.slots.most_suspects(true));
        Duration::from_secs_f64((runs * self.slots.suspect_mean()).min(ABSENCE_MAX.as_secs_f64()))
    }
}

/// When a process that has filled its memory receives again.
///
/// Where sequences are kept, it waits until half of its room is free. So the broker sends it many
/// messages in a row, among them successive messages of each hot aggregate. If it took one for each
/// that ends, processes would receive in turns, and each message of an aggregate would wait for one
/// in another process.
#[derive(Debug, Default)]
pub(crate) struct Refill {
    full_since: Option<Instant>,
}

impl Refill {
    /// Whether to receive, with `flows` deliveries where there is room for `bound`. `patience`:
    /// longest wait until half of it is free; zero for none.
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
    fn slow_handlers_are_given_less() {
        let ack_wait = Duration::from_secs(30);
        assert_eq!(timely(ack_wait, 8, 0.0), usize::MAX);
        assert_eq!(timely(ack_wait, 8, 0.001), 120_000);
        assert_eq!(timely(ack_wait, 8, 10.0), 12);
        assert_eq!(timely(ack_wait, 1, 1e12), 0);
    }

    #[test]
    fn where_sequences_are_kept_a_full_process_receives_again_when_half_is_free() {
        let mut refill = Refill::default();
        let mut may_receive = |flows, patience| refill.may_receive(flows < 100, flows, 100, patience);
        assert!(may_receive(99, Duration::MAX));
        assert!(!may_receive(100, Duration::MAX));
        assert!(!may_receive(51, Duration::MAX));
        assert!(may_receive(50, Duration::MAX));
        assert!(may_receive(99, Duration::MAX));
        assert!(!may_receive(100, Duration::MAX));
        // The wait is over, or slots stay free.
        assert!(may_receive(99, Duration::ZERO));
    }
}
