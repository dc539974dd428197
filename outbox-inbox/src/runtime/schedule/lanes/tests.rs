//! Tests of order, blocking and eviction.

use std::time::Duration;

use super::*;

mod absence;

/// Items with numbers from 1,000 have failed before. The handler of items from 2,000 fails for
/// every message.
impl LaneItem for u32 {
    fn order_key(&self) -> u64 {
        u64::from(*self % 1000)
    }

    fn queue(&self) -> Queue {
        match self {
            0..1000 => Queue::Ready,
            1000..2000 => Queue::Retries,
            _ => Queue::Doubtful,
        }
    }
}

fn aggregate(id: u32) -> LaneKey {
    LaneKey::Aggregate(Aggregate::new("order", id.to_string()), None)
}

fn from(lanes: &mut Lanes<u32>, queue: Queue) -> Option<(Arc<LaneKey>, u32)> {
    let mut taken = lanes.take(queue, |_| 1, |_, _| true, Instant::now());
    taken.pop().map(|(key, items)| (key, items[0]))
}

fn one(lanes: &mut Lanes<u32>) -> Option<(Arc<LaneKey>, u32)> {
    from(lanes, Queue::Ready)
}

const PREFETCH: usize = 4;

fn none<T: LaneItem>() -> Lanes<T> {
    Lanes::new(PREFETCH)
}

const MINUTE: Duration = Duration::from_secs(60);

#[test]
fn running_item_blocks_its_own_lane_only() {
    let (mut lanes, now) = (none(), Instant::now());
    for (id, item) in [(1, 10), (1, 11), (2, 20)] {
        lanes.push(aggregate(id), item, now);
    }
    let (first, item) = one(&mut lanes).unwrap();
    assert_eq!(item, 10);
    assert_eq!(one(&mut lanes).unwrap().1, 20);
    assert!(one(&mut lanes).is_none());
    lanes.finish(&first, vec![], None, now);
    assert_eq!(one(&mut lanes).unwrap().1, 11);
}

#[test]
fn a_failed_item_blocks_its_own_lane_until_its_time() {
    let (mut lanes, now) = (none(), Instant::now());
    let later = now + Duration::from_secs(5);
    lanes.push(aggregate(1), 10, now);
    lanes.push(aggregate(1), 11, now);
    let (key, item) = one(&mut lanes).unwrap();
    lanes.finish(&key, vec![item], Some(later), now);
    assert!(one(&mut lanes).is_none());
    assert_eq!((lanes.blocked(), lanes.next_release()), (2, Some(later)));
    lanes.push(aggregate(1), 12, now);
    lanes.push(aggregate(2), 20, now);
    assert_eq!(one(&mut lanes).unwrap().1, 20);
    lanes.release(now);
    assert!(one(&mut lanes).is_none());
    lanes.release(later);
    assert_eq!((one(&mut lanes).unwrap().1, lanes.blocked()), (10, 0));
}

#[test]
fn failed_items_have_their_own_queue() {
    let (mut lanes, now) = (none(), Instant::now());
    for (id, item) in [(1, 1010), (1, 11), (2, 20)] {
        lanes.push(aggregate(id), item, now);
    }
    assert_eq!((lanes.suspects(), lanes.set_aside()), (1, 2));
    assert_eq!(one(&mut lanes).unwrap().1, 20);
    assert!(one(&mut lanes).is_none());
    let (key, item) = from(&mut lanes, Queue::Retries).unwrap();
    assert_eq!((item, lanes.suspects(), lanes.set_aside()), (1010, 0, 1));
    lanes.finish(&key, vec![], None, now);
    assert_eq!((one(&mut lanes).unwrap().1, lanes.set_aside()), (11, 0));
}

#[test]
fn batch_takes_matching_items_and_keeps_the_order() {
    let (mut lanes, now) = (none(), Instant::now());
    for (id, item) in [(1, 10), (1, 11), (2, 25), (3, 30), (1, 12), (3, 35), (4, 40)] {
        lanes.push(aggregate(id), item, now);
    }
    let even = |a: &u32, b: &u32| a % 10 < 5 && b % 10 < 5;
    let taken: Vec<_> = lanes
        .take(Queue::Ready, |_| 5, even, now)
        .into_iter()
        .map(|(_, items)| items)
        .collect();
    assert_eq!(taken, [vec![10, 11, 12], vec![30], vec![40]]);
    assert_eq!(one(&mut lanes).unwrap().1, 25);
    assert!(one(&mut lanes).is_none());
    assert_eq!(lanes.waiting(), 1);
}

fn a_new_one_arrives(lanes: &mut Lanes<u32>) {
    assert!(lanes.arrived(&aggregate(99), 1, true).is_none());
}

#[test]
fn late_item_is_sorted_before_waiting_items() {
    let (mut lanes, now) = (none(), Instant::now());
    for item in [12, 13, 14] {
        lanes.push(aggregate(1), item, now);
    }
    let (key, item) = one(&mut lanes).unwrap();
    lanes.push(aggregate(1), 10, now);
    let later = now + Duration::from_secs(1);
    lanes.finish(&key, vec![item], Some(later), now);
    lanes.push(aggregate(1), 11, now);
    lanes.push(aggregate(1), 15, now);
    assert_eq!(lanes.blocked(), 6);
    lanes.unblock(&key, now);
    let taken = lanes
        .take(Queue::Ready, |_| 10, |_, _| true, now)
        .pop()
        .unwrap()
        .1;
    assert_eq!(taken, [10, 11, 12, 13, 14, 15]);
}

