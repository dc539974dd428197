//! Knows which messages are the first of their aggregate on the stream, without a question to the broker.
//!
//! A subscription that was given everything before a message ([`Delivery::is_unbroken`]), and nothing of its aggregate, shows that nothing of it is on the stream
//! before that message. Invariants: an aggregate that was met is never taken for a new one, and memory has a bound, a Bloom filter of 2 MB that ends with the
//! knowledge. A new aggregate may be taken for one that was met, one in 400 after a million of them. That costs a question. Not here: what becomes of a message
//! whose aggregate begins late ([`crate::runtime::run::sequence`]).
//!
//! [`Delivery::is_unbroken`]: outbox_core::Delivery::is_unbroken

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use outbox_core::Aggregate;

/// Bits of the filter: 16 for each of a million aggregates. The server's own memory for them is a hundred times as large.
const BITS: usize = 1 << 24;

/// Bits that each aggregate sets.
const BITS_EACH: u64 = 4;

/// The aggregates that one subscription has brought.
#[derive(Debug, Default)]
pub(crate) enum SeenAggregates {
    /// Nothing has come yet.
    #[default]
    New,
    /// Everything has come, of the aggregates whose bits are set.
    Met(Box<[u64]>),
    /// Something else may have come to others.
    Unknown,
}

impl SeenAggregates {
    /// Takes note of a delivery; returns whether it is surely the first message of its aggregate. `aggregate`: `None` if it cannot be read, so that it may be
    /// one of any. Each delivery of a subscription must be noted, in their order.
    pub(crate) fn is_first(&mut self, aggregate: Option<&Aggregate>, is_unbroken: bool) -> bool {
        let (Some(aggregate), true) = (aggregate, is_unbroken) else {
            *self = Self::Unknown;
            return false;
        };
        if matches!(self, Self::New) {
            *self = Self::Met(vec![0; BITS / 64].into());
        }
        let Self::Met(words) = self else { return false };
        let mut is_new = false;
        for bit in bits_of(aggregate) {
            let (word, mask) = (&mut words[bit / 64], 1 << (bit % 64));
            is_new |= *word & mask == 0;
            *word |= mask;
        }
        is_new
    }
}

/// The bits of an aggregate: steps from one half of its hash, as long as the other half.
fn bits_of(aggregate: &Aggregate) -> impl Iterator<Item = usize> {
    let mut hasher = DefaultHasher::new();
    aggregate.hash(&mut hasher);
    let (start, step) = (hasher.finish(), hasher.finish() >> 32 | 1);
    (0..BITS_EACH).map(move |n| start.wrapping_add(n * step) as usize % BITS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn aggregate(number: usize) -> Aggregate {
        Aggregate::new("order", number.to_string())
    }

    fn bytes(seen: &SeenAggregates) -> usize {
        match seen {
            SeenAggregates::Met(words) => size_of_val(&**words),
            _ => 0,
        }
    }

    #[test]
    fn the_first_message_of_an_aggregate_is_first_and_the_second_is_not() {
        let mut seen = SeenAggregates::default();
        assert!(seen.is_first(Some(&aggregate(1)), true));
        assert!(!seen.is_first(Some(&aggregate(1)), true));
        assert!(seen.is_first(Some(&aggregate(2)), true));
        assert!(seen.is_first(Some(&Aggregate::new("cart", "1")), true));
    }

    #[test]
    fn behind_a_delivery_that_may_have_missed_something_nothing_is_first() {
        let mut seen = SeenAggregates::default();
        assert!(seen.is_first(Some(&aggregate(1)), true));
        assert!(!seen.is_first(Some(&aggregate(2)), false));
        assert_eq!(bytes(&seen), 0);
        assert!(!seen.is_first(Some(&aggregate(3)), true));
    }

    #[test]
    fn behind_a_message_of_an_unknown_aggregate_nothing_is_first() {
        let mut seen = SeenAggregates::default();
        assert!(!seen.is_first(None, true));
        assert!(!seen.is_first(Some(&aggregate(1)), true));
    }

    #[test]
    fn of_a_million_aggregates_each_is_remembered_and_nearly_each_is_known_to_be_new() {
        let mut seen = SeenAggregates::default();
        let known = (0..1_000_000).filter(|n| seen.is_first(Some(&aggregate(*n)), true));
        let known = known.count();
        assert!(known > 999_000, "{known}");
        assert!((0..1_000_000).all(|n| !seen.is_first(Some(&aggregate(n)), true)));
        assert_eq!(bytes(&seen), 2 << 20);
    }
}
