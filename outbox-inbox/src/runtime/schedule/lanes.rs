//! Keeps the messages of an aggregate in order, and selects the next message to run.
//!
//! One lane per aggregate; without order one lane per message; with order `strict` a single lane.
//!
//! | queue of a lane | its first item |
//! |---|---|
//! | `Ready` | may run, and is not expected to fail |
//! | `Doubtful` | may run for the first time, but its handler currently fails for every message |
//! | `Retries` | may run again after a failure |
//! | `Blocked` | may not run before a time: it failed, or earlier items are awaited |
//! | `Nowhere` | is running, or does not exist |
//!
//! Invariants: items leave a lane in order, and none while another item runs or the lane is
//! blocked. For a bounded time, an item returned to the broker precedes later items even if it is
//! redelivered after them.

mod absence;
mod eviction;
mod lane;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use outbox_core::Aggregate;
use tokio::time::Instant;

pub(crate) use self::absence::Awaited;
use self::absence::Reception;
pub(crate) use self::eviction::Evicted;
use self::lane::{Counts, Due, Lane, Place};

const BATCH_LOOKS: usize = 64;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum LaneKey {
    Aggregate(Aggregate, Option<Arc<str>>),
    /// Lane for retried dead letters whose aggregate has an earlier dead letter that is not due
    /// yet.
    Letters(Arc<LaneKey>),
    Alone(u64),
    All,
}

pub(crate) trait LaneItem {
    fn order_key(&self) -> u64;

    fn queue(&self) -> Queue;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Queue {
    Ready,
    Doubtful,
    Retries,
}

type Timers = BTreeMap<(Instant, u64), Arc<LaneKey>>;

#[derive(Debug)]
pub(crate) struct Lanes<T> {
    lanes: HashMap<Arc<LaneKey>, Lane<T>>,
    queues: [VecDeque<Arc<LaneKey>>; 3],
    block_ends: Timers,
    awaiting: Timers,
    reception: Reception,
    timers: u64,
    waiting: usize,
    counts: Counts,
}

impl<T> Lanes<T> {
    pub(crate) fn new(prefetch: usize) -> Self {
        Self {
            lanes: HashMap::new(),
            queues: Default::default(),
            block_ends: BTreeMap::new(),
            awaiting: BTreeMap::new(),
            reception: Reception::new(prefetch),
            timers: 0,
            waiting: 0,
            counts: Counts::default(),
        }
    }
}

impl<T: LaneItem> Lanes<T> {
    pub(crate) fn push(&mut self, key: LaneKey, item: T, now: Instant) {
        let key = self.lane(key);
        let Some(lane) = self.lanes.get_mut(&key) else {
            return;
        };
        let behind = |other: &&T| other.order_key() > item.order_key();
        let at = lane.queue.len() - lane.queue.iter().rev().take_while(behind).count();
        lane.queue.insert(at, item);
        self.waiting += 1;
        self.settle(&key, now);
    }

    pub(crate) fn received_for(&mut self, time: Duration) {
        self.reception.waited(time);
    }

    pub(crate) fn expect_back(&mut self, key: LaneKey, order_key: u64, awaited: Awaited, now: Instant) {
        let key = self.lane(key);
        if let Some(lane) = self.lanes.get_mut(&key) {
            lane.awaited.insert(order_key, awaited);
        }
        self.settle(&key, now);
    }

    /// Returns the state of an item that was returned to the broker and has arrived again. Call
    /// [`Self::push`] next. `is_new`: whether this is the broker's first delivery of the item.
    pub(crate) fn arrived(&mut self, key: &LaneKey, order_key: u64, is_new: bool) -> Option<Awaited> {
        let lane = self.lanes.get_mut(key);
        let awaited = lane.and_then(|lane| lane.awaited.remove(&order_key));
        self.reception.delivered(is_new || awaited.is_some());
        awaited
    }