#[test]
fn empty_lanes_are_removed() {
    let (mut lanes, now) = (none(), Instant::now());
    for id in 0..10_000 {
        lanes.push(aggregate(id), id % 1000, now);
        let (key, _) = one(&mut lanes).unwrap();
        lanes.finish(&key, vec![], None, now);
    }
    assert_eq!(
        (lanes.lanes.len(), lanes.waiting_in(Queue::Ready), lanes.waiting()),
        (0, 0, 0)
    );
}

#[test]
fn cheapest_items_leave_memory_first() {
    let (mut lanes, now) = (none(), Instant::now());
    let (soon, far) = (now + Duration::from_secs(1), now + Duration::from_secs(10));
    for (id, item) in [
        (1, 10),
        (1, 11),
        (2, 20),
        (3, 1030),
        (3, 31),
        (3, 32),
        (4, 40),
        (4, 41),
    ] {
        lanes.push(aggregate(id), item, now);
    }
    for end in [far, soon] {
        let (key, item) = one(&mut lanes).unwrap();
        lanes.finish(&key, vec![item], Some(end), now);
    }
    assert_eq!((lanes.set_aside(), lanes.blocked()), (6, 3));
    let mut evict = |any| {
        let evicted = lanes.evict(soon + Duration::from_secs(1), any, now)?;
        Some((evicted.items, evicted.blocked_until))
    };
    assert_eq!(evict(false), Some((vec![10, 11], Some(far))));
    assert_eq!(evict(false), Some((vec![32], None)));
    assert_eq!(evict(false), Some((vec![31], None)));
    assert_eq!(evict(false), Some((vec![1030], None)));
    assert_eq!(evict(false), Some((vec![20], Some(soon))));
    assert_eq!(evict(false), None);
    assert_eq!(evict(true), Some((vec![41], None)));
    assert_eq!(evict(true), None);
    assert_eq!((lanes.set_aside(), lanes.blocked(), lanes.waiting()), (0, 0, 1));
    assert_eq!(lanes.lanes.len(), 1);
}

#[test]
fn items_behind_a_running_retry_are_set_aside() {
    let (mut lanes, now) = (none(), Instant::now());
    for item in [1010, 11, 12] {
        lanes.push(aggregate(1), item, now);
    }
    let (key, item) = from(&mut lanes, Queue::Retries).unwrap();
    assert_eq!(lanes.set_aside(), 2);
    let evicted = lanes.evict(now, false, now).unwrap();
    assert_eq!(evicted.items, [12]);
    lanes.finish(&key, vec![item], None, now);
    assert_eq!((lanes.set_aside(), lanes.suspects()), (2, 1));
}

#[test]
fn lane_moving_in_other_process_is_not_set_aside() {
    let (mut lanes, now) = (none(), Instant::now());
    for item in [4, 7, 8] {
        lanes.push(aggregate(1), item, now);
    }
    let (key, _) = one(&mut lanes).unwrap();
    lanes.finish(&key, vec![], Some(now + MINUTE), now);
    assert_eq!((lanes.set_aside(), lanes.blocked(), lanes.moving()), (2, 2, 0));
    lanes.set_moving(&key, true, now);
    assert_eq!((lanes.set_aside(), lanes.blocked(), lanes.moving()), (0, 2, 1));
    lanes.set_moving(&key, false, now);
    assert_eq!((lanes.set_aside(), lanes.moving()), (2, 0));
    lanes.set_moving(&key, true, now);
    lanes.unblock(&key, now);
    assert_eq!((lanes.set_aside(), lanes.moving()), (0, 0));
    let (key, _) = one(&mut lanes).unwrap();
    lanes.finish(&key, vec![], Some(now + MINUTE), now);
    assert_eq!((lanes.set_aside(), lanes.moving()), (1, 0));
}

#[derive(Debug)]
struct OfHandler(std::rc::Rc<std::cell::Cell<Queue>>);

impl LaneItem for OfHandler {
    fn order_key(&self) -> u64 {
        1
    }

    fn queue(&self) -> Queue {
        self.0.get()
    }
}

#[test]
fn lanes_follow_their_handler() {
    let (mut lanes, now) = (none(), Instant::now());
    let handler = std::rc::Rc::new(std::cell::Cell::new(Queue::Ready));
    for id in 0..3 {
        lanes.push(aggregate(id), OfHandler(handler.clone()), now);
    }
    let mut counts = |from| {
        let taken = lanes.take(from, |_| 1, |_, _| true, now);
        for (key, _) in &taken {
            lanes.finish(key, Vec::new(), None, now);
        }
        let waiting = [Queue::Ready, Queue::Doubtful].map(|queue| lanes.waiting_in(queue));
        (taken.len(), waiting)
    };
    handler.set(Queue::Doubtful);
    assert_eq!(counts(Queue::Ready), (0, [0, 3]));
    assert_eq!(counts(Queue::Doubtful), (1, [0, 2]));
    handler.set(Queue::Ready);
    assert_eq!(counts(Queue::Doubtful), (0, [2, 0]));
    assert_eq!(counts(Queue::Ready), (1, [1, 0]));
}
