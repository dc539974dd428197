//! Items returned to the broker, and how long later items wait for them.
//!
//! The wait for an overdue item ends with the first of these events after its due time:
//!
//! - The deliveries that the broker can send ahead of the item ([`Reception::ahead`]) have arrived.
//! - For one second, this process was ready to receive, and no delivery arrived.
//! - Since then, this process was ready to receive for ten seconds in total.
//!
//! While an outage of the broker is undetected, the wait may expire, and a later message may run
//! first.

use std::time::Duration;

use tokio::time::Instant;

use crate::runtime::message::{Left, Memory};

pub(super) const SILENCE_MIN: Duration = Duration::from_secs(1);
pub(super) const WAIT_MAX: Duration = Duration::from_secs(10);
const CHECK_AGAIN: Duration = Duration::from_millis(250);

#[derive(Debug, Clone)]
pub(crate) struct Awaited {
    pub(crate) left: Left,
    pub(crate) absence: Duration,
    pub(crate) deliveries: u64,
    /// Whether the item must run before later items. False with strategy `sequence`: another
    /// process may run the returned item.
    pub(crate) precedes: bool,
    pub(crate) memory: Memory,
    pub(crate) overdue: Option<Overdue>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Overdue {
    waited: Duration,
    last_delivery: u64,
}

#[derive(Debug, Default)]
pub(super) struct Reception {
    waited: Duration,
    waited_at_delivery: Duration,
    deliveries: u64,
    prefetch: usize,
}

impl Reception {
    pub(super) fn new(prefetch: usize) -> Self {
        Self {
            prefetch,
            ..Self::default()
        }
    }

    pub(super) fn waited(&mut self, time: Duration) {
        self.waited += time;
    }

    /// `counts`: false for a redelivery of an item that this process did not return. After a crash,
    /// the item may have been due long before.
    pub(super) fn delivered(&mut self, counts: bool) {
        self.waited_at_delivery = self.waited;
        self.deliveries += u64::from(counts);
    }

    fn ahead(&self, away: usize) -> u64 {
        u64::try_from(self.prefetch + away).unwrap_or(u64::MAX)
    }

    fn overdue(&self, away: usize) -> Overdue {
        Overdue {
            waited: self.waited,
            last_delivery: self.deliveries.saturating_add(self.ahead(away)),
        }
    }

    fn is_over(&self, since: Overdue) -> bool {
        let silent_from = since.waited.max(self.waited_at_delivery);
        self.deliveries >= since.last_delivery
            || self.waited >= silent_from + SILENCE_MIN
            || self.waited >= since.waited + WAIT_MAX
    }
}

impl Awaited {
    pub(super) fn back_at(&self, now: Instant) -> Instant {
        self.left.get().copied().unwrap_or(now) + self.absence
    }

    pub(super) fn next_check(&mut self, now: Instant, reception: &Reception, away: usize) -> Option<Instant> {
        let Some(left) = self.left.get() else {
            return Some(now + CHECK_AGAIN);
        };
        let due = *left + self.absence + self.absence / 2;
        if due > now {
            return Some(due);
        }
        let overdue = *self.overdue.get_or_insert_with(|| reception.overdue(away));
        (!reception.is_over(overdue)).then(|| now + CHECK_AGAIN)
    }
}