    pub(crate) fn take(
        &mut self,
        from: Queue,
        max: impl Fn(&T) -> usize,
        together: impl Fn(&T, &T) -> bool,
        now: Instant,
    ) -> Vec<(Arc<LaneKey>, Vec<T>)> {
        let mut taken: Vec<(Arc<LaneKey>, Vec<T>)> = Vec::new();
        let (mut room, mut passed_over) = (usize::MAX, VecDeque::new());
        while room > 0
            && let Some(key) = self.queues[from as usize].pop_front()
        {
            let Some(lane) = self.lanes.get_mut(&key) else {
                continue;
            };
            lane.place = Place::Nowhere;
            let Some(front) = lane.queue.front() else {
                continue;
            };
            if front.queue() != from {
                self.settle(&key, now);
                self.reconsider(from, now);
                continue;
            }
            let first = taken.first().map(|(_, items)| &items[0]);
            if first.is_some_and(|first| !together(first, front)) {
                lane.place = Place::Queue(from);
                passed_over.push_back(key);
                if passed_over.len() > BATCH_LOOKS {
                    break;
                }
                continue;
            }
            let Some(front) = lane.queue.pop_front() else {
                continue;
            };
            if first.is_none() {
                room = max(&front).max(1);
            }
            let mut items = vec![front];
            room -= 1;
            while room > 0
                && let Some(next) = lane.queue.front()
                && !lane.awaits_before(next.order_key())
                && together(first.unwrap_or(&items[0]), next)
                && let Some(next) = lane.queue.pop_front()
            {
                items.push(next);
                room -= 1;
            }
            lane.running = Some(from);
            self.waiting -= items.len();
            self.settle(&key, now);
            taken.push((key, items));
        }
        while let Some(key) = passed_over.pop_back() {
            self.queues[from as usize].push_front(key);
        }
        taken
    }

    /// Ends the run of a lane. `back`: items without effect, which return to the lane.
    pub(crate) fn finish(
        &mut self,
        key: &Arc<LaneKey>,
        back: Vec<T>,
        blocked_until: Option<Instant>,
        now: Instant,
    ) {
        let Some(lane) = self.lanes.get_mut(key) else {
            return;
        };
        self.waiting += back.len();
        for item in back.into_iter().rev() {
            let before = |other: &&T| other.order_key() < item.order_key();
            let at = lane.queue.iter().take_while(before).count();
            lane.queue.insert(at, item);
        }
        lane.running = None;
        lane.blocked_until = blocked_until;
        lane.is_moving = false;
        self.settle(key, now);
    }

    pub(crate) fn set_moving(&mut self, key: &Arc<LaneKey>, is_moving: bool, now: Instant) {
        if let Some(lane) = self.lanes.get_mut(key)
            && lane.is_moving != is_moving
        {
            lane.is_moving = is_moving;
            self.settle(key, now);
        }
    }

    pub(crate) fn set_apart(&mut self, key: LaneKey, items: Vec<T>, blocked_until: Instant, now: Instant) {
        let key = self.lane(key);
        self.finish(&key, items, Some(blocked_until), now);
    }

    pub(crate) fn contains(&self, key: &LaneKey) -> bool {
        self.lanes.contains_key(key)
    }

    pub(crate) fn apart(&self) -> usize {
        let is_apart = |key: &&Arc<LaneKey>| matches!(***key, LaneKey::Letters(_));
        self.lanes.keys().filter(is_apart).count()
    }

    pub(crate) fn unblock(&mut self, key: &Arc<LaneKey>, now: Instant) {
        if let Some(lane) = self.lanes.get_mut(key) {
            lane.blocked_until = None;
            self.settle(key, now);
        }
    }

    pub(crate) fn release(&mut self, now: Instant) {
        let first = |timers: &Timers| {
            timers
                .first_key_value()
                .map(|((until, _), key)| (*until, key.clone()))
        };
        while let Some((until, key)) = [first(&self.block_ends), first(&self.awaiting)]
            .into_iter()
            .flatten()
            .min_by_key(|(until, _)| *until)
            && until <= now
        {
            self.settle(&key, now);
        }
    }

    pub(crate) fn next_release(&self) -> Option<Instant> {
        let first = |timers: &Timers| timers.first_key_value().map(|((until, _), _)| *until);
        [first(&self.block_ends), first(&self.awaiting)]
            .into_iter()
            .flatten()
            .min()
    }

    pub(crate) fn first_order_key(&self, key: &LaneKey) -> Option<u64> {
        self.lanes.get(key)?.queue.front().map(LaneItem::order_key)
    }

    pub(crate) fn blocked_order_key(&self, key: &LaneKey) -> Option<u64> {
        let lane = self.lanes.get(key)?;
        matches!(lane.place, Place::Blocked(_)).then_some(())?;
        lane.queue.front().map(LaneItem::order_key)
    }

