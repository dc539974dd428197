//! The dead letters of consumers, and what operators may do about them.
//!
//! Invariant: no value holds a payload, or a header of the application, that was not masked. Not here: what a change would do, see `letter_preview`.

use std::collections::BTreeMap;

use outbox_core::sensitive::MASK;
use outbox_core::{EventId, Intent, Operation, OperationId, OperationKind, OperationScope, SensitiveFields};
use outbox_inbox::{DeadLetter, DeadLetterSelection, DeadLetterStatus, DeadLetters};
use sea_orm::DbErr;
use serde::Serialize;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::fingerprint::GroupFingerprint;
use crate::serial;

/// Most keys of dead letters that an operation names as what it was to take.
const KEYS_MAX: usize = 1_000;

/// Most keys of a selection.
const SELECTED_MAX: usize = 10_000;

/// A dead letter of a consumer in a list.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct LetterRow {
    /// Its key, which commands take.
    #[serde(serialize_with = "serial::text")]
    pub id: Uuid,
    /// The consumer that could not handle it.
    pub consumer: String,
    /// `open`, or `retry` if it is to be tried again.
    pub status: &'static str,
    /// The event's id; `None` if it is no message of an outbox.
    #[serde(serialize_with = "serial::text_if_any")]
    pub event_id: Option<EventId>,
    /// The event type; `None` if it is no message.
    pub event_type: Option<String>,
    /// Type of the aggregate; `None` if it is no message.
    pub aggregate_type: Option<String>,
    /// Id of the aggregate; `None` if it is no message.
    pub aggregate_id: Option<String>,
    /// The number within the aggregate.
    pub sequence: Option<u64>,
    /// The subject it was published on.
    pub subject: String,
    /// The stream sequence under which it was delivered.
    pub stream_sequence: u64,
    /// Failed attempts; 0 if no handler ever ran.
    pub attempts: u32,
    /// Why it was dead-lettered, the last time.
    pub error: String,
    /// When it was dead-lettered.
    #[serde(serialize_with = "serial::time")]
    pub dead_lettered_at: OffsetDateTime,
}

impl From<&DeadLetter> for LetterRow {
    fn from(letter: &DeadLetter) -> Self {
        let aggregate = letter.aggregate.as_ref();
        Self {
            id: letter.id,
            consumer: letter.consumer.clone(),
            status: match letter.status {
                DeadLetterStatus::Open => "open",
                DeadLetterStatus::Retry => "retry",
            },
            event_id: letter.event_id,
            event_type: letter.event_type.clone(),
            aggregate_type: aggregate.map(|aggregate| aggregate.aggregate_type.clone()),
            aggregate_id: aggregate.map(|aggregate| aggregate.id.clone()),
            sequence: letter.sequence,
            subject: letter.subject.clone(),
            stream_sequence: letter.stream_sequence,
            attempts: letter.attempts,
            error: letter.error.clone(),
            dead_lettered_at: letter.created_at,
        }
    }
}

/// A dead letter with everything that may be shown of it.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct LetterDetail {
    /// What lists show.
    #[serde(flatten)]
    pub row: LetterRow,
    /// Headers by name. The values of those that the application has set are masked.
    pub headers: BTreeMap<String, String>,
    /// The payload with its sensitive fields masked, if it was asked for.
    pub payload: Option<String>,
}

/// At most `limit` dead letters, oldest first.
///
/// # Errors
///
/// The database's error.
pub async fn list_letters(
    letters: &DeadLetters,
    selection: &DeadLetterSelection,
    limit: u32,
) -> Result<Vec<LetterRow>, DbErr> {
    let listed = letters.list_without_payloads(selection, limit).await?;
    Ok(listed.iter().map(LetterRow::from).collect())
}

/// A dead letter; `None` if it is gone. With `shown`, its payload too: the events that are known there, with their sensitive fields masked.
///
/// # Errors
///
/// The database's error.
pub async fn show_letter(
    letters: &DeadLetters,
    id: Uuid,
    shown: Option<&SensitiveFields>,
) -> Result<Option<LetterDetail>, DbErr> {
    let letter = letters.get(id).await?;
    Ok(letter.map(|letter| LetterDetail {
        row: LetterRow::from(&letter),
        headers: letter.headers.iter().map(masked_header).collect(),
        payload: shown.map(|fields| letter.masked_payload(fields).to_string()),
    }))
}

/// Names that belong to CloudEvents, NATS, W3C and this library say nothing of a person. Nobody has said what the others hold.
fn masked_header((name, value): &(String, String)) -> (String, String) {
    let plain = name.to_ascii_lowercase();
    let is_own = ["ce-", "nats-", "outbox-"]
        .iter()
        .any(|own| plain.starts_with(own));
    let shown = if is_own || ["content-type", "traceparent", "tracestate"].contains(&plain.as_str()) {
        value
    } else {
        MASK
    };
    (name.clone(), shown.to_owned())
}

/// A change to dead letters of consumers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum LetterChange {
    /// Open ones are to be tried again.
    Retry,
    /// Those that are to be tried again are open again.
    CancelRetry,
    /// They are deleted, and with them the only copy of their bytes outside the stream.
    Discard,
}

