//! Faults that are planned for the in-memory broker, and not yet used up. Not here: the methods that plan them (`memory_broker/faults.rs`).

use std::fmt;

use outbox_core::message::Message;
use outbox_core::publisher::FailureClass;

/// Planned faults. They apply one by one, in the order of the fields.
#[derive(Default)]
pub(super) struct Faults {
    pub(super) down: bool,
    pub(super) fail_next: (usize, Option<FailureClass>),
    pub(super) matching: Vec<(Predicate, FailureClass)>,
    pub(super) ghosts: usize,
    pub(super) lose_acks: usize,
    pub(super) lose_consumer_acks: usize,
    pub(super) duplicate_deliveries: usize,
    /// Publishes on their way whose callers no longer wait, with the connection that each came from.
    pub(super) on_the_way: Vec<(u64, Message)>,
}

type Predicate = Box<dyn Fn(&Message) -> bool + Send>;

impl fmt::Debug for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Faults")
            .field("down", &self.down)
            .field("fail_next", &self.fail_next)
            .field("matching", &self.matching.len())
            .field("ghosts", &self.ghosts)
            .field("lose_acks", &self.lose_acks)
            .field("lose_consumer_acks", &self.lose_consumer_acks)
            .field("duplicate_deliveries", &self.duplicate_deliveries)
            .field("on_the_way", &self.on_the_way.len())
            .finish()
    }
}

impl Faults {
    /// The class with which to refuse this message without storing it; `None` if it is not refused.
    pub(super) fn refusal(&mut self, message: &Message) -> Option<FailureClass> {
        if self.down {
            return Some(FailureClass::Unknown);
        }
        if let (1.., Some(class)) = self.fail_next {
            self.fail_next.0 -= 1;
            return Some(class);
        }
        self.matching
            .iter()
            .find(|(matches, _)| matches(message))
            .map(|(_, class)| *class)
    }
}

/// Uses up one of a number of planned faults. Returns whether there was one.
pub(super) fn take_one(planned: &mut usize) -> bool {
    let any = *planned > 0;
    *planned = planned.saturating_sub(1);
    any
}
