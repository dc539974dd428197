//! How findings are made and worded.

use outbox_core::StoredMessage;

use super::{Cause, Finding};
use crate::verdict::State;
use crate::words::counted;

pub(super) fn finding(
    cause: Cause,
    state: State,
    message: Option<&StoredMessage>,
    what: String,
    next: &[&str],
) -> Finding {
    Finding {
        cause,
        state,
        message: message.map(|message| message.id),
        stream_sequence: None,
        what,
        next: next.iter().map(|&command| command.into()).collect(),
        advice: None,
    }
}

impl Finding {
    /// With what no command does.
    pub(super) fn advise(self, words: impl Into<String>) -> Self {
        Self {
            advice: Some(words.into()),
            ..self
        }
    }
}

/// The message as a sentence names it: `#8 order.placed (…)`.
pub(super) fn named(message: &StoredMessage) -> String {
    match message.sequence {
        Some(sequence) => format!("#{sequence} {} ({})", message.event_type, message.id),
        None => format!("{} ({})", message.event_type, message.id),
    }
}

pub(super) fn times(message: &StoredMessage) -> String {
    counted(message.failures.into(), "time", "times")
}
