//! Delivered, unacknowledged messages of a consumer. Each message is either in `due` or in
//! `timers`.

use std::collections::{BTreeMap, BTreeSet};

use tokio::time::Instant;

#[derive(Debug, Default)]
pub(super) struct Unacked {
    /// Delivery count and time of the next delivery, by stream sequence.
    messages: BTreeMap<u64, (u64, Instant)>,
    timers: BTreeSet<(Instant, u64)>,
    due: BTreeSet<u64>,
}

impl Unacked {
    pub(super) fn len(&self) -> usize {
        self.messages.len()
    }

    pub(super) fn oldest(&self) -> Option<u64> {
        self.messages.keys().next().copied()
    }

    pub(super) fn delivered(&mut self, stream_sequence: u64, count: u64, next: Instant) {
        self.remove(stream_sequence);
        self.messages.insert(stream_sequence, (count, next));
        self.timers.insert((next, stream_sequence));
    }

    pub(super) fn delivered_again(&mut self, stream_sequence: u64, count: u64, next: Instant) {
        if self.messages.contains_key(&stream_sequence) {
            self.delivered(stream_sequence, count, next);
        }
    }

    pub(super) fn postpone(&mut self, stream_sequence: u64, next: Instant) {
        if let Some((count, _)) = self.messages.get(&stream_sequence) {
            self.delivered(stream_sequence, *count, next);
        }
    }

    pub(super) fn remove(&mut self, stream_sequence: u64) {
        if let Some((_, next)) = self.messages.remove(&stream_sequence) {
            self.timers.remove(&(next, stream_sequence));
            self.due.remove(&stream_sequence);
        }
    }

    pub(super) fn retain(&mut self, keeps: impl Fn(u64) -> bool) {
        let lost = self.messages.keys().copied().filter(|sequence| !keeps(*sequence));
        for stream_sequence in lost.collect::<Vec<_>>() {
            self.remove(stream_sequence);
        }
    }

    pub(super) fn first_due(&mut self, now: Instant) -> Option<(u64, u64)> {
        while let Some((time, stream_sequence)) = self.timers.first().copied()
            && time <= now
        {
            self.timers.pop_first();
            self.due.insert(stream_sequence);
        }
        let stream_sequence = *self.due.first()?;
        let (count, _) = self.messages.get(&stream_sequence)?;
        Some((stream_sequence, *count))
    }

    pub(super) fn next(&self) -> Option<Instant> {
        self.timers.first().map(|(time, _)| *time)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn messages_are_due_in_the_order_of_the_stream() {
        let now = Instant::now();
        let later = now + Duration::from_secs(1);
        let mut unacked = Unacked::default();
        for (stream_sequence, next) in [(3, now), (1, later), (2, now), (4, later)] {
            unacked.delivered(stream_sequence, 1, next);
        }
        assert_eq!(unacked.first_due(now), Some((2, 1)));
        assert_eq!(unacked.next(), Some(later));
        unacked.delivered_again(2, 2, later);
        assert_eq!(unacked.first_due(now), Some((3, 1)));
        unacked.remove(3);
        unacked.delivered_again(3, 2, now);
        unacked.postpone(4, now);
        assert_eq!(unacked.first_due(now), Some((4, 1)));
        unacked.retain(|stream_sequence| stream_sequence != 4);
        assert_eq!(unacked.first_due(now), None);
        assert_eq!(unacked.first_due(later), Some((1, 1)));
        unacked.remove(1);
        assert_eq!(unacked.first_due(later), Some((2, 2)));
        assert_eq!((unacked.len(), unacked.oldest()), (1, Some(2)));
    }
}
