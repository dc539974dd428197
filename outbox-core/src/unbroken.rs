//! Whether one subscription has been given everything that its consumer was given.
//!
//! A broker numbers the deliveries of a consumer. A subscription that was given the numbers 1 to n, each for a message that came for the first time and in the
//! order of the stream, was given the first n messages of the consumer. Invariant: once this cannot be known, it stays so. Not here: whether the consumer is
//! given all that somebody asks about, which each implementation of [`Subscriber`](crate::Subscriber) knows for its broker.

/// The deliveries of a subscription so far.
///
/// Redeliveries end it, although they are numbered too. A server that fails may forget its last deliveries and number others like them. Number n
/// then stands for message n in either account only if no message has left the stream meanwhile. So whoever connects to a server that goes on without the one that
/// kept the consumer begins with [`Self::until`] 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unbroken {
    /// The number of the next delivery; `None` if there was something else.
    next: Option<u64>,
    /// The stream sequence of the last delivery.
    last: u64,
    /// It says nothing of messages behind this stream sequence.
    until: u64,
}

impl Unbroken {
    /// Before the first delivery. `until`: the last stream sequence for which everything can be known; 0 for nothing at all.
    #[must_use]
    pub fn until(until: u64) -> Self {
        Self {
            next: Some(1),
            last: 0,
            until,
        }
    }

    /// Takes note of a delivery; returns whether nothing has been missing up to it.
    ///
    /// * `number`: that of the delivery, among all deliveries of the consumer.
    /// * `delivery_count`: how often the message was delivered.
    pub fn goes_on(&mut self, number: u64, delivery_count: u64, stream_sequence: u64) -> bool {
        let fits = self.next == Some(number)
            && delivery_count == 1
            && self.last < stream_sequence
            && stream_sequence <= self.until;
        self.next = fits.then_some(number + 1);
        self.last = stream_sequence;
        fits
    }

    /// Something else may have been given what is missing here.
    pub fn end(&mut self) {
        self.next = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a subscription knows after deliveries with these numbers, delivery counts and stream sequences.
    fn known(deliveries: &[(u64, u64, u64)]) -> Vec<bool> {
        let mut unbroken = Unbroken::until(100);
        let goes_on = |delivery: &(u64, u64, u64)| unbroken.goes_on(delivery.0, delivery.1, delivery.2);
        deliveries.iter().map(goes_on).collect()
    }

    #[test]
    fn deliveries_without_a_gap_are_unbroken() {
        assert_eq!(known(&[(1, 1, 1), (2, 1, 8), (3, 1, 20)]), [true; 3]);
    }

    #[test]
    fn a_number_that_another_subscription_got_ends_it_for_good() {
        assert_eq!(known(&[(1, 1, 7), (3, 1, 9), (4, 1, 10)]), [true, false, false]);
        assert_eq!(known(&[(2, 1, 7), (1, 1, 8)]), [false, false]);
    }

    #[test]
    fn a_message_that_comes_again_ends_it_for_good() {
        assert_eq!(known(&[(1, 1, 7), (2, 2, 8), (3, 1, 9)]), [true, false, false]);
    }

    /// As from a server that has forgotten its last deliveries.
    #[test]
    fn a_message_from_before_the_last_one_ends_it_for_good() {
        assert_eq!(known(&[(1, 1, 7), (2, 1, 7), (3, 1, 8)]), [true, false, false]);
    }

    #[test]
    fn what_is_behind_its_end_is_not_known() {
        assert_eq!(
            known(&[(1, 1, 99), (2, 1, 100), (3, 1, 101)]),
            [true, true, false]
        );
        assert!(!Unbroken::until(0).goes_on(1, 1, 1));
    }

    #[test]
    fn what_was_ended_stays_so() {
        let mut unbroken = Unbroken::until(100);
        unbroken.end();
        assert!(!unbroken.goes_on(1, 1, 1));
    }
}
