//! An item that went back to the broker, and how long those behind it wait for it.
//!
//! The wait for an item that is due ends with the first of these, counted from when it was due:
//!
//! - so many deliveries have arrived that the item would be among them: as many as were on their way or away ([`Reception::ahead`]);
//! - this process has received for a second, and nothing arrived;
//! - this process has received for ten seconds in all.
//!
//! A process that is paused, busy or subscribing anew does not receive, so none of these happens then. A server that no longer answers counts as received from
//! until the subscription reports it; during that time the wait may end, and a later message of the aggregate may run first.
//! Not here: whether this process receives, see [`super::super::dispatch`].

use std::time::Duration;

use tokio::time::Instant;

use super::super::routed::{Left, Memory};

/// A process that has received for this long without a delivery has nothing more on its way to it.
pub(super) const SILENCE_MIN: Duration = Duration::from_secs(1);
/// Longest time of receiving that an item is awaited for after it was due: another process may have received it.
pub(super) const WAIT_MAX: Duration = Duration::from_secs(10);
/// Time between two looks at an item that is overdue.
const LOOK_AGAIN: Duration = Duration::from_millis(250);

/// An item that went back to the broker.
#[derive(Debug, Clone)]
pub(in super::super) struct Awaited {
    /// When the broker was told.
    pub(in super::super) left: Left,
    /// How long after that it comes again, if nothing is in its way.
    pub(in super::super) absence: Duration,
    /// How often it had been delivered by then.
    pub(in super::super) deliveries: u64,
    /// What was known of it.
    pub(in super::super) memory: Memory,
    /// Since when it is overdue. `None`: nobody has found it overdue yet.
    pub(in super::super) overdue: Option<Overdue>,
}

/// What had been received when an item was first found overdue.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct Overdue {
    waited: Duration,
    /// With this delivery the item would have arrived.
    last_delivery: u64,
}

/// What this process has received so far.
#[derive(Debug, Default)]
pub(super) struct Reception {
    /// Time spent waiting for deliveries, with room for them.
    waited: Duration,
    /// The part of it that had passed when the last delivery arrived.
    waited_at_delivery: Duration,
    /// Deliveries that say how far the broker is.
    deliveries: u64,
    /// Most deliveries that wait in the driver.
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

    /// A delivery arrived. `counts`: the broker sent it now because nothing was due before it. A delivery that is repeated for another reason, after a crash
    /// say, may have been due for long: it says nothing.
    pub(super) fn delivered(&mut self, counts: bool) {
        self.waited_at_delivery = self.waited;
        self.deliveries += u64::from(counts);
    }

    /// Deliveries that may arrive before an item that is due now. `away`: items that went back to the broker.
    fn ahead(&self, away: usize) -> u64 {
        u64::try_from(self.prefetch + away).unwrap_or(u64::MAX)
    }

    fn overdue(&self, away: usize) -> Overdue {
        Overdue {
            waited: self.waited,
            last_delivery: self.deliveries.saturating_add(self.ahead(away)),
        }
    }

    /// Whether what is overdue since then would have arrived by now.
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

    /// When to look next whether it is awaited still. `None`: it is not. Another process may have received it, so nobody waits for ever.
    /// `away`: how many items went back to the broker and are awaited.
    pub(super) fn look_at(&mut self, now: Instant, reception: &Reception, away: usize) -> Option<Instant> {
        let Some(left) = self.left.get() else {
            return Some(now + LOOK_AGAIN);
        };
        let due = *left + self.absence + self.absence / 2;
        if due > now {
            return Some(due);
        }
        let overdue = *self.overdue.get_or_insert_with(|| reception.overdue(away));
        (!reception.is_over(overdue)).then(|| now + LOOK_AGAIN)
    }
}
