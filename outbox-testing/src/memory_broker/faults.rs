//! Faults that a test plans for the in-memory broker.
//!
//! Each method stands for a failure that real brokers show. Invariant: faults are planned, never random, so a test says
//! exactly what happened. A simulation draws its plans from its own seed. Not here: faults of the database, see
//! [`MemoryStore`](crate::MemoryStore).

use std::mem;

use outbox_core::message::{Message, MessageId};
use outbox_core::publisher::FailureClass;

use super::MemoryBroker;
use crate::faults::{Faults, Predicate};

impl MemoryBroker {
    /// Refuses the next `count` publishes with `class`. Nothing is stored.
    pub fn fail_next(&self, count: usize, class: FailureClass) {
        self.lock().faults.fail_next = (count, Some(class));
    }

    /// Refuses with `class` every message for which `predicate` holds, until [`Self::clear_faults`]. The first matching
    /// predicate counts.
    pub fn fail_matching(&self, predicate: impl Fn(&Message) -> bool + Send + 'static, class: FailureClass) {
        let predicate = Predicate(Box::new(predicate));
        self.lock().faults.matching.push((predicate, class));
    }

    /// Stores the next `count` publishes but answers [`FailureClass::Unknown`], as when the confirmation is lost.
    pub fn lose_acks(&self, count: usize) {
        self.lock().faults.lose_acks = count;
    }

    /// Answers the next `count` publishes with [`FailureClass::Unknown`] and stores them only on
    /// [`Self::release_ghosts`], as when they wait in a client's buffer until the connection is back.
    /// [`abandon`](outbox_core::Publisher::abandon) drops them.
    pub fn ghost(&self, count: usize) {
        self.lock().faults.ghosts = count;
    }

    /// Stores the ghosts of [`Self::ghost`], in the order in which they were sent.
    pub fn release_ghosts(&self) {
        let mut state = self.lock();
        for (_, message) in mem::take(&mut state.faults.on_the_way) {
            state.store(&message);
        }
        drop(state);
        self.notify();
    }

    /// Takes the broker down, or brings it back. While it is down, publishes answer [`FailureClass::Unknown`],
    /// subscriptions are interrupted, and acknowledgements are lost. Stored messages stay stored.
    pub fn set_down(&self, down: bool) {
        self.lock().faults.down = down;
        self.notify();
    }

    /// Forgets all message ids, as a stream does that was restored or whose duplicate window has passed.
    pub fn forget_ids(&self) {
        self.lock().forget_ids();
    }

    /// Loses the last `count` messages of the log, although they were confirmed, as a server does that lost power
    /// before it wrote them to disk. Their ids are forgotten. The other messages keep their stream sequences, and no
    /// stream sequence is given again.
    pub fn lose_tail(&self, count: usize) {
        let mut state = self.lock();
        let stream_sequences = state.tail(count);
        state.lose(&stream_sequences, true);
    }

    /// Loses these messages, wherever they are on the log; otherwise as [`Self::lose_tail`].
    pub fn forget(&self, ids: &[MessageId]) {
        let mut state = self.lock();
        let stream_sequences = state.stream_sequences(ids);
        state.lose(&stream_sequences, true);
    }

    /// Delivers each of the next `count` messages twice, whether they are acknowledged or not.
    pub fn duplicate_deliveries(&self, count: usize) {
        self.lock().faults.duplicate_deliveries = count;
    }

    /// Loses the next `count` acknowledgements of consumers: each is answered with `Ok`, and its message comes again.
    pub fn lose_consumer_acks(&self, count: usize) {
        self.lock().faults.lose_consumer_acks = count;
    }

    /// Removes all planned faults and brings the broker back. Ghosts on their way stay there.
    pub fn clear_faults(&self) {
        let mut state = self.lock();
        let on_the_way = mem::take(&mut state.faults.on_the_way);
        state.faults = Faults {
            on_the_way,
            ..Faults::default()
        };
        drop(state);
        self.notify();
    }
}
