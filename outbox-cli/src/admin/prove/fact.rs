//! Facts (outbox rows, messages on the stream, inbox rows), sorted by event.

use std::cmp::Reverse;
use std::hash::{DefaultHasher, Hash, Hasher as _};

use outbox::core::Aggregate;

/// The sort order of facts depends on the order of variants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Row,
    Place,
    Outcome,
}

/// The sort order of facts is the order of fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Fact {
    pub(super) event: u128,
    /// Message id; `u128::MAX` for an outcome.
    pub(super) message: u128,
    pub(super) kind: Kind,
    /// Place: stream sequence.
    pub(super) position: u64,
    pub(super) aggregate: u128,
    /// Sequence; 0 if unsequenced.
    pub(super) sequence: u64,
    /// Place: the sender. Outcome: the consumer.
    pub(super) label: u64,
    pub(super) event_type: u64,
    /// Row and outcome: the status. Place: 1 if the outbox keeps all rows of the place's time.
    pub(super) status: u8,
    /// Row: whether the outbox keeps all rows recorded later.
    pub(super) is_kept: bool,
    /// Row: time of publishing in microseconds since 1970, 0 if unpublished.
    pub(super) micros: i64,
}

impl Fact {
    pub(super) fn new(kind: Kind, event: u128, message: u128) -> Self {
        Self {
            event,
            message,
            kind,
            position: 0,
            aggregate: 0,
            sequence: 0,
            label: 0,
            event_type: 0,
            status: 0,
            is_kept: true,
            micros: 0,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Numbered {
    pub(super) aggregate: u128,
    pub(super) sequence: u64,
    /// The event's sender; `None` if the event is not on the stream.
    pub(super) label: Option<u64>,
    /// First place on the stream; 0 if absent or excluded from the order check.
    pub(super) position: u64,
    pub(super) event: u128,
    /// Whether the outbox keeps all later rows.
    pub(super) is_kept: bool,
}

impl Numbered {
    /// Groups events by aggregate, highest sequence first, then events on the stream first.
    pub(super) fn order(&self) -> (u128, Reverse<u64>, u64, u64) {
        let label = self.label.unwrap_or(u64::MAX);
        (self.aggregate, Reverse(self.sequence), label, self.position)
    }
}

/// A hash of 128 bits makes collisions negligible.
pub(super) fn hash(aggregate: &Aggregate) -> u128 {
    let half = |salt: u8| u128::from(hash_name((salt, &aggregate.aggregate_type, &aggregate.id)));
    half(0) << 64 | half(1)
}

/// A hash of an event type or a sender. A span has few of these names.
pub(super) fn hash_name(name: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_are_sorted_by_event() {
        let row = Fact::new(Kind::Row, 9, 10);
        let place = Fact::new(Kind::Place, 9, 10);
        let outcome = Fact::new(Kind::Outcome, 9, u128::MAX);
        let later = Fact::new(Kind::Row, 10, 1);
        assert!([row, place, outcome, later].is_sorted());
    }

    #[test]
    fn type_and_id_are_hashed_separately() {
        assert_ne!(hash(&Aggregate::new("a", "bc")), hash(&Aggregate::new("ab", "c")));
    }
}
