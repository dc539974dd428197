//! How findings are made and worded.

use outbox_core::StoredMessage;

use super::{Cause, Finding};
use crate::next::Command;
use crate::verdict::State;
use crate::words::counted;

/// No command.
pub(super) const NOTHING: [Command; 0] = [];

pub(super) fn finding(
    cause: Cause,
    state: State,
    message: Option<&StoredMessage>,
    what: String,
    next: impl IntoIterator<Item = impl Into<Command>>,
) -> Finding {
    Finding {
        cause,
        state,
        message: message.map(|message| message.id),
        stream_sequence: None,
        what,
        next: next.into_iter().map(Into::into).collect(),
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
