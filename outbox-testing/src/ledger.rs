//! Compares the committed messages with the stream after the system is idle. The comparison reads
//! only stored data.

use std::collections::{BTreeMap, HashMap, HashSet};

use outbox_core::message::{Aggregate, EventId, Message};
use outbox_core::store::MessageStatus;

use super::{MemoryBroker, MemoryStore};

/// Committed messages and messages on the stream, both in order.
#[derive(Debug, Clone, Default)]
pub struct Ledger {
    /// Messages of committed transactions.
    pub committed: Vec<Committed>,
    /// Messages on the stream, including copies.
    pub log: Vec<Logged>,
}

/// A committed message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Committed {
    /// The event's id.
    pub id: EventId,
    /// The message's aggregate.
    pub aggregate: Aggregate,
    /// The sequence within the aggregate; `None` if unsequenced.
    pub sequence: Option<u64>,
    /// The status of the message in the outbox.
    pub status: MessageStatus,
    /// Whether the message halts its aggregate.
    pub halts: bool,
}

/// A message on the stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Logged {
    /// The event's id.
    pub id: EventId,
    /// The message's aggregate.
    pub aggregate: Aggregate,
    /// The sequence within the aggregate; `None` if unsequenced.
    pub sequence: Option<u64>,
}

impl From<&Message> for Logged {
    fn from(message: &Message) -> Self {
        Self {
            id: message.event_id,
            aggregate: message.aggregate.clone(),
            sequence: message.sequence,
        }
    }
}

impl Ledger {
    /// The ledger of an in-memory outbox and broker, without replayed copies in the outbox.
    #[must_use]
    pub fn of(store: &MemoryStore, broker: &MemoryBroker) -> Self {
        let rows = store.rows().into_iter();
        let originals = rows.filter(|row| row.message.event_id == row.message.id.into());
        let committed = originals.map(|row| Committed {
            id: row.message.event_id,
            aggregate: row.message.aggregate,
            sequence: row.message.sequence,
            status: row.status,
            halts: row.halts,
        });
        Self {
            committed: committed.collect(),
            log: broker.messages().iter().map(Logged::from).collect(),
        }
    }

    /// Messages on the stream beyond the first copy.
    #[must_use]
    pub fn copies(&self) -> usize {
        let ids: HashSet<_> = self.log.iter().map(|message| message.id).collect();
        self.log.len() - ids.len()
    }

    /// Returns every violation. A pending message counts as lost, unless the message waits behind a
    /// dead letter.
    #[must_use]
    pub fn check(&self) -> Vec<Violation> {
        let mut first_at: HashMap<EventId, usize> = HashMap::new();
        for (index, message) in self.log.iter().enumerate() {
            first_at.entry(message.id).or_insert(index);
        }
        let mut violations = self.losses(&first_at);
        violations.extend(self.ghosts());
        violations.extend(self.inversions(&first_at));
        violations
    }

    fn losses(&self, first_at: &HashMap<EventId, usize>) -> Vec<Violation> {
        let halted: HashSet<&Aggregate> = self
            .committed
            .iter()
            .filter(|message| message.status == MessageStatus::Dead && message.halts)
            .map(|message| &message.aggregate)
            .collect();
        self.committed
            .iter()
            .filter(|message| !first_at.contains_key(&message.id))
            .filter(|message| match message.status {
                MessageStatus::Published => true,
                MessageStatus::Pending | MessageStatus::Waiting | MessageStatus::Logged => {
                    !halted.contains(&message.aggregate)
                }
                MessageStatus::Dead => false,
            })
            .map(|message| Violation::Lost {
                id: message.id,
                status: message.status,
            })
            .collect()
    }

    fn ghosts(&self) -> Vec<Violation> {
        let committed = self.committed.iter().map(|message| (message.id, message));
        let committed: HashMap<EventId, &Committed> = committed.collect();
        let is_known = |logged: &Logged| {
            committed.get(&logged.id).is_some_and(|message| {
                message.aggregate == logged.aggregate && message.sequence == logged.sequence
            })
        };
        let ghosts = self.log.iter().filter(|logged| !is_known(logged));
        ghosts.map(|logged| Violation::Ghost { id: logged.id }).collect()
    }

    fn inversions(&self, first_at: &HashMap<EventId, usize>) -> Vec<Violation> {
        let mut aggregates: BTreeMap<&Aggregate, BTreeMap<u64, &Committed>> = BTreeMap::new();
        let mut violations = Vec::new();
        for message in &self.committed {
            let Some(sequence) = message.sequence else {
                continue;
            };
            let numbered = aggregates.entry(&message.aggregate).or_default();
            if numbered.insert(sequence, message).is_some() {
                violations.push(Violation::NumberedTwice {
                    aggregate: message.aggregate.clone(),
                    sequence,
                });
            }
        }
        for (aggregate, messages) in aggregates {
            let mut expected = 1;
            let mut last_index = None;
            for (sequence, message) in messages {
                if sequence != expected {
                    violations.push(Violation::Hole {
                        aggregate: aggregate.clone(),
                        sequence: expected,
                    });
                }
                expected = sequence + 1;
                let Some(index) = first_at.get(&message.id).copied() else {
                    continue;
                };
                if last_index.is_some_and(|last| index < last) {
                    violations.push(Violation::Inverted {
                        aggregate: aggregate.clone(),
                        sequence,
                    });
                }
                last_index = last_index.max(Some(index));
            }
        }
        violations
    }