impl LetterChange {
    /// The change as its command.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Retry => "retry",
            Self::CancelRetry => "cancel-retry",
            Self::Discard => "discard",
        }
    }

    /// A new operation that makes the change, for [`carry_out_letters`].
    #[must_use]
    pub fn operation(self, selection: &DeadLetterSelection, intent: Intent) -> Operation {
        Operation::new(self.kind(), scope(selection), intent)
    }

    /// As [`Self::operation`], on the dead letters of a group.
    #[must_use]
    pub fn operation_on_group(
        self,
        selection: &DeadLetterSelection,
        group: GroupFingerprint,
        intent: Intent,
    ) -> Operation {
        let mut names = scope_names(selection);
        names.push(format!("group={group}"));
        Operation::new(self.kind(), OperationScope::names(names), intent)
    }

    fn kind(self) -> OperationKind {
        match self {
            Self::Retry => OperationKind::RetryLetters,
            Self::CancelRetry => OperationKind::CancelRetry,
            Self::Discard => OperationKind::DiscardLetters,
        }
    }

    /// The dead letters that the change takes.
    #[must_use]
    pub fn narrow(self, selection: &DeadLetterSelection) -> DeadLetterSelection {
        let mut selection = selection.clone();
        selection.status = match self {
            Self::Retry => Some(DeadLetterStatus::Open),
            Self::CancelRetry => Some(DeadLetterStatus::Retry),
            Self::Discard => selection.status,
        };
        selection
    }

    /// What it does: one sentence each.
    pub(crate) fn effects(self) -> Vec<String> {
        let effects: &[&str] = match self {
            Self::Retry => &[
                "a running inbox of the consumer tries them soon, another one at its start; those of an aggregate in the order of the stream",
                "later messages of their aggregates have usually been handled by then",
                "those that fail again are open again, with the new error",
            ],
            Self::CancelRetry => {
                &["they are open again; those that an inbox is trying at this moment are left out"]
            }
            Self::Discard => &[
                "the only copy of their bytes outside the stream is deleted",
                "a copy of the message that is delivered later has no effect, until the inbox forgets the message",
            ],
        };
        effects.iter().map(|&effect| effect.to_owned()).collect()
    }
}

/// What a change to dead letters has done.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct LettersChanged {
    /// The change.
    pub change: LetterChange,
    /// Dead letters that it has changed.
    pub dead_letters: u64,
    /// The operation; `None` if nothing was changed, so nothing was written down.
    #[serde(serialize_with = "serial::text_if_any")]
    pub operation: Option<OperationId>,
}

/// Makes a change, in transactions of at most 1,000 dead letters, each together with the operation that says who, what and why. A crash or an error leaves those that
/// were completed; calling again continues, as another operation.
///
/// # Errors
///
/// The database's error.
pub async fn apply_letters(
    letters: &DeadLetters,
    change: LetterChange,
    selection: &DeadLetterSelection,
    intent: Intent,
) -> Result<LettersChanged, DbErr> {
    let operation = change.operation(selection, intent);
    carry_out_letters(letters, change, selection, &operation).await
}

/// As [`apply_letters`], with an operation that the caller knows, so that it can look how far it is.
///
/// # Errors
///
/// The database's error.
pub async fn carry_out_letters(
    letters: &DeadLetters,
    change: LetterChange,
    selection: &DeadLetterSelection,
    operation: &Operation,
) -> Result<LettersChanged, DbErr> {
    let letters = letters.clone().written_down(operation);
    let dead_letters = match change {
        LetterChange::Retry => letters.retry(selection).await?,
        LetterChange::CancelRetry => letters.cancel_retry(selection).await?,
        LetterChange::Discard => letters.discard(selection).await?,
    };
    Ok(LettersChanged {
        change,
        dead_letters,
        operation: (dead_letters > 0).then_some(operation.id),
    })
}

/// As [`carry_out_letters`], of the dead letters with these keys, however many.
///
/// # Errors
///
/// The database's error.
pub async fn carry_out_by_key(
    letters: &DeadLetters,
    change: LetterChange,
    keys: &[Uuid],
    operation: &Operation,
) -> Result<LettersChanged, DbErr> {
    let mut changed = LettersChanged {
        change,
        dead_letters: 0,
        operation: None,
    };
    for keys in keys.chunks(SELECTED_MAX) {
        let selection = DeadLetterSelection::ids(keys.iter().copied());
        let done = carry_out_letters(letters, change, &selection, operation).await?;
        changed.dead_letters += done.dead_letters;
        changed.operation = changed.operation.or(done.operation);
    }
    Ok(changed)
}

fn scope(selection: &DeadLetterSelection) -> OperationScope {
    OperationScope::names(scope_names(selection))
}

/// The selection as an operation keeps it: what narrows it, each with its name. Of many keys, the first ones.
fn scope_names(selection: &DeadLetterSelection) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    let mut note =
        |name: &str, value: Option<String>| names.extend(value.map(|value| format!("{name}={value}")));
    note("consumer", selection.consumer.clone());
    note("type", selection.event_type.clone());
    note("aggregate", selection.aggregate.as_ref().map(ToString::to_string));
    note("since", selection.from.map(serial::rfc3339));
    note("until", selection.until.map(serial::rfc3339));
    for id in selection.ids.iter().flatten().take(KEYS_MAX) {
        note("dead_letter", Some(id.to_string()));
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_of_the_application_is_masked_also_if_its_name_begins_like_one_of_ours() {
        let shown = |name: &str| masked_header(&(name.to_owned(), "secret".to_owned())).1;
        for name in ["traceparent", "Content-Type", "ce-id"] {
            assert_eq!(shown(name), "secret", "{name}");
        }
        for name in ["trace-user", "tracer", "content-typed", "x"] {
            assert_eq!(shown(name), MASK, "{name}");
        }
    }
}
