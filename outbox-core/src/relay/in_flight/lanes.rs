//! Decides which message may be sent next.
//!
//! Invariant: at most one message of a lane is sent and unconfirmed. A lane is the queue of an
//! aggregate, or a single unsequenced message. After a message is published, or is a dead letter
//! that halts nothing, the lane's next message may be sent.

use std::collections::VecDeque;
use std::collections::hash_map::Entry;
use std::hash::BuildHasher as _;

use foldhash::quality::FixedState;
use tokio::time::Instant;

use crate::message::Aggregate;
use crate::quick_map::QuickMap;
use crate::store::FetchedRow;

/// Key of a lane (queue of an aggregate). A hash replaces type and id, to save two strings per
/// message. After a hash collision two aggregates share a lane.
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
        Self::Ordered(FixedState::default().hash_one(aggregate))
    }
}

#[derive(Debug, Default)]
pub(super) struct Lanes {
    lanes: QuickMap<Key, Lane>,
    ready: VecDeque<Key>,
    queued: usize,
    bytes: usize,
}

#[derive(Debug)]
pub(in crate::relay) struct Queued {
    pub(super) key: Key,
    pub(in crate::relay) row: Box<FetchedRow>,
    pub(in crate::relay) fetched_at: Instant,
}

#[derive(Debug)]
struct Lane {
    partition: u16,
    out: Option<i64>,
    queue: VecDeque<Queued>,
}

impl Lanes {
    pub(super) fn push(&mut self, row: FetchedRow) {
        let key = Key::of(&row);
        let row = Queued {
            key,
            row: Box::new(row),
            fetched_at: Instant::now(),
        };
        self.queued += 1;
        self.bytes += row.size();
        match self.lanes.entry(key) {
            Entry::Occupied(mut lane) => {
                let lane = lane.get_mut();
                if lane.out.is_none() && lane.queue.is_empty() {
                    self.ready.push_back(key);
                }
                lane.queue.push_back(row);
            }
            Entry::Vacant(entry) => {
                self.ready.push_back(key);
                entry.insert(Lane {
                    partition: row.row.partition,
                    out: None,
                    queue: VecDeque::from([row]),
                });
            }
        }
    }

    /// Returns the next message to send. Its lane (queue of the aggregate) sends nothing more until
    /// [`Self::proceed`], [`Self::put_back`] or [`Self::close`].
    pub(super) fn next(&mut self) -> Option<Queued> {
        while let Some(key) = self.ready.pop_front() {
            let Some(lane) = self.lanes.get_mut(&key).filter(|lane| lane.out.is_none()) else {
                continue;
            };
            if let Some(row) = lane.queue.pop_front() {
                lane.out = Some(row.row.row_id);
                self.queued -= 1;
                self.bytes -= row.size();
                return Some(row);
            }
        }
        None
    }

    pub(super) fn proceed(&mut self, key: Key) {
        if let Entry::Occupied(mut lane) = self.lanes.entry(key) {
            if lane.get().queue.is_empty() {
                lane.remove();
            } else {
                lane.get_mut().out = None;
                self.ready.push_back(key);
            }
        }
    }

    pub(super) fn put_back(&mut self, row: Queued) {
        let key = row.key;
        if let Some(lane) = self.lanes.get_mut(&key) {
            self.queued += 1;
            self.bytes += row.size();
            lane.out = None;
            lane.queue.push_front(row);
            self.ready.push_back(key);
        }
    }

    pub(super) fn close(&mut self, key: Key) -> Vec<FetchedRow> {
        let queue = self.lanes.remove(&key).map(|lane| lane.queue).unwrap_or_default();
        self.removed(queue)
    }

    pub(super) fn take_partition(&mut self, partition: u16) -> Vec<FetchedRow> {
        let mut taken = Vec::new();
        self.lanes.retain(|_, lane| {
            if lane.partition != partition {
                return true;
            }
            taken.extend(lane.queue.drain(..));
            lane.out.is_some()
        });
        self.removed(taken)
    }

    pub(super) fn has_out(&self, partition: u16) -> bool {
        self.lanes
            .values()
            .any(|lane| lane.partition == partition && lane.out.is_some())
    }

    fn removed(&mut self, rows: impl IntoIterator<Item = Queued>) -> Vec<FetchedRow> {
        let removed = rows.into_iter().inspect(|row| {
            self.queued -= 1;
            self.bytes -= row.size();
        });
        removed.map(|row| *row.row).collect()
    }

    pub(super) fn longest(&self, min: usize) -> Option<Key> {
        let (key, lane) = self.lanes.iter().max_by_key(|(_, lane)| lane.queue.len())?;
        (lane.queue.len() > min).then_some(*key)
    }