    /// Panics with all violations.
    ///
    /// # Panics
    ///
    /// Panics if [`Self::check`] finds a violation.
    #[track_caller]
    pub fn assert_balanced(&self) {
        let violations: Vec<String> = self.check().iter().map(ToString::to_string).collect();
        assert!(
            violations.is_empty(),
            "the ledger does not balance:\n{}",
            violations.join("\n")
        );
    }
}

/// A violated guarantee.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Violation {
    /// A committed message is not on the stream, and its status does not explain the absence.
    #[error("lost: event {id} is {} and not on the stream", status.as_str())]
    Lost {
        /// The event.
        id: EventId,
        /// The status of the message in the outbox.
        status: MessageStatus,
    },
    /// A message on the stream was not committed, or differs from the committed message.
    #[error("ghost: event {id} on the stream has no equal committed message")]
    Ghost {
        /// The event.
        id: EventId,
    },
    /// A message is on the stream before an earlier message of its aggregate. Before the check,
    /// exclude retried dead letters without halt.
    #[error("inverted: sequence {sequence} of {aggregate} is on the stream before an earlier sequence")]
    Inverted {
        /// The aggregate.
        aggregate: Aggregate,
        /// The sequence of the early message.
        sequence: u64,
    },
    /// No committed message has this sequence.
    #[error("hole: sequence {sequence} of {aggregate} is missing")]
    Hole {
        /// The aggregate.
        aggregate: Aggregate,
        /// The missing sequence.
        sequence: u64,
    },
    /// Two committed messages have this sequence.
    #[error("numbered twice: {aggregate} has two messages with sequence {sequence}")]
    NumberedTwice {
        /// The aggregate.
        aggregate: Aggregate,
        /// The sequence that two messages have.
        sequence: u64,
    },
}

#[cfg(test)]
mod tests {
    use outbox_core::message::MessageId;

    use super::*;

    fn committed(count: u64) -> Vec<Committed> {
        let aggregate = Aggregate::new("order", "a");
        (1..=count)
            .map(|sequence| Committed {
                id: MessageId::fresh().into(),
                aggregate: aggregate.clone(),
                sequence: Some(sequence),
                status: MessageStatus::Published,
                halts: false,
            })
            .collect()
    }

    fn logged(message: &Committed) -> Logged {
        Logged {
            id: message.id,
            aggregate: message.aggregate.clone(),
            sequence: message.sequence,
        }
    }

    fn ledger(committed: Vec<Committed>, order: &[usize]) -> Ledger {
        let log = order.iter().map(|index| logged(&committed[*index])).collect();
        Ledger { committed, log }
    }

    #[test]
    fn copies_after_the_first_are_no_violation() {
        let ledger = ledger(committed(3), &[0, 1, 0, 2, 1]);
        assert_eq!(ledger.check(), []);
        assert_eq!(ledger.copies(), 2);
    }

    #[test]
    fn losses_are_found_unless_the_outbox_explains_them() {
        let mut messages = committed(3);
        messages[1].status = MessageStatus::Dead;
        messages[1].halts = true;
        messages[2].status = MessageStatus::Pending;
        assert_eq!(ledger(messages.clone(), &[0]).check(), []);
        messages[1].halts = false;
        assert!(matches!(
            ledger(messages, &[0]).check()[..],
            [Violation::Lost {
                status: MessageStatus::Pending,
                ..
            }]
        ));
        assert!(matches!(
            ledger(committed(1), &[]).check()[..],
            [Violation::Lost {
                status: MessageStatus::Published,
                ..
            }]
        ));
    }

    #[test]
    fn ghosts_inversions_and_bad_numbers_are_found() {
        let mut ghost = ledger(committed(1), &[0]);
        ghost.log.push(logged(&committed(1)[0]));
        assert!(matches!(ghost.check()[..], [Violation::Ghost { .. }]));

        let inverted = ledger(committed(3), &[0, 2, 1]).check();
        assert!(matches!(inverted[..], [Violation::Inverted { sequence: 3, .. }]));

        let mut messages = committed(3);
        messages.remove(1);
        assert!(matches!(
            ledger(messages, &[0, 1]).check()[..],
            [Violation::Hole { sequence: 2, .. }]
        ));

        let mut messages = committed(2);
        messages[1].sequence = Some(1);
        assert!(matches!(
            ledger(messages, &[0, 1]).check()[..],
            [Violation::NumberedTwice { sequence: 1, .. }]
        ));
    }
}
