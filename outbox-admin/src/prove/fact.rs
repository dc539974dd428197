//! What was read, as records of one size whose order brings together all that is known of an event.
//!
//! Invariant: `Fact::decode(fact.encode()) == fact`, and the order of the records is that of event, message, kind and stream sequence.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use outbox_core::Aggregate;

pub(super) const FACT_BYTES: usize = 79;

/// What a fact is about. Rows of the outbox come before their places on the stream, and rows of inboxes come last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Row,
    Place,
    Outcome,
}

/// A row of the outbox, a place on the stream, or a row of an inbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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

    pub(super) fn encode(&self) -> [u8; FACT_BYTES] {
        let mut bytes = [0; FACT_BYTES];
        bytes[0..16].copy_from_slice(&self.event.to_be_bytes());
        bytes[16..32].copy_from_slice(&self.message.to_be_bytes());
        bytes[32] = self.kind as u8;
        bytes[33..41].copy_from_slice(&self.position.to_be_bytes());
        bytes[41..57].copy_from_slice(&self.aggregate.to_be_bytes());
        bytes[57..65].copy_from_slice(&self.sequence.to_be_bytes());
        bytes[65..67].copy_from_slice(&self.label.to_be_bytes());
        bytes[67..69].copy_from_slice(&self.event_type.to_be_bytes());
        bytes[69] = self.status;
        bytes[70] = u8::from(self.is_kept);
        bytes[71..79].copy_from_slice(&self.micros.to_be_bytes());
        bytes
    }

    pub(super) fn decode(bytes: &[u8; FACT_BYTES]) -> Self {
        Self {
            event: u128::from_be_bytes(part(bytes, 0)),
            message: u128::from_be_bytes(part(bytes, 16)),
            kind: match bytes[32] {
                0 => Kind::Row,
                1 => Kind::Place,
                _ => Kind::Outcome,
            },
            position: u64::from_be_bytes(part(bytes, 33)),
            aggregate: u128::from_be_bytes(part(bytes, 41)),
            sequence: u64::from_be_bytes(part(bytes, 57)),
            label: u16::from_be_bytes(part(bytes, 65)),
            event_type: u16::from_be_bytes(part(bytes, 67)),
            status: bytes[69],
            is_kept: bytes[70] == 1,
            micros: i64::from_be_bytes(part(bytes, 71)),
        }
    }
}

/// An event with a number. The records are in the order of aggregates, and of each one the largest number comes first.
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

pub(super) const NUMBERED_BYTES: usize = 51;

/// The label of an event that is not on the stream: there are fewer names.
const NO_LABEL: u16 = u16::MAX;

impl Numbered {
    pub(super) fn encode(&self) -> [u8; NUMBERED_BYTES] {
        let mut bytes = [0; NUMBERED_BYTES];
        bytes[0..16].copy_from_slice(&self.aggregate.to_be_bytes());
        bytes[16..24].copy_from_slice(&(u64::MAX - self.sequence).to_be_bytes());
        bytes[24..26].copy_from_slice(&self.label.unwrap_or(NO_LABEL).to_be_bytes());
        bytes[26..34].copy_from_slice(&self.position.to_be_bytes());
        bytes[34..50].copy_from_slice(&self.event.to_be_bytes());
        bytes[50] = u8::from(self.is_kept);
        bytes
    }

    pub(super) fn decode(bytes: &[u8; NUMBERED_BYTES]) -> Self {
        Self {
            aggregate: u128::from_be_bytes(part(bytes, 0)),
            sequence: u64::MAX - u64::from_be_bytes(part(bytes, 16)),
            label: Some(u16::from_be_bytes(part(bytes, 24))).filter(|label| *label != NO_LABEL),
            position: u64::from_be_bytes(part(bytes, 26)),
            event: u128::from_be_bytes(part(bytes, 34)),
            is_kept: bytes[50] == 1,
        }
    }
}

fn part<const N: usize>(bytes: &[u8], from: usize) -> [u8; N] {
    let mut part = [0; N];
    part.copy_from_slice(&bytes[from..from + N]);
    part
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
    fn facts_survive_their_records_and_come_in_the_order_of_events() {
        let row = Fact {
            position: u64::MAX - 1,
            aggregate: hash(&Aggregate::new("order", "1")),
            sequence: 7,
            label: 300,
            event_type: 301,
            status: 4,
            is_kept: false,
            micros: -5,
            ..Fact::new(Kind::Row, 9, 10)
        };
        assert_eq!(Fact::decode(&row.encode()), row);
        let place = Fact::new(Kind::Place, 9, 10);
        let outcome = Fact::new(Kind::Outcome, 9, u128::MAX);
        let later = Fact::new(Kind::Row, 10, 1);
        let order = [row, place, outcome, later].map(|fact| fact.encode());
        assert!(order.is_sorted());
        let numbered = Numbered {
            aggregate: 2,
            sequence: 3,
            label: Some(1),
            position: 4,
            event: 5,
            is_kept: true,
        };
        assert_eq!(Numbered::decode(&numbered.encode()), numbered);
        let unpublished = Numbered {
            label: None,
            position: 0,
            ..numbered
        };
        assert_eq!(Numbered::decode(&unpublished.encode()), unpublished);
        let larger = Numbered {
            sequence: 4,
            ..numbered
        };
        assert!(larger.encode() < numbered.encode());
    }

    #[test]
    fn type_and_id_do_not_run_together() {
        assert_ne!(hash(&Aggregate::new("a", "bc")), hash(&Aggregate::new("ab", "c")));
    }
}
