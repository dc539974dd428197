//! Planned faults of the in-memory broker that have not occurred yet.

use std::fmt;

use outbox_core::message::Message;
use outbox_core::publisher::FailureClass;

/// The broker applies the faults in the order of the fields.
#[derive(Debug, Default)]
pub(super) struct Faults {
    pub(super) down: bool,
    pub(super) fail_next: (usize, Option<FailureClass>),
    pub(super) matching: Vec<(Predicate, FailureClass)>,
    pub(super) lose_acks: usize,
    pub(super) lose_consumer_acks: usize,
    pub(super) duplicate_deliveries: usize,
}

pub(super) struct Predicate(pub(super) Box<dyn Fn(&Message) -> bool + Send>);

impl fmt::Debug for Predicate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Predicate")
    }
}

impl Faults {
    pub(super) fn refusal(&mut self, message: &Message) -> Option<FailureClass> {
        if self.down {
            return Some(FailureClass::Unknown);
        }
        if let (1.., Some(class)) = self.fail_next {
            self.fail_next.0 -= 1;
            return Some(class);
        }
        let refused = self.matching.iter().find(|(matches, _)| matches.0(message));
        refused.map(|(_, class)| *class)
    }
}

pub(super) fn take_one(planned: &mut usize) -> bool {
    let any = *planned > 0;
    *planned = planned.saturating_sub(1);
    any
}
