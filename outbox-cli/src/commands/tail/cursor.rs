//! What was seen within the window, and from which row on the next look reads.
//!
//! Invariant: the next look begins at the oldest row that is remembered, so that nothing remembered is passed over, and nothing forgotten is read again.

use std::collections::BTreeMap;
use std::time::Duration;

use outbox::core::MessageStatus;
use tokio::time::Instant;

/// Rows that were seen, by their ids.
#[derive(Debug)]
pub(super) struct Cursor<K> {
    seen: BTreeMap<K, (MessageStatus, Instant)>,
    /// Everything up to here is forgotten, or was never asked for.
    floor: K,
    rows_max: usize,
}

impl<K: Copy + Ord> Cursor<K> {
    pub(super) fn new(rows_max: usize, floor: K) -> Self {
        Self {
            seen: BTreeMap::new(),
            floor,
            rows_max,
        }
    }

    /// Begins behind a row.
    pub(super) fn begin(&mut self, floor: K) {
        self.floor = floor;
    }

    /// The row behind which the next look begins.
    pub(super) fn floor(&self) -> K {
        self.floor
    }

    /// Whether any row is remembered.
    pub(super) fn is_any(&self) -> bool {
        !self.seen.is_empty()
    }

    /// Whether a row was noted with this status.
    pub(super) fn has(&self, row: K, status: MessageStatus) -> bool {
        self.seen.get(&row).is_some_and(|(known, _)| *known == status)
    }

    /// Notes a row. Whether it is new, or has another status than before.
    pub(super) fn see(&mut self, row: K, status: MessageStatus, now: Instant) -> bool {
        match self.seen.get_mut(&row) {
            Some((known, _)) if *known == status => false,
            Some((known, _)) => {
                *known = status;
                true
            }
            None => {
                self.seen.insert(row, (status, now));
                true
            }
        }
    }

    /// Forgets, from the first row on, those that were first seen before the window, and those that are too many.
    pub(super) fn forget(&mut self, window: Duration, now: Instant) {
        while let Some(first) = self.seen.first_entry() {
            let is_old = now.saturating_duration_since(first.get().1) > window;
            if !is_old && self.seen.len() <= self.rows_max {
                break;
            }
            if let Some((row, _)) = self.seen.pop_first() {
                self.floor = row;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use MessageStatus::{Pending, Published};

    const WINDOW: Duration = Duration::from_secs(60);

    #[test]
    fn a_row_that_is_committed_late_is_seen_within_the_window() {
        let (mut cursor, start) = (Cursor::new(10, 0), Instant::now());
        assert!(cursor.see(1, Pending, start));
        assert!(cursor.see(3, Pending, start));
        cursor.forget(WINDOW, start + WINDOW);
        assert_eq!(cursor.floor(), 0);
        assert!(cursor.see(2, Pending, start + WINDOW));
        cursor.forget(WINDOW, start + WINDOW + Duration::from_secs(1));
        // Row 2 was seen for the first time later, and is looked at again together with what is behind it.
        assert_eq!(cursor.floor(), 1);
    }

    #[test]
    fn a_row_is_new_once_for_each_status() {
        let (mut cursor, start) = (Cursor::new(10, 0), Instant::now());
        assert!(cursor.see(1, Pending, start));
        assert!(!cursor.see(1, Pending, start));
        assert!(cursor.see(1, Published, start));
        assert!(!cursor.see(1, Published, start));
    }

    #[test]
    fn too_many_rows_are_forgotten_from_the_oldest_on() {
        let (mut cursor, start) = (Cursor::new(2, 0), Instant::now());
        for row_id in 1..=5 {
            cursor.see(row_id, Pending, start);
        }
        cursor.forget(WINDOW, start);
        assert_eq!((cursor.floor(), cursor.seen.len()), (3, 2));
    }
}
