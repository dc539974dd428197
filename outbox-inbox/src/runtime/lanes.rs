//! Keeps what must run in order in order, and apart from the rest.
//!
//! One lane per aggregate that has something waiting or running; in a consumer without order one per message, in a strict one a single lane.
//! Invariants: a lane's items leave it in the order of their ranks, and none leaves while another one runs or the first is held; one that comes
//! late, because another process had it, comes before those that wait already; what was given back to the broker from a lane comes before
//! everything behind it, also if the broker delivers it later. Absent here: time (callers pass it), bounds, and running anything.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use outbox_core::Aggregate;
use tokio::time::Instant;

/// What shares a lane.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum LaneKey {
    /// Messages of one aggregate.
    Aggregate(Aggregate),
    /// A message that nothing waits for; its ticket.
    Alone(u64),
    /// Everything.
    All,
}

/// What stands in a lane.
pub(super) trait Queued {
    /// Its place among those of its lane.
    fn rank(&self) -> u64;
}

/// The lanes of a consumer.
#[derive(Debug)]
pub(super) struct Lanes<T> {
    lanes: HashMap<Arc<LaneKey>, Lane<T>>,
    /// Lanes whose first item may run, in the order in which that became true.
    ready: VecDeque<Arc<LaneKey>>,
    /// Held lanes by the end of their hold; the number keeps equal times apart.
    holds: BTreeMap<(Instant, u64), Arc<LaneKey>>,
    holds_made: u64,
    /// Lanes whose first item did not end when it ran last.
    troubled: HashSet<Arc<LaneKey>>,
    /// Items that wait in held lanes.
    held: usize,
    waiting: usize,
}

#[derive(Debug)]
struct Lane<T> {
    queue: VecDeque<T>,
    state: State,
    /// Ranks of what was given back to the broker, and until when they are waited for.
    owed: BTreeMap<u64, Instant>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// In `ready`, if there is an item.
    Free,
    /// Items of it are out.
    Running,
    /// In `holds`.
    Held((Instant, u64)),
}

impl<T> Default for Lanes<T> {
    fn default() -> Self {
        Self {
            lanes: HashMap::new(),
            ready: VecDeque::new(),
            holds: BTreeMap::new(),
            holds_made: 0,
            troubled: HashSet::new(),
            held: 0,
            waiting: 0,
        }
    }
}

impl<T: Queued> Lanes<T> {
    /// Until when an item that comes now must go back to the broker, because others before it have not come back yet.
    pub(super) fn owes_before(&mut self, key: &LaneKey, rank: u64, now: Instant) -> Option<Instant> {
        let lane = self.lanes.get_mut(key)?;
        lane.owed.retain(|_, until| *until > now);
        lane.owed.remove(&rank);
        let owed = lane.owed.range(..rank).map(|(_, until)| *until).max();
        self.tidy(key);
        owed
    }

    /// Notes that an item went back to the broker, and until when it is waited for.
    pub(super) fn owe(&mut self, key: LaneKey, rank: u64, until: Instant) {
        self.lane(Arc::new(key)).1.owed.insert(rank, until);
    }

    /// Puts an item into its lane, behind all that do not come after it.
    pub(super) fn push(&mut self, key: LaneKey, item: T) {
        let (key, lane) = self.lane(Arc::new(key));
        let behind = |other: &&T| other.rank() > item.rank();
        let at = lane.queue.len() - lane.queue.iter().rev().take_while(behind).count();
        lane.queue.insert(at, item);
        let (state, first) = (lane.state, lane.queue.len() == 1);
        self.waiting += 1;
        match state {
            State::Free if first => self.ready.push_back(key),
            State::Held(_) => self.held += 1,
            _ => {}
        }
    }

