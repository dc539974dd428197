//! Which message may be sent next.
//!
//! Invariant: of one lane at most one message is out, and the next one only follows when it succeeded or was dead-lettered without halting. A lane is
//! an aggregate, or a single message that asked for no order. Absent here: time, I/O and the reasons for failing. A pure data structure.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use tokio::time::Instant;

use crate::message::Aggregate;
use crate::store::FetchedRow;

/// What is kept in order. An aggregate is known by its hash, which saves two strings per message: if two aggregates ever share one, they share a lane,
/// and wait for each other needlessly.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Key {
    Ordered(u64),
    Free(i64),
}

impl Key {
    pub(super) fn of(row: &FetchedRow) -> Self {
        if row.sequenced {
            Self::aggregate(&row.aggregate)
        } else {
            Self::Free(row.row_id)
        }
    }

    pub(super) fn aggregate(aggregate: &Aggregate) -> Self {
        let mut hasher = DefaultHasher::new();
        aggregate.hash(&mut hasher);
        Self::Ordered(hasher.finish())
    }
}

#[derive(Debug, Default)]
pub(super) struct Schedule {
    lanes: HashMap<Key, Lane>,
    /// Keys with a message that may go out, in the order in which they became ready. Keys of closed lanes may linger.
    ready: VecDeque<Key>,
    queued: usize,
    bytes: usize,
}

/// A fetched row, and when it was fetched. Boxed, because it is handed on several times.
#[derive(Debug)]
pub(super) struct Queued {
    pub(super) row: Box<FetchedRow>,
    pub(super) fetched_at: Instant,
}

#[derive(Debug)]
struct Lane {
    partition: u16,
    /// One of its messages is out.
    out: bool,
    /// Messages that are not out, oldest first.
    queue: VecDeque<Queued>,
}

impl Schedule {
    /// Adds a row behind those of its lane.
    pub(super) fn push(&mut self, row: FetchedRow) {
        let key = Key::of(&row);
        let row = Queued {
            row: Box::new(row),
            fetched_at: Instant::now(),
        };
        self.queued += 1;
        self.bytes += row.size();
        match self.lanes.entry(key) {
            Entry::Occupied(mut lane) => {
                let lane = lane.get_mut();
                if !lane.out && lane.queue.is_empty() {
                    self.ready.push_back(key);
                }
                lane.queue.push_back(row);
            }
            Entry::Vacant(entry) => {
                self.ready.push_back(key);
                entry.insert(Lane {
                    partition: row.row.partition,
                    out: false,
                    queue: VecDeque::from([row]),
                });
            }
        }
    }

    /// The next message that may go out. Its lane is blocked until [`Self::proceed`], [`Self::put_back`] or [`Self::close`].
    pub(super) fn next(&mut self) -> Option<(Key, Queued)> {
        while let Some(key) = self.ready.pop_front() {
            let Some(lane) = self.lanes.get_mut(&key).filter(|lane| !lane.out) else {
                continue;
            };
            if let Some(row) = lane.queue.pop_front() {
                lane.out = true;
                self.queued -= 1;
                self.bytes -= row.size();
                return Some((key, row));
            }
        }
        None
    }

    /// The message that was out is done: the next one of its lane may follow.
    pub(super) fn proceed(&mut self, key: Key) {
        if let Entry::Occupied(mut lane) = self.lanes.entry(key) {
            if lane.get().queue.is_empty() {
                lane.remove();
            } else {
                lane.get_mut().out = false;
                self.ready.push_back(key);
            }
        }
    }

    /// The message that was out is to be sent again, before anything else of its lane.
    pub(super) fn put_back(&mut self, key: Key, row: Queued) {
        if let Some(lane) = self.lanes.get_mut(&key) {
            self.queued += 1;
            self.bytes += row.size();
            lane.out = false;
            lane.queue.push_front(row);
            self.ready.push_back(key);
        }
    }

    /// Nothing of the lane may follow: takes what is queued in it.
    pub(super) fn close(&mut self, key: Key) -> Vec<FetchedRow> {
        let queue = self.lanes.remove(&key).map(|lane| lane.queue).unwrap_or_default();
        self.removed(queue)
    }

    /// Takes what is queued of a partition; what is out stays out.
    pub(super) fn take_partition(&mut self, partition: u16) -> Vec<FetchedRow> {
        let mut taken = Vec::new();
        self.lanes.retain(|_, lane| {
            if lane.partition != partition {
                return true;
            }
            taken.extend(lane.queue.drain(..));
            lane.out
        });
        self.removed(taken)
    }

    /// Whether something of a partition is out.
    pub(super) fn has_out(&self, partition: u16) -> bool {
        self.lanes
            .values()
            .any(|lane| lane.partition == partition && lane.out)
    }

    fn removed(&mut self, rows: impl IntoIterator<Item = Queued>) -> Vec<FetchedRow> {
        let removed = rows.into_iter().inspect(|row| {
            self.queued -= 1;
            self.bytes -= row.size();
        });
        removed.map(|row| *row.row).collect()
    }

    /// The lane with the most queued messages, if it has more than `min`.
    pub(super) fn longest(&self, min: usize) -> Option<Key> {
        let (key, lane) = self.lanes.iter().max_by_key(|(_, lane)| lane.queue.len())?;
        (lane.queue.len() > min).then_some(*key)
    }

