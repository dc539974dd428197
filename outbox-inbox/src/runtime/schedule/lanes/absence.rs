//! Items that were returned to the broker, and how long the items behind them wait.
//!
//! The wait for an overdue item ends with the first of these events, counted from the time when it
//! was due:
//!
//! - As many deliveries have arrived as could arrive before the item: those on their way and those away when it was due ([`Reception::ahead`]).
//! - This process has received for one second without a delivery.
//! - This process has received for ten seconds in all.
//!
//! A process that is paused, busy or subscribing again does not receive, so none of these events
//! happens then. A server that no longer answers still counts as received from until the
//! subscription reports the failure. During that time the wait may end, and a later message of the
//! aggregate may run first. Not here: whether this process receives, see
//! [`crate::runtime::dispatcher`].

use std::time::Duration;

use tokio::time::Instant;

use crate::runtime::message::{Left, Memory};

/// If a process receives for this long without a delivery, nothing more is on its way to it.
pub(super) const SILENCE_MIN: Duration = Duration::from_secs(1);
/// Longest wait for an overdue item, in time spent receiving. Another process may have received the
/// item.
pub(super) const WAIT_MAX: Duration = Duration::from_secs(10);
/// Time between two checks of an overdue item.
const CHECK_AGAIN: Duration = Duration::from_millis(250);

/// An item that was returned to the broker.
#[derive(Debug, Clone)]
pub(crate) struct Awaited {
    /// When the broker was told of the return.
    pub(crate) left: Left,
    /// The delay after which the broker delivers it again if nothing delays it further.
    pub(crate) absence: Duration,
    /// The number of its deliveries up to then.
    pub(crate) deliveries: u64,
    /// Whether later items of the lane wait for it. Where sequences are kept they do not, because
    /// the numbers tell which item is next, and another process may run this one meanwhile.
    pub(crate) precedes: bool,
    /// What this process knew of the item.
    pub(crate) memory: Memory,
    /// The state of reception when it was first found overdue. `None`: not found overdue yet.
    pub(crate) overdue: Option<Overdue>,
}

/// The state of reception when an item was first found overdue.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Overdue {
    waited: Duration,
    /// By this delivery the item would have arrived.
    last_delivery: u64,
}

/// What this process has received so far.
#[derive(Debug, Default)]
pub(super) struct Reception {
    /// Time spent waiting for deliveries, with room for them.
    waited: Duration,
    /// The value of `waited` when the last delivery arrived.
    waited_at_delivery: Duration,
    /// Number of deliveries that show how far the broker has come.
    deliveries: u64,
    /// Maximum number of deliveries that wait in the driver.
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

    /// Records a delivery. `counts`: the broker sent it now because nothing else was due before it.
    /// A delivery repeated for another reason, for example after a crash, may have been due for
    /// long and proves nothing.
    pub(super) fn delivered(&mut self, counts: bool) {
        self.waited_at_delivery = self.waited;
        self.deliveries += u64::from(counts);
    }

    /// The number of deliveries that may arrive before an item that is due now. `away`: the number
    /// of items returned to the broker.
    fn ahead(&self, away: usize) -> u64 {
        u64::try_from(self.prefetch + away).unwrap_or(u64::MAX)
    }

    fn overdue(&self, away: usize) -> Overdue {
        Overdue {
            waited: self.waited,
            last_delivery: self.deliveries.saturating_add(self.ahead(away)),
        }
    }

    /// Whether an item that is overdue since then would have arrived by now.
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

    /// The time of the next check whether the item is still awaited. `None`: it is no longer
    /// awaited, because another process may have received it. `away`: the number of items that were
    /// returned to the broker and are awaited.
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