    pub(crate) fn withdraw(
        &mut self,
        key: &Arc<LaneKey>,
        which: impl Fn(&T) -> bool,
        now: Instant,
    ) -> Vec<T> {
        let Some(lane) = self.lanes.get_mut(key) else {
            return Vec::new();
        };
        let (withdrawn, stay): (VecDeque<T>, VecDeque<T>) =
            std::mem::take(&mut lane.queue).into_iter().partition(which);
        lane.queue = stay;
        self.waiting -= withdrawn.len();
        self.settle(key, now);
        withdrawn.into()
    }

    pub(crate) fn waiting_in(&self, queue: Queue) -> usize {
        self.queues[queue as usize].len()
    }

    pub(crate) fn suspects(&self) -> usize {
        self.waiting_in(Queue::Doubtful) + self.waiting_in(Queue::Retries)
    }

    pub(crate) fn set_aside(&self) -> usize {
        self.counts.set_aside
    }

    pub(crate) fn moving(&self) -> usize {
        self.counts.moving
    }

    pub(crate) fn blocked(&self) -> usize {
        self.counts.blocked
    }

    pub(crate) fn waiting(&self) -> usize {
        self.waiting
    }

    pub(crate) fn drain(&mut self) -> Vec<T> {
        let lanes = std::mem::take(&mut self.lanes);
        *self = Self {
            reception: std::mem::take(&mut self.reception),
            ..Self::new(0)
        };
        lanes.into_values().flat_map(|lane| lane.queue).collect()
    }

    fn lane(&mut self, key: LaneKey) -> Arc<LaneKey> {
        if let Some((key, _)) = self.lanes.get_key_value(&key) {
            return key.clone();
        }
        let key = Arc::new(key);
        self.lanes.insert(key.clone(), Lane::new());
        key
    }

    fn reconsider(&mut self, queue: Queue, now: Instant) {
        let misplaced = self.queues[queue as usize].iter().filter(|key| {
            let front = self.lanes.get(*key).and_then(|lane| lane.queue.front());
            front.is_some_and(|front| front.queue() != queue)
        });
        for key in misplaced.cloned().collect::<Vec<_>>() {
            self.settle(&key, now);
        }
    }

    fn settle(&mut self, key: &Arc<LaneKey>, now: Instant) {
        let Some(lane) = self.lanes.get_mut(key) else {
            return;
        };
        let due = lane.due(now, &self.reception, self.counts.away);
        if !lane.place.is(due) {
            let left = std::mem::replace(&mut lane.place, Place::Nowhere);
            let place = self.enter(key, due);
            self.leave(key, left);
            if let Some(lane) = self.lanes.get_mut(key) {
                lane.place = place;
            }
        }
        let Some(lane) = self.lanes.get_mut(key) else {
            return;
        };
        let counts = lane.counts();
        self.counts
            .replace(std::mem::replace(&mut lane.counted, counts), counts);
        if lane.queue.is_empty() && lane.running.is_none() && lane.awaited.is_empty() {
            self.lanes.remove(key);
        }
    }

    fn enter(&mut self, key: &Arc<LaneKey>, due: Due) -> Place {
        self.timers += 1;
        match due {
            Due::Nowhere => Place::Nowhere,
            Due::Queue(queue) => {
                self.queues[queue as usize].push_back(key.clone());
                Place::Queue(queue)
            }
            Due::Blocked(until) => {
                self.block_ends.insert((until, self.timers), key.clone());
                Place::Blocked((until, self.timers))
            }
            Due::Awaiting(until) => {
                self.awaiting.insert((until, self.timers), key.clone());
                Place::Awaiting((until, self.timers))
            }
        }
    }

    fn leave(&mut self, key: &Arc<LaneKey>, place: Place) {
        match place {
            Place::Nowhere => {}
            Place::Queue(queue) => remove(&mut self.queues[queue as usize], key),
            Place::Blocked(timer) => drop(self.block_ends.remove(&timer)),
            Place::Awaiting(timer) => drop(self.awaiting.remove(&timer)),
        }
    }
}

fn remove(queue: &mut VecDeque<Arc<LaneKey>>, key: &Arc<LaneKey>) {
    if queue.back().is_some_and(|last| Arc::ptr_eq(last, key)) {
        queue.pop_back();
    } else {
        queue.retain(|other| !Arc::ptr_eq(other, key));
    }
}

#[cfg(test)]
mod tests;