    /// Takes the newest messages of a lane, all but `keep`.
    pub(super) fn shorten(&mut self, key: Key, keep: usize) -> Vec<FetchedRow> {
        let rest = self
            .lanes
            .get_mut(&key)
            .map(|lane| lane.queue.split_off(keep.min(lane.queue.len())))
            .unwrap_or_default();
        self.removed(rest)
    }

    /// Aggregates of which at least `min` messages are queued.
    pub(super) fn crowded(&self, min: usize) -> Vec<Aggregate> {
        self.lanes
            .values()
            .filter(|lane| lane.queue.len() >= min)
            .filter_map(|lane| lane.queue.front())
            .map(|row| row.row.aggregate.clone())
            .collect()
    }

    /// Whether something may go out now.
    pub(super) fn is_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Messages that are not out.
    pub(super) fn queued(&self) -> usize {
        self.queued
    }

    /// Bytes of their payloads.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Queued {
    fn size(&self) -> usize {
        self.row
            .message
            .as_ref()
            .map_or(0, |message| message.payload.len())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn row(row_id: i64, id: &'static str, sequenced: bool) -> FetchedRow {
        FetchedRow {
            row_id,
            partition: u16::from(id == "b"),
            aggregate: Aggregate::new("thing", id),
            sequenced,
            attempts: 0,
            failures: 0,
            waited: false,
            age: Duration::ZERO,
            message: Err("not needed".to_owned()),
        }
    }

    fn schedule(rows: impl IntoIterator<Item = FetchedRow>) -> Schedule {
        let mut schedule = Schedule::default();
        rows.into_iter().for_each(|row| schedule.push(row));
        schedule
    }

    fn take(schedule: &mut Schedule) -> Option<(Key, i64)> {
        schedule.next().map(|(key, row)| (key, row.row.row_id))
    }

    #[test]
    fn one_message_of_an_aggregate_is_out_at_a_time() {
        let mut schedule = schedule([
            row(1, "a", true),
            row(2, "a", true),
            row(3, "b", true),
            row(4, "a", true),
        ]);
        let (a, row_id) = take(&mut schedule).unwrap();
        assert_eq!(row_id, 1);
        assert_eq!(take(&mut schedule).unwrap().1, 3);
        assert_eq!(take(&mut schedule), None);
        schedule.proceed(a);
        assert_eq!(take(&mut schedule).unwrap().1, 2);
        let rest: Vec<_> = schedule.close(a).into_iter().map(|row| row.row_id).collect();
        assert_eq!(rest, [4]);
        assert_eq!(take(&mut schedule), None);
        assert_eq!(schedule.queued(), 0);
    }

    #[test]
    fn a_message_that_is_put_back_goes_first() {
        let mut schedule = schedule([row(1, "a", true), row(2, "a", true)]);
        let (a, first) = schedule.next().unwrap();
        schedule.push(row(3, "a", true));
        schedule.put_back(a, first);
        for expected in [1, 2, 3] {
            assert_eq!(take(&mut schedule), Some((a, expected)));
            schedule.proceed(a);
        }
    }

    #[test]
    fn unsequenced_messages_do_not_wait_for_each_other() {
        let mut schedule = schedule([row(1, "a", false), row(2, "a", false), row(3, "a", true)]);
        let row_ids: Vec<_> = std::iter::from_fn(|| take(&mut schedule))
            .map(|(_, row_id)| row_id)
            .collect();
        assert_eq!(row_ids, [1, 2, 3]);
    }

    #[test]
    fn a_partition_is_taken_but_for_what_is_out() {
        let mut schedule = schedule([row(1, "a", true), row(2, "b", true), row(3, "b", true)]);
        let (_, row_id) = take(&mut schedule).unwrap();
        assert_eq!(row_id, 1);
        let (b, _) = take(&mut schedule).unwrap();
        assert_eq!(schedule.take_partition(1).len(), 1);
        schedule.proceed(b);
        assert_eq!(take(&mut schedule), None);
        assert!(schedule.lanes.len() == 1 && schedule.queued() == 0);
    }

    #[test]
    fn the_longest_lane_is_shortened_at_its_end() {
        let mut schedule =
            schedule((1..=9).map(|row_id| row(row_id, if row_id == 5 { "b" } else { "a" }, true)));
        let key = schedule.longest(7).unwrap();
        assert_eq!(schedule.longest(8), None);
        let cut: Vec<_> = schedule
            .shorten(key, 2)
            .into_iter()
            .map(|row| row.row_id)
            .collect();
        assert_eq!(cut, [3, 4, 6, 7, 8, 9]);
        assert_eq!(schedule.crowded(2), [Aggregate::new("thing", "a")]);
        assert_eq!(schedule.queued(), 3);
    }

    #[test]
    fn a_lane_that_was_drained_can_come_again() {
        let mut schedule = schedule([row(1, "a", true)]);
        let (a, _) = take(&mut schedule).unwrap();
        schedule.proceed(a);
        assert!(schedule.lanes.is_empty());
        schedule.push(row(2, "a", true));
        assert_eq!(take(&mut schedule), Some((a, 2)));
    }
}
