//! One lane: its waiting items, and the queue that contains it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use tokio::time::Instant;

use super::absence::Reception;
use super::{Awaited, LaneItem, Queue};

#[derive(Debug)]
pub(super) struct Lane<T> {
    pub(super) queue: VecDeque<T>,
    pub(super) running: Option<Queue>,
    pub(super) blocked_until: Option<Instant>,
    pub(super) is_moving: bool,
    pub(super) awaited: BTreeMap<u64, Awaited>,
    pub(super) place: Place,
    pub(super) counted: Counts,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) set_aside: usize,
    pub(super) blocked: usize,
    pub(super) away: usize,
    pub(super) moving: usize,
}

impl Counts {
    pub(super) fn replace(&mut self, before: Self, now: Self) {
        self.set_aside = self.set_aside + now.set_aside - before.set_aside;
        self.blocked = self.blocked + now.blocked - before.blocked;
        self.away = self.away + now.away - before.away;
        self.moving = self.moving + now.moving - before.moving;
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Nowhere,
    Queue(Queue),
    Blocked((Instant, u64)),
    Awaiting((Instant, u64)),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Due {
    Nowhere,
    Queue(Queue),
    Blocked(Instant),
    Awaiting(Instant),
}

impl<T: LaneItem> Lane<T> {
    pub(super) fn new() -> Self {
        Self {
            queue: VecDeque::new(),
            running: None,
            blocked_until: None,
            is_moving: false,
            awaited: BTreeMap::new(),
            place: Place::Nowhere,
            counted: Counts::default(),
        }
    }

    pub(super) fn due(&mut self, now: Instant, reception: &Reception, away: usize) -> Due {
        if self.running.is_some() {
            return Due::Nowhere;
        }
        let Some(front) = self.queue.front() else {
            let mut last = None;
            self.awaited.retain(|_, awaited| {
                let next_check = awaited.next_check(now, reception, away);
                last = last.max(next_check);
                next_check.is_some()
            });
            return last.map_or(Due::Nowhere, Due::Awaiting);
        };
        let mut blocked = self.blocked_until.filter(|until| *until > now);
        while let Some(mut first) = self.awaited.first_entry()
            && *first.key() < front.order_key()
        {
            if let Some(next_check) = first.get_mut().next_check(now, reception, away) {
                if first.get().precedes {
                    blocked = blocked.max(Some(next_check));
                }
                break;
            }
            let ended = first.remove();
            self.awaited
                .retain(|_, awaited| !Arc::ptr_eq(&awaited.left, &ended.left));
        }
        match blocked {
            Some(until) => Due::Blocked(until),
            None => Due::Queue(front.queue()),
        }
    }

    fn awaited_before(&self, order_key: u64) -> Option<&Awaited> {
        let (_, first) = self.awaited.range(..order_key).next()?;
        first.precedes.then_some(first)
    }

    pub(super) fn awaits_before(&self, order_key: u64) -> bool {
        self.awaited_before(order_key).is_some()
    }

    pub(super) fn comes_to_run(&self, now: Instant) -> Option<Instant> {
        let order_key = self.queue.front().map_or(u64::MAX, LaneItem::order_key);
        let back_at = self.awaited_before(order_key).map(|awaited| awaited.back_at(now));
        self.blocked_until.max(back_at)
    }

    pub(super) fn counts(&self) -> Counts {
        let items = self.queue.len();
        let (set_aside, blocked, moving) = match (self.place, self.running) {
            (Place::Blocked(_), _) if self.is_moving => (0, items, 1),
            (Place::Blocked(_), _) => (items, items, 0),
            (Place::Queue(queue), _) | (_, Some(queue)) if queue != Queue::Ready => (items, 0, 0),
            _ => (0, 0, 0),
        };
        Counts {
            set_aside,
            blocked,
            away: self.awaited.len(),
            moving,
        }
    }
}

impl Place {
    pub(super) fn is(self, due: Due) -> bool {
        match (self, due) {
            (Self::Nowhere, Due::Nowhere) => true,
            (Self::Queue(at), Due::Queue(due)) => at == due,
            (Self::Blocked((at, _)), Due::Blocked(until))
            | (Self::Awaiting((at, _)), Due::Awaiting(until)) => at == until,
            _ => false,
        }
    }
}
