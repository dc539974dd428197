//! An item that went back to the broker, and how long those behind it wait for it.
//!
//! Invariant: the wait ends only after this process has received for a second, or so many deliveries that the item would be among them, since the item
//! was due. So it does not end while the process is paused or busy, nor while it subscribes anew. A server that no longer answers counts as received from until
//! the subscription reports it; during that time the wait may end, and a later message of the aggregate may run first.
//! Not here: whether this process receives, see [`super::super::dispatch`].

use std::time::Duration;

use tokio::time::Instant;

use super::super::returning::Left;
use super::super::routed::Memory;

/// Least time of receiving before an item that is due is not awaited any longer.
pub(in super::super) const RECEIVED_MIN: Duration = Duration::from_secs(1);
/// Shortest time between two looks at an item that is overdue.
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
    /// How long this process had received when it was first overdue.
    pub(in super::super) overdue_from: Option<Duration>,
}

impl Awaited {
    pub(super) fn back_at(&self, now: Instant) -> Instant {
        self.left.get().copied().unwrap_or(now) + self.absence
    }

    /// When to look next whether it is awaited still. `None`: it is not. Another process may have received it, so nobody waits for ever. `received`: how
    /// long this process has received so far.
    pub(super) fn look_at(&mut self, now: Instant, received: Duration) -> Option<Instant> {
        let Some(left) = self.left.get() else {
            return Some(now + LOOK_AGAIN);
        };
        let due = *left + self.absence + self.absence / 2;
        if due > now {
            return Some(due);
        }
        let from = *self.overdue_from.get_or_insert(received);
        let rest = (from + RECEIVED_MIN).saturating_sub(received);
        (!rest.is_zero()).then(|| now + rest.max(LOOK_AGAIN))
    }
}