    pub(super) fn shorten(&mut self, key: Key, keep: usize) -> Vec<FetchedRow> {
        let rest = self
            .lanes
            .get_mut(&key)
            .map(|lane| lane.queue.split_off(keep.min(lane.queue.len())))
            .unwrap_or_default();
        self.removed(rest)
    }

    pub(super) fn crowded(&self, min: usize) -> Vec<Aggregate> {
        self.lanes
            .values()
            .filter(|lane| lane.queue.len() >= min)
            .filter_map(|lane| lane.queue.front())
            .map(|row| row.row.aggregate.clone())
            .collect()
    }

    pub(super) fn is_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    pub(super) fn queued(&self) -> usize {
        self.queued
    }

    #[cfg(test)]
    pub(super) fn row_ids(&self) -> impl Iterator<Item = i64> {
        self.lanes.values().flat_map(|lane| {
            lane.out
                .into_iter()
                .chain(lane.queue.iter().map(|row| row.row.row_id))
        })
    }

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
            id: None,
            partition: u16::from(id == "b"),
            aggregate: Aggregate::new("thing", id),
            sequenced,
            attempts: 0,
            failures: 0,
            waited: false,
            age: Duration::ZERO,
            message: Err("not needed".to_owned().into()),
        }
    }

    fn lanes(rows: impl IntoIterator<Item = FetchedRow>) -> Lanes {
        let mut lanes = Lanes::default();
        rows.into_iter().for_each(|row| lanes.push(row));
        lanes
    }

    fn take(lanes: &mut Lanes) -> Option<(Key, i64)> {
        lanes.next().map(|row| (row.key, row.row.row_id))
    }

    #[test]
    fn an_aggregate_has_one_message_out_at_a_time() {
        let mut lanes = lanes([
            row(1, "a", true),
            row(2, "a", true),
            row(3, "b", true),
            row(4, "a", true),
        ]);
        let (a, row_id) = take(&mut lanes).unwrap();
        assert_eq!(row_id, 1);
        assert_eq!(take(&mut lanes).unwrap().1, 3);
        assert_eq!(take(&mut lanes), None);
        lanes.proceed(a);
        assert_eq!(take(&mut lanes).unwrap().1, 2);
        let rest: Vec<_> = lanes.close(a).into_iter().map(|row| row.row_id).collect();
        assert_eq!(rest, [4]);
        assert_eq!(take(&mut lanes), None);
        assert_eq!(lanes.queued(), 0);
    }

    #[test]
    fn returned_message_is_sent_first() {
        let mut lanes = lanes([row(1, "a", true), row(2, "a", true)]);
        let first = lanes.next().unwrap();
        let a = first.key;
        lanes.push(row(3, "a", true));
        lanes.put_back(first);
        for expected in [1, 2, 3] {
            assert_eq!(take(&mut lanes), Some((a, expected)));
            lanes.proceed(a);
        }
    }

    #[test]
    fn unsequenced_messages_do_not_wait_for_each_other() {
        let mut lanes = lanes([row(1, "a", false), row(2, "a", false), row(3, "a", true)]);
        let row_ids: Vec<_> = std::iter::from_fn(|| take(&mut lanes))
            .map(|(_, row_id)| row_id)
            .collect();
        assert_eq!(row_ids, [1, 2, 3]);
    }

    #[test]
    fn taking_a_partition_leaves_sent_messages() {
        let mut lanes = lanes([row(1, "a", true), row(2, "b", true), row(3, "b", true)]);
        let (_, row_id) = take(&mut lanes).unwrap();
        assert_eq!(row_id, 1);
        let (b, _) = take(&mut lanes).unwrap();
        assert_eq!(lanes.take_partition(1).len(), 1);
        lanes.proceed(b);
        assert_eq!(take(&mut lanes), None);
        assert!(lanes.lanes.len() == 1 && lanes.queued() == 0);
    }

    #[test]
    fn the_longest_lane_is_shortened_at_its_end() {
        let mut lanes = lanes((1..=9).map(|row_id| row(row_id, if row_id == 5 { "b" } else { "a" }, true)));
        let key = lanes.longest(7).unwrap();
        assert_eq!(lanes.longest(8), None);
        let cut: Vec<_> = lanes.shorten(key, 2).into_iter().map(|row| row.row_id).collect();
        assert_eq!(cut, [3, 4, 6, 7, 8, 9]);
        assert_eq!(lanes.crowded(2), [Aggregate::new("thing", "a")]);
        assert_eq!(lanes.queued(), 3);
    }
}
