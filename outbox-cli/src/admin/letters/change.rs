//! Previews and applies changes to consumer dead letters.

use outbox::core::{Intent, Operation, OperationKind, OperationScope};
use outbox::inbox::{DeadLetterSelection, DeadLetterStatus, DeadLetters};
use sea_orm::DbErr;
use std::fmt;
use uuid::Uuid;

use super::groups::GroupFingerprint;
use crate::admin::plan::Plan;
use crate::admin::serial;
use crate::admin::words::counted;

const KEYS_MAX: usize = 1_000;

const SELECTED_MAX: usize = 10_000;

/// Change of dead letters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LetterChange {
    /// Marks dead letters for retry.
    Retry,
    /// Cancels a retry.
    CancelRetry,
    /// Deletes dead letters, the last copy outside the stream.
    Discard,
}

impl fmt::Display for LetterChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl LetterChange {
    fn as_str(self) -> &'static str {
        match self {
            Self::Retry => "retry",
            Self::CancelRetry => "cancel-retry",
            Self::Discard => "discard",
        }
    }

    /// Preview of the change of this number of dead letters.
    pub fn preview(self, dead_letters: u64) -> Plan {
        if dead_letters == 0 {
            return Plan::nothing(self.as_str(), "dead letters", "no dead letter matches");
        }
        let subject = counted(dead_letters, "dead letter", "dead letters");
        Plan {
            count: Some(dead_letters),
            ..Plan::new(self.as_str(), subject, self.effects())
        }
    }

    /// A new operation for [`carry_out_letters`].
    pub fn operation(self, selection: &DeadLetterSelection, intent: Intent) -> Operation {
        Operation::new(self.kind(), scope(selection), intent)
    }

    /// As [`Self::operation`], on a dead-letter group.
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

    /// Narrows a selection to dead letters that the change affects.
    pub fn narrow(self, selection: &DeadLetterSelection) -> DeadLetterSelection {
        let mut selection = selection.clone();
        selection.status = match self {
            Self::Retry => Some(DeadLetterStatus::Open),
            Self::CancelRetry => Some(DeadLetterStatus::Retry),
            Self::Discard => selection.status,
        };
        selection
    }

    fn effects(self) -> Vec<String> {
        let effects: &[&str] = match self {
            Self::Retry => &[
                "a running inbox retries them soon, a stopped inbox at its start, in stream order per aggregate",
                "later messages of their aggregates are usually handled already",
                "dead letters that fail again reopen with the new error",
            ],
            Self::CancelRetry => &["the dead letters reopen, unless an inbox is retrying them now"],
            Self::Discard => &[
                "the only copy of their bytes outside the stream is deleted",
                "a later delivery of the message has no effect while the inbox keeps its row",
            ],
        };
        effects.iter().map(|&effect| effect.to_owned()).collect()
    }
}

/// Applies a change, at most 1,000 dead letters per transaction, with the operation.
///
/// # Errors
///
/// `DbErr`. Committed transactions stay; a second call continues, as another operation.
pub async fn carry_out_letters(
    letters: &DeadLetters,
    change: LetterChange,
    selection: &DeadLetterSelection,
    operation: &Operation,
) -> Result<u64, DbErr> {
    let letters = letters.clone().written_down(operation);
    match change {
        LetterChange::Retry => letters.retry(selection).await,
        LetterChange::CancelRetry => letters.cancel_retry(selection).await,
        LetterChange::Discard => letters.discard(selection).await,
    }
}

/// As [`carry_out_letters`], by dead letter key and without a limit.
///
/// # Errors
///
/// `DbErr`.
pub async fn carry_out_by_key(
    letters: &DeadLetters,
    change: LetterChange,
    keys: &[Uuid],
    operation: &Operation,
) -> Result<u64, DbErr> {
    let mut changed = 0;
    for keys in keys.chunks(SELECTED_MAX) {
        let selection = DeadLetterSelection::ids(keys.iter().copied());
        changed += carry_out_letters(letters, change, &selection, operation).await?;
    }
    Ok(changed)
}

fn scope(selection: &DeadLetterSelection) -> OperationScope {
    OperationScope::names(scope_names(selection))
}

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
