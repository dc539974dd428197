//! Tests of items that were returned to the broker.

use super::super::absence::{SILENCE_MIN, WAIT_MAX};
use super::*;
use crate::runtime::message::{Left, Memory};

fn gone(since: Instant) -> Awaited {
    Awaited {
        left: Arc::new(since.into()),
        absence: MINUTE,
        deliveries: 1,
        precedes: true,
        memory: Memory::default(),
        overdue: None,
    }
}

#[test]
fn returned_item_precedes_later_items() {
    let (mut lanes, now) = (none(), Instant::now());
    let later = now + Duration::from_secs(60);
    for item in [10, 11, 12] {
        lanes.push(aggregate(1), item, now);
    }
    let evicted = lanes.evict(later, true, now).unwrap();
    assert_eq!((&*evicted.key, evicted.items), (&aggregate(1), vec![12]));
    lanes.expect_back(aggregate(1), 12, gone(now), now);
    let (key, _) = one(&mut lanes).unwrap();
    lanes.finish(&key, vec![], None, now);
    let (key, item) = one(&mut lanes).unwrap();
    assert_eq!(item, 11);
    lanes.finish(&key, vec![], None, now);
    assert!(lanes.arrived(&aggregate(1), 13, true).is_none());
    lanes.push(aggregate(1), 13, now);
    lanes.push(aggregate(2), 20, now);
    assert_eq!(one(&mut lanes).unwrap().1, 20);
    assert!(one(&mut lanes).is_none());
    assert_eq!(lanes.arrived(&aggregate(1), 12, false).unwrap().deliveries, 1);
    lanes.push(aggregate(1), 12, now);
    let taken = lanes.take(Queue::Ready, |_| 10, |_, _| true, now);
    assert_eq!(taken[0].1, [12, 13]);
}

#[test]
fn returned_item_is_awaited_for_a_bounded_time() {
    let (mut lanes, now) = (none(), Instant::now());
    let later = now + 2 * MINUTE;
    lanes.expect_back(aggregate(1), 12, gone(now), now);
    lanes.push(aggregate(1), 13, now);
    lanes.release(now);
    assert!(one(&mut lanes).is_none());
    lanes.release(later);
    lanes.received_for(SILENCE_MIN);
    lanes.release(later + SILENCE_MIN);
    let (key, item) = one(&mut lanes).unwrap();
    assert_eq!(item, 13);
    lanes.finish(&key, vec![], None, later);
    assert!(lanes.lanes.is_empty());
}

#[test]
fn returned_item_is_awaited_while_nothing_is_received() {
    let (mut lanes, now) = (none(), Instant::now());
    lanes.expect_back(aggregate(1), 12, gone(now), now);
    lanes.push(aggregate(1), 13, now);
    for minutes in 1..=60 {
        lanes.release(now + minutes * MINUTE);
        assert!(one(&mut lanes).is_none(), "after {minutes} minutes");
    }
    lanes.received_for(SILENCE_MIN / 2);
    lanes.release(now + 61 * MINUTE);
    assert!(one(&mut lanes).is_none());
    lanes.received_for(SILENCE_MIN / 2);
    lanes.release(now + 62 * MINUTE);
    assert_eq!(one(&mut lanes).unwrap().1, 13);
}

#[test]
fn returned_item_is_awaited_while_earlier_items_arrive() {
    let (mut lanes, now) = (none(), Instant::now());
    let away = 100;
    for id in 2..=away {
        lanes.expect_back(aggregate(id), 12, gone(now), now);
    }
    lanes.expect_back(aggregate(1), 12, gone(now), now);
    lanes.push(aggregate(1), 13, now);
    let due = now + 2 * MINUTE;
    lanes.release(due);
    for id in 2..=away {
        lanes.received_for(WAIT_MAX / 101);
        assert!(lanes.arrived(&aggregate(id), 12, false).is_some());
        lanes.push(aggregate(id), 12, due);
        lanes.release(due + MINUTE);
        assert_eq!(one(&mut lanes).unwrap().1, 12);
        assert!(one(&mut lanes).is_none(), "after {id} deliveries");
    }
    assert!(lanes.arrived(&aggregate(1), 12, false).is_some());
    lanes.push(aggregate(1), 12, due + MINUTE);
    assert_eq!(one(&mut lanes).unwrap().1, 12);
}

#[test]
fn other_deliveries_end_the_wait_for_returned_item() {
    let (mut lanes, now) = (none(), Instant::now());
    lanes.expect_back(aggregate(1), 12, gone(now), now);
    lanes.push(aggregate(1), 13, now);
    let due = now + 2 * MINUTE;
    lanes.release(due);
    for _ in 0..PREFETCH {
        a_new_one_arrives(&mut lanes);
        lanes.release(due + MINUTE);
        assert!(one(&mut lanes).is_none());
    }
    a_new_one_arrives(&mut lanes);
    lanes.release(due + 2 * MINUTE);
    assert_eq!(one(&mut lanes).unwrap().1, 13);
}

