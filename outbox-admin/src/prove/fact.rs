//! What was read. The order of facts brings together all that is known of an event.

use std::cmp::Reverse;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use outbox_core::Aggregate;

/// What a fact is about. Rows of the outbox come before their places on the stream, and rows of inboxes come last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Row,
    Place,
    Outcome,
}

/// A row of the outbox, a place on the stream, or a row of an inbox, in the order of event, message, kind and stream
/// sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Fact {
    pub(super) event: u128,
    /// `u128::MAX` for an outcome.
    pub(super) message: u128,
    pub(super) kind: Kind,
    /// Of a place: its stream sequence.
    pub(super) position: u64,
    /// A hash of the aggregate.
    pub(super) aggregate: u128,
    /// 0 if unsequenced.
    pub(super) sequence: u64,
    /// Of a place: who recorded it. Of an outcome: the consumer.
    pub(super) label: u16,
    pub(super) event_type: u16,
    /// Of a row and an outcome: the status. Of a place: whether the outbox still has all rows of that time.
    pub(super) status: u8,
    /// Of a row: whether the outbox keeps all rows that were recorded later.
    pub(super) is_kept: bool,
    /// Of a row: when it was published, in microseconds since 1970; 0 if it is not.
    pub(super) micros: i64,
}

impl Fact {
    /// A fact of which nothing else is known.
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

/// An event with a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Numbered {
    pub(super) aggregate: u128,
    pub(super) sequence: u64,
    /// Who recorded it; `None` if it is not on the stream.
    pub(super) label: Option<u16>,
    /// Its first place on the stream; 0 if it has none, or if its order is not judged.
    pub(super) position: u64,
    pub(super) event: u128,
    /// Whether it has a row, and the outbox keeps all rows that were recorded later.
    pub(super) is_kept: bool,
}

impl Numbered {
    /// The order of aggregates; of each one the largest number comes first, and its places before events without one.
    pub(super) fn order(&self) -> (u128, Reverse<u64>, u16, u64) {
        let label = self.label.unwrap_or(u16::MAX);
        (self.aggregate, Reverse(self.sequence), label, self.position)
    }
}

/// 128 bits that differ for different aggregates, but for one chance in 10^19 among a thousand million.
pub(super) fn hash(aggregate: &Aggregate) -> u128 {
    let half = |salt: u8| {
        let mut hasher = DefaultHasher::new();
        (salt, &aggregate.aggregate_type, &aggregate.id).hash(&mut hasher);
        u128::from(hasher.finish())
    };
    half(0) << 64 | half(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_come_in_the_order_of_events() {
        let row = Fact::new(Kind::Row, 9, 10);
        let place = Fact::new(Kind::Place, 9, 10);
        let outcome = Fact::new(Kind::Outcome, 9, u128::MAX);
        let later = Fact::new(Kind::Row, 10, 1);
        assert!([row, place, outcome, later].is_sorted());
    }

    #[test]
    fn type_and_id_do_not_run_together() {
        assert_ne!(hash(&Aggregate::new("a", "bc")), hash(&Aggregate::new("ab", "c")));
    }
}
