//! Mistakes of writers. The fixture implements them, because a store does not record.

use outbox_core::message::{Events, IntoEvents, Limits, NewMessage};

use outbox_testing::MemoryStore;
use outbox_testing::conformance::store::Refused;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriterMistake {
    /// A rollback commits the messages.
    CommitsRolledBack,
    /// A rollback leaves gaps in the sequences.
    LeavesHoles,
    IgnoresDedupKeys,
    NumbersEverything,
    ReversesBatches,
    HidesRefusals,
}

impl WriterMistake {
    pub(crate) fn commit(self, store: &MemoryStore, events: Events) -> Result<(), Refused> {
        let mut messages = match events.checked(&Limits::default()) {
            Ok(messages) => messages,
            Err(_) if self == Self::HidesRefusals => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        match self {
            Self::IgnoresDedupKeys => store.forget_dedup_keys(),
            Self::ReversesBatches => messages.reverse(),
            Self::NumbersEverything => {
                use_up(store, messages.iter().filter(|message| !message.is_sequenced()))
            }
            _ => {}
        }
        Ok(store.record(messages.into_events())?)
    }

    pub(crate) fn roll_back(self, store: &MemoryStore, events: Events) -> Result<(), Refused> {
        let messages = events.checked(&Limits::default())?;
        match self {
            Self::CommitsRolledBack => return Ok(store.record(messages.into_events())?),
            Self::LeavesHoles => use_up(store, &messages),
            _ => {}
        }
        Ok(store.begin().record(messages.into_events())?)
    }
}

fn use_up<'m>(store: &MemoryStore, messages: impl IntoIterator<Item = &'m NewMessage>) {
    for message in messages {
        store.use_up_number(message.aggregate());
    }
}
