//! When a process that has filled its memory receives again.

use std::time::Duration;

use tokio::time::Instant;

/// When a process that has filled its memory receives again.
///
/// Where sequences are kept, it waits until half of its room is free. So the broker sends it many messages in a row, among them successive ones of each
/// hot aggregate. If it took one for each that ends, processes would receive in turns, and each message of an aggregate would wait for one in another process.
#[derive(Debug, Default)]
pub(super) struct Refill {
    full_since: Option<Instant>,
}

impl Refill {
    /// Whether to receive, with `flows` deliveries where there is room for `bound`. `patience`: longest wait until half of it is free; zero for none.
    pub(super) fn may_receive(
        &mut self,
        has_room: bool,
        flows: usize,
        bound: usize,
        patience: Duration,
    ) -> bool {
        let is_patient = self.full_since.is_some_and(|since| since.elapsed() < patience);
        if has_room && !(is_patient && flows > bound / 2) {
            self.full_since = None;
            return true;
        }
        self.full_since.get_or_insert_with(Instant::now);
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_sequences_are_kept_a_full_process_receives_again_when_half_is_free() {
        let mut refill = Refill::default();
        let mut may_receive = |flows, patience| refill.may_receive(flows < 100, flows, 100, patience);
        assert!(may_receive(99, Duration::MAX));
        assert!(!may_receive(100, Duration::MAX));
        assert!(!may_receive(51, Duration::MAX));
        assert!(may_receive(50, Duration::MAX));
        assert!(may_receive(99, Duration::MAX));
        assert!(!may_receive(100, Duration::MAX));
        // The wait is over, or slots stay free.
        assert!(may_receive(99, Duration::ZERO));
    }
}
