//! Which message may be sent next.
//!
//! Invariant: of one aggregate at most one message is out, and the next one only follows when it succeeded or was given up
//! without halting. Absent here: time, I/O and the reasons for failing. A pure data structure.

use std::collections::{HashMap, VecDeque};

use crate::message::Aggregate;
use crate::store::FetchedRow;

/// What is kept in order: a sequenced aggregate, or a single message that asked for no order.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Key {
    Ordered(Aggregate),
    Free(i64),
}

#[derive(Debug, Default)]
pub(super) struct Schedule {
    /// Messages that are not out, by key, oldest first. A key that is ready or out has an entry, even an empty one.
    waiting: HashMap<Key, VecDeque<FetchedRow>>,
    /// Keys with a message that may go out, in the order in which they came.
    ready: VecDeque<Key>,
}

impl Schedule {
    /// Takes rows in the order in which the store returned them.
    pub(super) fn new(rows: Vec<FetchedRow>) -> Self {
        let mut schedule = Self::default();
        for row in rows {
            let unordered = matches!(&row.message, Ok(message) if message.sequence.is_none());
            let key = if unordered {
                Key::Free(row.seq)
            } else {
                Key::Ordered(row.aggregate.clone())
            };
            let queue = schedule.waiting.entry(key.clone()).or_default();
            if queue.is_empty() {
                schedule.ready.push_back(key);
            }
            queue.push_back(row);
        }
        schedule
    }

    /// The next message that may go out. Its key is blocked until [`Self::proceed`] or [`Self::stop`].
    pub(super) fn next(&mut self) -> Option<(Key, FetchedRow)> {
        while let Some(key) = self.ready.pop_front() {
            if let Some(row) = self.waiting.get_mut(&key).and_then(VecDeque::pop_front) {
                return Some((key, row));
            }
        }
        None
    }

    /// The message that was out is done: the next one of its key may follow.
    pub(super) fn proceed(&mut self, key: Key) {
        if self.waiting.get(&key).is_some_and(|queue| !queue.is_empty()) {
            self.ready.push_back(key);
        } else {
            self.waiting.remove(&key);
        }
    }

    /// The message that was out is not done: nothing of its key may follow. The rest stays pending in the store.
    pub(super) fn stop(&mut self, key: &Key) {
        self.waiting.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use time::macros::datetime;

    use super::*;
    use crate::event::EventDescriptor;
    use crate::{AggregateId, DomainEvent, NewMessage};

    #[derive(serde::Serialize)]
    struct Happened(&'static str);

    impl DomainEvent for Happened {
        const DESCRIPTORS: &'static [EventDescriptor] = &[EventDescriptor {
            aggregate: "thing",
            name: "happened",
            version: 1,
            subject: None,
            sequenced: true,
            rust_type: "Happened",
            file: file!(),
            line: line!(),
        }];
        fn descriptor(&self) -> &'static EventDescriptor {
            &Self::DESCRIPTORS[0]
        }
        fn aggregate_id(&self) -> AggregateId {
            AggregateId::new(self.0)
        }
        fn dedup_key(&self) -> Option<String> {
            None
        }
    }

    fn row(seq: i64, id: &'static str, sequence: Option<u64>) -> FetchedRow {
        let message = NewMessage::from_event(&Happened(id)).unwrap();
        let message = message.into_message(sequence, datetime!(2026-01-01 0:00 UTC));
        FetchedRow {
            seq,
            partition: 0,
            aggregate: message.aggregate.clone(),
            attempts: 0,
            message: Ok(message),
        }
    }

    fn take(schedule: &mut Schedule) -> Option<(Key, i64)> {
        schedule.next().map(|(key, row)| (key, row.seq))
    }

    #[test]
    fn one_message_of_an_aggregate_is_out_at_a_time() {
        let mut schedule = Schedule::new(vec![
            row(1, "a", Some(1)),
            row(2, "a", Some(2)),
            row(3, "b", Some(1)),
            row(4, "a", Some(3)),
        ]);
        let (a, seq) = take(&mut schedule).unwrap();
        assert_eq!(seq, 1);
        assert_eq!(take(&mut schedule).unwrap().1, 3);
        assert_eq!(take(&mut schedule), None);
        schedule.proceed(a.clone());
        assert_eq!(take(&mut schedule).unwrap().1, 2);
        schedule.stop(&a);
        assert_eq!(take(&mut schedule), None);
    }

    #[test]
    fn unsequenced_messages_do_not_wait_for_each_other() {
        let mut schedule = Schedule::new(vec![row(1, "a", None), row(2, "a", None), row(3, "a", Some(1))]);
        assert_eq!(
            std::iter::from_fn(|| take(&mut schedule))
                .map(|(_, seq)| seq)
                .collect::<Vec<_>>(),
            [1, 2, 3]
        );
    }

    #[test]
    fn an_aggregate_that_was_drained_can_come_again() {
        let mut schedule = Schedule::new(vec![row(1, "a", Some(1))]);
        let (a, _) = take(&mut schedule).unwrap();
        schedule.proceed(a);
        assert!(schedule.waiting.is_empty());
    }
}