    /// Takes the first item that may run, and with it others that may run in the same transaction, at most `max(&first)` in all. The
    /// lanes they come from stand still until [`Self::finish`].
    pub(super) fn take(
        &mut self,
        max: impl Fn(&T) -> usize,
        together: impl Fn(&T, &T) -> bool,
    ) -> Vec<(Arc<LaneKey>, Vec<T>)> {
        let mut taken: Vec<(Arc<LaneKey>, Vec<T>)> = Vec::new();
        let (mut room, mut passed_over) = (usize::MAX, VecDeque::new());
        while room > 0
            && let Some(key) = self.ready.pop_front()
        {
            let Some(lane) = self.lanes.get_mut(&key) else {
                continue;
            };
            let first = taken.first().map(|(_, items)| &items[0]);
            if let (Some(first), Some(front)) = (first, lane.queue.front())
                && !together(first, front)
            {
                passed_over.push_back(key);
                // A look at each of many lanes for each batch would cost more than smaller batches.
                if passed_over.len() > 64 {
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
                && together(first.unwrap_or(&items[0]), next)
                && let Some(next) = lane.queue.pop_front()
            {
                items.push(next);
                room -= 1;
            }
            lane.state = State::Running;
            self.waiting -= items.len();
            taken.push((key, items));
        }
        while let Some(key) = passed_over.pop_back() {
            self.ready.push_front(key);
        }
        taken
    }

    /// The items taken from a lane have ended. Those that have not taken effect come back, in their order; `hold`: not before then.
    pub(super) fn finish(&mut self, key: &Arc<LaneKey>, back: Vec<T>, hold: Option<Instant>) {
        let Some(lane) = self.lanes.get_mut(key) else {
            return;
        };
        self.waiting += back.len();
        for item in back.into_iter().rev() {
            // Usually at the front, unless an earlier one came meanwhile.
            let before = |other: &&T| other.rank() < item.rank();
            let at = lane.queue.iter().take_while(before).count();
            lane.queue.insert(at, item);
        }
        lane.state = match hold {
            Some(until) if !lane.queue.is_empty() => {
                self.holds_made += 1;
                let hold = (until, self.holds_made);
                self.holds.insert(hold, key.clone());
                self.held += lane.queue.len();
                self.troubled.insert(key.clone());
                State::Held(hold)
            }
            _ => {
                self.troubled.remove(key);
                if !lane.queue.is_empty() {
                    self.ready.push_back(key.clone());
                }
                State::Free
            }
        };
        self.tidy(key);
    }

    /// Ends the holds that are due.
    pub(super) fn release(&mut self, now: Instant) {
        while let Some(hold) = self.holds.first_entry()
            && hold.key().0 <= now
        {
            let key = hold.remove();
            if let Some(lane) = self.lanes.get_mut(&key) {
                lane.state = State::Free;
                self.held -= lane.queue.len();
                self.ready.push_back(key);
            }
        }
    }

    /// When the next hold ends.
    pub(super) fn next_release(&self) -> Option<Instant> {
        self.holds.first_key_value().map(|((until, _), _)| *until)
    }

    /// Takes the last of what waits behind an item that did not end, from the lane where that is the most; also says until when the lane is held.
    /// `None`: there is none.
    pub(super) fn shed(&mut self) -> Option<(Arc<LaneKey>, T, Option<Instant>)> {
        let behind = |key: &Arc<LaneKey>| {
            let lane = self.lanes.get(key)?;
            let first_is_here = usize::from(lane.state != State::Running);
            Some(lane.queue.len().saturating_sub(first_is_here))
        };
        let longest = self.troubled.iter().filter_map(|key| Some((behind(key)?, key)));
        let (items, key) = longest.max_by_key(|(items, _)| *items)?;
        if items == 0 {
            return None;
        }
        let key = key.clone();
        let lane = self.lanes.get_mut(&key)?;
        let item = lane.queue.pop_back()?;
        self.waiting -= 1;
        let until = match lane.state {
            State::Held((until, _)) => {
                self.held -= 1;
                Some(until)
            }
            _ => None,
        };
        Some((key, item, until))
    }

    /// Whether nothing that waits may run.
    pub(super) fn is_blocked(&self) -> bool {
        self.ready.is_empty()
    }

    /// Items that wait for the end of a hold.
    pub(super) fn held(&self) -> usize {
        self.held
    }

    /// Items that wait, for whatever.
    pub(super) fn waiting(&self) -> usize {
        self.waiting
    }

    /// Empties all lanes, each from front to back.
    pub(super) fn drain(&mut self) -> Vec<T> {
        let lanes = std::mem::take(&mut self.lanes);
        *self = Self::default();
        lanes.into_values().flat_map(|lane| lane.queue).collect()
    }

    fn lane(&mut self, key: Arc<LaneKey>) -> (Arc<LaneKey>, &mut Lane<T>) {
        let lane = self.lanes.entry(key.clone()).or_insert_with(|| Lane {
            queue: VecDeque::new(),
            state: State::Free,
            owed: BTreeMap::new(),
        });
        (key, lane)
    }

    /// Forgets a lane that has nothing to remember.
    fn tidy(&mut self, key: &LaneKey) {
        if self
            .lanes
            .get(key)
            .is_some_and(|lane| lane.queue.is_empty() && lane.owed.is_empty() && lane.state == State::Free)
        {
            self.lanes.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    impl Queued for u32 {
        fn rank(&self) -> u64 {
            u64::from(*self)
        }
    }

    fn aggregate(id: u32) -> LaneKey {
        LaneKey::Aggregate(Aggregate::new("order", id.to_string()))
    }

    /// Takes one item, and says which.
    fn one(lanes: &mut Lanes<u32>) -> Option<(Arc<LaneKey>, u32)> {
        lanes
            .take(|_| 1, |_, _| true)
            .pop()
            .map(|(key, items)| (key, items[0]))
    }

    #[test]
    fn one_aggregate_waits_another_does_not() {
        let mut lanes = Lanes::default();
        lanes.push(aggregate(1), 10);
        lanes.push(aggregate(1), 11);
        lanes.push(aggregate(2), 20);
        let (first, item) = one(&mut lanes).unwrap();
        assert_eq!(item, 10);
        assert_eq!(one(&mut lanes).unwrap().1, 20);
        assert!(one(&mut lanes).is_none());
        lanes.finish(&first, vec![], None);
        assert_eq!(one(&mut lanes).unwrap().1, 11);
    }

    #[test]
    fn what_failed_holds_back_its_own_lane_until_its_time() {
        let (mut lanes, now) = (Lanes::default(), Instant::now());
        let later = now + Duration::from_secs(5);
        lanes.push(aggregate(1), 10);
        lanes.push(aggregate(1), 11);
        let (key, item) = one(&mut lanes).unwrap();
        lanes.finish(&key, vec![item], Some(later));
        assert!(one(&mut lanes).is_none());
        assert_eq!((lanes.held(), lanes.next_release()), (2, Some(later)));
        lanes.push(aggregate(1), 12);
        lanes.push(aggregate(2), 20);
        assert_eq!(one(&mut lanes).unwrap().1, 20);
        lanes.release(now);
        assert!(one(&mut lanes).is_none());
        lanes.release(later);
        assert_eq!((one(&mut lanes).unwrap().1, lanes.held()), (10, 0));
    }

    #[test]
    fn a_batch_takes_what_belongs_together_and_leaves_the_rest_in_order() {
        let mut lanes = Lanes::default();
        for (id, item) in [(1, 10), (1, 11), (2, 25), (3, 30), (1, 12), (3, 35), (4, 40)] {
            lanes.push(aggregate(id), item);
        }
        let even = |a: &u32, b: &u32| a % 10 < 5 && b % 10 < 5;
        let taken: Vec<_> = lanes
            .take(|_| 5, even)
            .into_iter()
            .map(|(_, items)| items)
            .collect();
        assert_eq!(taken, [vec![10, 11, 12], vec![30], vec![40]]);
        assert_eq!(one(&mut lanes).unwrap().1, 25);
        // Behind 30, which is out.
        assert!(one(&mut lanes).is_none());
        assert_eq!(lanes.waiting(), 1);
    }

    #[test]
    fn what_went_back_to_the_broker_comes_before_what_is_behind_it() {
        let (mut lanes, now) = (Lanes::default(), Instant::now());
        let until = now + Duration::from_secs(60);
        lanes.push(aggregate(1), 10);
        lanes.push(aggregate(1), 11);
        lanes.push(aggregate(1), 12);
        let (key, item) = one(&mut lanes).unwrap();
        lanes.finish(&key, vec![item], Some(until));
        let (shed, item, held_until) = lanes.shed().unwrap();
        assert_eq!((&*shed, item, held_until), (&aggregate(1), 12, Some(until)));
        lanes.owe((*shed).clone(), 12, until);
        // 13 must not pass 12, whoever comes first; another aggregate may.
        assert_eq!(lanes.owes_before(&aggregate(1), 13, now), Some(until));
        lanes.owe(aggregate(1), 13, until);
        assert_eq!(lanes.owes_before(&aggregate(2), 14, now), None);
        assert_eq!(lanes.owes_before(&aggregate(1), 12, now), None);
        assert_eq!(lanes.owes_before(&aggregate(1), 13, now), None);
        // Another process may have got it: it is not waited for without end.
        lanes.owe(aggregate(1), 15, until);
        assert_eq!(lanes.owes_before(&aggregate(1), 16, now), Some(until));
        assert_eq!(lanes.owes_before(&aggregate(1), 16, until), None);
        // The first of a held lane stays.
        assert_eq!(lanes.shed().unwrap().1, 11);
        assert!(lanes.shed().is_none());
    }

    /// It was another process's, which ended. Those behind it wait for it, so it must not wait behind them.
    #[test]
    fn what_comes_late_does_not_wait_behind_what_waits_for_it() {
        let (mut lanes, now) = (Lanes::default(), Instant::now());
        for item in [12, 13, 14] {
            lanes.push(aggregate(1), item);
        }
        let (key, item) = one(&mut lanes).unwrap();
        lanes.push(aggregate(1), 10);
        lanes.finish(&key, vec![item], Some(now));
        lanes.push(aggregate(1), 11);
        lanes.push(aggregate(1), 15);
        assert_eq!(lanes.held(), 6);
        lanes.release(now);
        let taken = lanes.take(|_| 10, |_, _| true).pop().unwrap().1;
        assert_eq!(taken, [10, 11, 12, 13, 14, 15]);
    }

    #[test]
    fn empty_lanes_are_forgotten() {
        let mut lanes = Lanes::default();
        for id in 0..10_000 {
            lanes.push(aggregate(id), id);
            let (key, _) = one(&mut lanes).unwrap();
            lanes.finish(&key, vec![], None);
        }
        assert_eq!((lanes.lanes.len(), lanes.ready.len(), lanes.waiting()), (0, 0, 0));
    }

    #[test]
    fn only_lanes_in_trouble_are_shed_from() {
        let (mut lanes, now) = (Lanes::default(), Instant::now());
        for item in [10, 11, 12] {
            lanes.push(aggregate(1), item);
        }
        // Busy is not in trouble.
        let (key, item) = one(&mut lanes).unwrap();
        assert!(lanes.shed().is_none());
        lanes.finish(&key, vec![item], Some(now));
        lanes.release(now);
        // It runs once more, and what is behind it may go.
        let (key, item) = one(&mut lanes).unwrap();
        assert_eq!(
            lanes.shed().map(|(_, item, until)| (item, until)),
            Some((12, None))
        );
        assert_eq!(
            lanes.shed().map(|(_, item, until)| (item, until)),
            Some((11, None))
        );
        assert!(lanes.shed().is_none());
        assert_eq!(item, 10);
        lanes.finish(&key, vec![], None);
        assert!(lanes.troubled.is_empty());
    }
}
