//! Finds the first message of each aggregate on the stream without a question to the broker.
//!
//! If a subscription received every message before this one ([`Delivery::is_unbroken`]) and none of
//! its aggregate, the stream has no earlier message of the aggregate. Invariants: a known aggregate
//! is never taken for a new one, and memory is bounded by a Bloom filter of 2 MB. A new aggregate
//! may be taken for a known one (1 in 400 after a million aggregates), which costs a question. Not
//! here: aggregates that begin late ([`crate::runtime::run::sequence`]).
//!
//! [`Delivery::is_unbroken`]: outbox_core::Delivery::is_unbroken

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use outbox_core::Aggregate;

/// Bits of the filter: 16 for each of a million aggregates. The server's own memory for them is a
/// hundred times as large.
const BITS: usize = 1 << 24;

/// Bits that each aggregate sets.
const BITS_EACH: u64 = 4;

/// The aggregates that one subscription has brought.
#[derive(Debug, Default)]
pub(crate) enum SeenAggregates {
    /// No delivery yet.
    #[default]
    New,
    /// Every message was received; the bits of its aggregates are set.
    Met(Box<[u64]>),
    /// Other processes may have received messages.
    Unknown,
}

impl SeenAggregates {
    /// Records a delivery; returns whether it is certainly the first message of its aggregate.
    /// `aggregate`: `None` if unreadable. Call it for each delivery of a subscription, in order.
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
