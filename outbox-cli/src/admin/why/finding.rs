//! Construction and wording of findings.

use outbox::core::StoredMessage;

use super::{Cause, Finding};
use crate::admin::next::Command;
use crate::admin::verdict::State;
use crate::admin::words::counted;

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
    pub(super) fn advise(self, words: impl Into<String>) -> Self {
        Self {
            advice: Some(words.into()),
            ..self
        }
    }
}

pub(super) fn named(message: &StoredMessage) -> String {
    match message.sequence {
        Some(sequence) => format!("#{sequence} {} ({})", message.event_type, message.id),
        None => format!("{} ({})", message.event_type, message.id),
    }
}

pub(super) fn times(message: &StoredMessage) -> String {
    counted(message.failures.into(), "time", "times")
}
