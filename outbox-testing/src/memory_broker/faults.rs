//! Planned faults of the in-memory broker. No fault is random.

use outbox_core::message::{Message, MessageId};
use outbox_core::publisher::FailureClass;

use super::MemoryBroker;
use crate::faults::{Faults, Predicate};

impl MemoryBroker {
    /// Rejects the next `count` publishes with `class`, without storing them.
    pub fn fail_next(&self, count: usize, class: FailureClass) {
        self.lock().faults.fail_next = (count, Some(class));
    }

    /// Rejects with `class` every message that matches `predicate`, until [`Self::clear_faults`].
    /// The first matching predicate applies.
    pub fn fail_matching(&self, predicate: impl Fn(&Message) -> bool + Send + 'static, class: FailureClass) {
        let predicate = Predicate(Box::new(predicate));
        self.lock().faults.matching.push((predicate, class));
    }

    /// Stores the next `count` publishes but returns [`FailureClass::Unknown`], as if the
    /// confirmation were lost.
    pub fn lose_acks(&self, count: usize) {
        self.lock().faults.lose_acks = count;
    }

    /// Makes the broker unavailable or available. While it is down, publishes return
    /// [`FailureClass::Unknown`], subscriptions are interrupted, and acknowledgements are lost.
    pub fn set_down(&self, down: bool) {
        self.lock().faults.down = down;
        self.notify();
    }

    /// Clears the deduplication ids.
    pub fn forget_ids(&self) {
        self.lock().forget_ids();
    }

    /// Loses the last `count` messages and their ids, as after a power failure. Their stream
    /// sequences are not reused.
    pub fn lose_tail(&self, count: usize) {
        let mut state = self.lock();
        let stream_sequences = state.tail(count);
        state.lose(&stream_sequences, true);
    }

    /// Deletes these messages and their ids, as [`Self::lose_tail`] does.
    pub fn forget(&self, ids: &[MessageId]) {
        let mut state = self.lock();
        let stream_sequences = state.stream_sequences(ids);
        state.lose(&stream_sequences, true);
    }

    /// Delivers each of the next `count` messages twice, even if acknowledged.
    pub fn duplicate_deliveries(&self, count: usize) {
        self.lock().faults.duplicate_deliveries = count;
    }

    /// Loses the next `count` acknowledgements of consumers: each returns `Ok`, and its message is
    /// redelivered.
    pub fn lose_consumer_acks(&self, count: usize) {
        self.lock().faults.lose_consumer_acks = count;
    }

    /// Removes all planned faults and makes the broker available.
    pub fn clear_faults(&self) {
        self.lock().faults = Faults::default();
        self.notify();
    }
}
