//! The books of a run: the committed messages against the stream.

use std::collections::HashMap;

use serde::Serialize;
use uuid::Uuid;

/// A committed message.
#[derive(Debug, Clone)]
pub(crate) struct Committed {
    pub(crate) id: Uuid,
    pub(crate) aggregate: String,
    pub(crate) sequence: u64,
    pub(crate) settled: bool,
}

/// The balance of a run.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Books {
    /// Messages committed.
    pub(crate) committed: u64,
    /// Of those, messages that are not on the stream.
    pub(crate) lost: u64,
    /// Messages on the stream that nobody committed.
    pub(crate) ghosts: u64,
    /// Messages whose first appearance does not follow that of their predecessor.
    pub(crate) inversions: u64,
    /// Over all aggregates, the sum of the differences between the last sequence and the number of committed messages.
    pub(crate) holes: u64,
    /// Messages not settled as published.
    pub(crate) unsettled: u64,
    /// Messages on the stream, not counting the first copy of each; consumers drop these.
    pub(crate) copies: u64,
}

impl Books {
    pub(crate) fn balance(committed: &[Committed], log: &[Uuid]) -> Self {
        let by_id: HashMap<Uuid, &Committed> =
            committed.iter().map(|message| (message.id, message)).collect();
        let mut books = Self {
            committed: committed.len() as u64,
            unsettled: committed.iter().filter(|message| !message.settled).count() as u64,
            ..Self::default()
        };
        let mut next: HashMap<&str, u64> = HashMap::new();
        let mut seen: HashMap<Uuid, ()> = HashMap::new();
        for id in log {
            let Some(message) = by_id.get(id) else {
                books.ghosts += 1;
                continue;
            };
            if seen.insert(*id, ()).is_some() {
                books.copies += 1;
                continue;
            }
            let expected = next.entry(&message.aggregate).or_insert(1);
            if message.sequence != *expected {
                books.inversions += 1;
            }
            *expected = (*expected).max(message.sequence + 1);
        }
        books.lost = by_id.keys().filter(|id| !seen.contains_key(id)).count() as u64;
        let mut counts: HashMap<&str, (u64, u64)> = HashMap::new();
        for message in committed {
            let (count, last) = counts.entry(&message.aggregate).or_default();
            *count += 1;
            *last = (*last).max(message.sequence);
        }
        books.holes = counts.values().map(|(count, last)| last.abs_diff(*count)).sum();
        books
    }

    pub(crate) fn is_balanced(&self) -> bool {
        self.lost == 0 && self.ghosts == 0 && self.inversions == 0 && self.holes == 0 && self.unsettled == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn committed(n: u128, sequence: u64) -> Committed {
        Committed {
            id: Uuid::from_u128(n),
            aggregate: "1".to_owned(),
            sequence,
            settled: true,
        }
    }

    fn balance(log: &[u128]) -> Books {
        let log: Vec<Uuid> = log.iter().copied().map(Uuid::from_u128).collect();
        Books::balance(&[committed(1, 1), committed(2, 2), committed(3, 3)], &log)
    }

    #[test]
    fn every_kind_of_damage_is_seen() {
        let fine = balance(&[1, 2, 1, 3, 2]);
        assert!(fine.is_balanced() && fine.copies == 2);
        assert_eq!(balance(&[1, 2]).lost, 1);
        assert_eq!(balance(&[1, 2, 3, 4]).ghosts, 1);
        assert_eq!(balance(&[2, 1, 3]).inversions, 2);
        assert!(!balance(&[1, 3, 2]).is_balanced());
        let holes = Books::balance(&[committed(1, 1), committed(2, 3)], &[]);
        assert_eq!(holes.holes, 1);
        let mut pending = committed(1, 1);
        pending.settled = false;
        assert_eq!(Books::balance(&[pending], &[Uuid::from_u128(1)]).unsettled, 1);
    }
}
