//! How much a consumer keeps in memory, and what goes back to the broker when that is too much.
//!
//! | bound | on what |
//! |---|---|
//! | `in_flight_max`, and what can be handled within half of `ack_wait` | deliveries that may run, and those behind them in their aggregates |
//! | `blocked_max` | deliveries that are set aside: their aggregate is blocked, or its first message has failed before or is likely to |
//! | `buffer_bytes` | all of them together |
//!
//! Invariant: as long as there are free slots and no message that may run, another delivery is received, whatever stands still: what costs least time there
//! goes back to the broker instead. Messages whose predecessors take effect in other processes at this moment do not stand still: a process that ran
//! ahead of the others would only fill its memory with what comes last. Where sequences are kept, a process receives in runs ([`super::refill`]). Not here: which
//! lanes are set aside ([`super::lanes`]).

use std::time::Duration;

use outbox_core::Subscriber;
use tokio::time::Instant;

use super::deliveries::DeliveryOf;
use super::dispatch::Dispatcher;
use super::job::{InFlight, Origin};
use super::lanes::{Awaited, Evicted, LaneKey, Queue};
use super::slots::to_f64;
use crate::telemetry::{self, Returned};

/// Shortest absence of a delivery that goes back to the broker for want of room.
pub(super) const ABSENCE_MIN: Duration = Duration::from_secs(1);
/// Longest absence of a delivery that waits for a slot and not for a time.
const ABSENCE_MAX: Duration = Duration::from_secs(60);
/// A lane that is blocked for longer leaves memory as a whole: it costs no time, because it could not run anyway.
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

/// Deliveries that `concurrency` jobs handle within half of `ack_wait`, at `mean` seconds each; without bound while nothing is known.
fn timely(ack_wait: Duration, concurrency: usize, mean: f64) -> usize {
    if mean <= 0.0 {
        return usize::MAX;
    }
    let timely = ack_wait.as_secs_f64() / 2.0 * to_f64(concurrency) / mean;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped")]
    let timely = timely.clamp(0.0, 1e9) as usize;
    timely
}

impl<S: Subscriber> Dispatcher<S> {
    /// Most deliveries that may run, and behind those.
    fn flow_max(&self) -> usize {
        let consumer = &self.consumer;
        let config = &consumer.shared.config;
        let least = (2 * config.concurrency).max(2 * consumer.batch_max);
        let most = consumer.in_flight_max();
        timely(config.ack_wait, config.concurrency, self.mean).clamp(least.min(most), most)
    }

    /// Whether slots are free although deliveries are in memory: all of them wait for a time, or behind others.
    fn has_free_slots(&self) -> bool {
        self.jobs < self.consumer.shared.config.concurrency && self.lanes.waiting_in(Queue::Ready) == 0
    }

    /// Whether slots stay free. A lane that moves needs one in a moment.
    fn is_starving(&self) -> bool {
        let soon = self.jobs + self.lanes.moving();
        self.has_free_slots() && soon < self.consumer.shared.config.concurrency
    }

    /// Whether another delivery may be received as things are.
    pub(super) fn has_room(&self) -> bool {
        let config = &self.consumer.shared.config;
        (self.unanswered.is_empty() || self.bytes < config.buffer_bytes)
            && self.lanes.set_aside() <= config.blocked_max
            && self.flows() < self.flows_bound()
    }

    /// Deliveries that are not set aside.
    fn flows(&self) -> usize {
        self.unanswered.len().saturating_sub(self.lanes.set_aside())
    }

    /// Room for those, as things are.
    fn flows_bound(&self) -> usize {
        let config = &self.consumer.shared.config;
        let more = match self.has_free_slots() {
            true if self.is_starving() => config.blocked_max,
            // Others may be behind those that move. But what moves must never fill memory, or it goes back to the broker, and the order is lost.
            true => config.blocked_max / 2,
            false => 0,
        };
        self.flow_max() + more
    }

    /// Makes room for what may run, and says whether there is room for another delivery.
    pub(super) fn make_room(&mut self) -> bool {
        if self.is_crowded(1.0) {
            let now = Instant::now();
            // Some at a time, so that looking for them does not cost more than they do.
            while self.is_crowded(EVICT_TO)
                && let Some(evicted) = self.lanes.evict(now + LONG_BLOCKED, self.is_starving(), now)
            {
                self.send_away(evicted, now);
            }
        }
        let patience = match self.consumer.keeps_sequences() {
            // Nobody keeps alive what the driver holds meanwhile.
            true if !self.is_starving() => self.consumer.shared.config.ack_wait / 4,
            // Slots stay free, and what they need may come next.
            _ => Duration::ZERO,
        };
        let (has_room, flows, bound) = (self.has_room(), self.flows(), self.flows_bound());
        self.refill.may_receive(has_room, flows, bound, patience)
    }

    /// Whether more stands still in memory than a part of its bounds, so that others find no room.
    fn is_crowded(&self, part: f64) -> bool {
        let config = &self.consumer.shared.config;
        let (set_aside, starving) = (self.lanes.set_aside(), self.is_starving());
        let (blocked_max, buffer_bytes) = (
            part_of(config.blocked_max, part),
            part_of(config.buffer_bytes, part),
        );
        set_aside > blocked_max
            // What waits for one of their slots stays, or it would never meet one: it comes when memory is full, and slots are free at other times.
            || self.bytes >= buffer_bytes && (starving || set_aside > self.slots.most_suspects(true))
            || starving && self.unanswered.len() >= self.flow_max() + blocked_max
    }

    /// Gives deliveries back to the broker, for no longer than they could not run anyway. Those behind them wait for them.
    fn send_away(&mut self, evicted: Evicted<InFlight<DeliveryOf<S>>>, now: Instant) {
        let blocked = evicted.blocked_until.map_or(Duration::ZERO, |until| until - now);
        let absence = blocked.max(self.suspect_wait()).max(ABSENCE_MIN);
        tracing::debug!(
            consumer = self.consumer.name,
            deliveries = evicted.items.len(),
            ?absence,
            "deliveries go back to the broker for want of room"
        );
        telemetry::returned(self.consumer.name, Returned::Room, evicted.items.len());
        let awaited = |in_flight: &InFlight<DeliveryOf<S>>| match (&in_flight.origin, &*evicted.key) {
            (Origin::Broker(_), LaneKey::Aggregate(..)) => {
                let deliveries = in_flight.origin.incoming().delivery_count;
                Some((
                    in_flight.order_key,
                    deliveries,
                    in_flight.routed.memory.sent_away(),
                ))
            }
            _ => None,
        };
        let awaited: Vec<_> = evicted.items.iter().filter_map(awaited).collect();
        let left = self.give_back(evicted.items, absence);
        for (order_key, deliveries, memory) in awaited {
            let awaited = Awaited {
                left: left.clone(),
                absence,
                deliveries,
                precedes: !self.consumer.keeps_sequences(),
                memory,
                overdue: None,
            };
            self.lanes
                .expect_back((*evicted.key).clone(), order_key, awaited, now);
        }
    }

    /// How long the last of those that may be tried again waits for a slot, roughly.
    fn suspect_wait(&self) -> Duration {
        let runs = to_f64(self.lanes.suspects()) / to_f64(self.slots.most_suspects(true));
        Duration::from_secs_f64((runs * self.slots.suspect_mean()).min(ABSENCE_MAX.as_secs_f64()))
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
}