#[test]
fn unawaited_redeliveries_do_not_end_a_wait() {
    let (mut lanes, now) = (none(), Instant::now());
    lanes.expect_back(aggregate(1), 12, gone(now), now);
    lanes.push(aggregate(1), 13, now);
    let due = now + 2 * MINUTE;
    lanes.release(due);
    for _ in 0..1_000 {
        lanes.received_for(WAIT_MAX / 2_000);
        assert!(lanes.arrived(&aggregate(99), 1, false).is_none());
        lanes.release(due + MINUTE);
        assert!(one(&mut lanes).is_none());
    }
    lanes.received_for(WAIT_MAX / 2);
    assert!(lanes.arrived(&aggregate(99), 1, false).is_none());
    lanes.release(due + 2 * MINUTE);
    assert_eq!(one(&mut lanes).unwrap().1, 13);
}

#[test]
fn items_that_left_together_are_awaited_together() {
    let (mut lanes, now) = (none(), Instant::now());
    let together = gone(now);
    for number in 2..12 {
        lanes.expect_back(aggregate(1), number, together.clone(), now);
    }
    lanes.push(aggregate(1), 12, now);
    let due = now + 2 * MINUTE;
    lanes.release(due);
    lanes.received_for(SILENCE_MIN);
    lanes.release(due + MINUTE);
    assert_eq!(one(&mut lanes).unwrap().1, 12);
}

#[test]
fn item_without_completed_return_is_awaited() {
    let (mut lanes, now) = (none(), Instant::now());
    let left = Left::default();
    let awaited = Awaited {
        left: left.clone(),
        ..gone(now)
    };
    lanes.expect_back(aggregate(1), 12, awaited, now);
    lanes.push(aggregate(1), 13, now);
    lanes.received_for(60 * MINUTE);
    lanes.release(now + 60 * MINUTE);
    assert!(one(&mut lanes).is_none());
    left.set(now + 60 * MINUTE).unwrap();
    lanes.release(now + 61 * MINUTE);
    assert!(one(&mut lanes).is_none());
    lanes.release(now + 62 * MINUTE);
    lanes.received_for(SILENCE_MIN);
    lanes.release(now + 63 * MINUTE);
    assert_eq!(one(&mut lanes).unwrap().1, 13);
}

#[test]
fn lanes_without_items_are_removed_in_time() {
    let (mut lanes, now) = (none::<u32>(), Instant::now());
    for id in 0..10_000 {
        lanes.expect_back(aggregate(id), 1, gone(now), now);
    }
    let due = now + MINUTE * 3 / 2;
    assert_eq!((lanes.lanes.len(), lanes.next_release()), (10_000, Some(due)));
    lanes.release(due);
    lanes.received_for(SILENCE_MIN);
    lanes.release(due + SILENCE_MIN);
    assert_eq!((lanes.lanes.len(), lanes.awaiting.len()), (0, 0));
}

#[test]
fn numbered_items_do_not_wait_for_returned_items() {
    let (mut lanes, now) = (none(), Instant::now());
    let numbered = Awaited {
        precedes: false,
        ..gone(now)
    };
    lanes.expect_back(aggregate(1), 12, numbered, now);
    for item in [13, 14] {
        lanes.push(aggregate(1), item, now);
    }
    let taken = lanes.take(Queue::Ready, |_| 10, |_, _| true, now).pop().unwrap();
    assert_eq!(taken.1, [13, 14]);
    lanes.finish(&taken.0, taken.1, None, now);
    let evicted = lanes.evict(now, true, now).unwrap();
    assert_eq!((evicted.items, evicted.blocked_until), (vec![14], None));
    assert!(lanes.arrived(&aggregate(1), 12, false).is_some());
}

#[test]
fn batch_does_not_pass_returned_items() {
    let (mut lanes, now) = (none(), Instant::now());
    lanes.expect_back(aggregate(1), 12, gone(now), now);
    for item in [10, 11, 13, 14] {
        lanes.push(aggregate(1), item, now);
    }
    let taken = lanes.take(Queue::Ready, |_| 10, |_, _| true, now).pop().unwrap();
    assert_eq!(taken.1, [10, 11]);
    lanes.finish(&taken.0, vec![], None, now);
    assert!(one(&mut lanes).is_none());
}

#[test]
fn items_behind_absent_item_return_with_that_item() {
    let (mut lanes, now) = (none(), Instant::now());
    lanes.expect_back(aggregate(1), 12, gone(now), now);
    lanes.push(aggregate(1), 13, now);
    let evicted = lanes.evict(now, false, now).unwrap();
    assert_eq!(
        (evicted.items, evicted.blocked_until),
        (vec![13], Some(now + MINUTE))
    );
}
