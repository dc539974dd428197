//! Previews of retry, skip and replay.
//!
//! [`carry_out`] queries the selection again, so its counts may differ from a preview.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::num::{NonZeroU32, NonZeroU64};

use outbox::core::{
    Aggregate, Intent, MessageId, MessageStatus, Operation, OperationKind, OperationScope, OutboxAudit,
    OutboxReader, Selection, StoreError, StoredMessage,
};
use serde::Serialize;
use time::OffsetDateTime;

use crate::admin::letters::without_particulars;
use crate::admin::recheck::{CauseNow, RECHECKED_MAX};
use crate::admin::serial;
use crate::admin::words::{count, counted};

/// Maximum number of messages counted by a preview.
pub const PREVIEW_MAX: u32 = 100_000;

const ERRORS_MAX: usize = 10;

/// Messages per call of [`carry_out`]. Large, because each call may scan the whole table.
const STEP: NonZeroU32 = NonZeroU32::new(1_000_000).unwrap();

/// Kind of change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Change {
    /// Makes dead letters pending again.
    Retry,
    /// Releases halted aggregates; their dead letters stay dead letters.
    Skip,
    /// Records copies of published messages and dead letters.
    Replay,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

impl Change {
    const ALL: [Self; 3] = [Self::Retry, Self::Skip, Self::Replay];

    /// Words after `outbox` on the command line.
    pub fn command(self) -> &'static str {
        match self {
            Self::Retry => "retry",
            Self::Skip => "retry --skip",
            Self::Replay => "replay",
        }
    }

    fn kind(self) -> OperationKind {
        match self {
            Self::Retry => OperationKind::Retry,
            Self::Skip => OperationKind::Skip,
            Self::Replay => OperationKind::Replay,
        }
    }

    /// `None` for operations of other kinds.
    pub fn of(operation: &Operation) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|change| change.kind() == operation.kind)
    }

    /// A new operation for [`carry_out`], on all selected messages or the `first` ones.
    pub fn operation(self, selection: &Selection, first: Option<NonZeroU64>, intent: Intent) -> Operation {
        let scope = OperationScope::messages(self.narrow(selection)).first(first);
        Operation::new(self.kind(), scope, intent)
    }

    fn narrow(self, selection: &Selection) -> Selection {
        let mut selection = selection.clone();
        match self {
            Self::Replay => {}
            Self::Retry | Self::Skip => selection.status = Some(MessageStatus::Dead),
        }
        selection
    }

    fn takes(self, message: &StoredMessage) -> bool {
        match self {
            Self::Retry => message.status == MessageStatus::Dead,
            Self::Skip => message.status == MessageStatus::Dead && message.halts,
            Self::Replay => matches!(
                message.status,
                MessageStatus::Dead | MessageStatus::Published | MessageStatus::Logged
            ),
        }
    }
}

/// Preview of a change.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Preview {
    /// The change.
    pub change: Change,
    /// Selected messages.
    pub messages: u64,
    /// Whether `messages` is complete: counting stops after [`PREVIEW_MAX`].
    pub is_complete: bool,
    /// Number of selected aggregates.
    pub aggregates: u64,
    /// Halted aggregates released.
    pub halts_ended: u64,
    /// Messages to be published in order, or unsequenced.
    pub in_order: u64,
    /// Messages that are published out of order or never, which leaves a gap.
    pub out_of_order: u64,
    /// Oldest message's recording time.
    #[serde(serialize_with = "serial::time_if_any")]
    pub recorded_from: Option<OffsetDateTime>,
    /// Newest message's recording time.
    #[serde(serialize_with = "serial::time_if_any")]
    pub recorded_until: Option<OffsetDateTime>,
    /// Messages per type.
    pub event_types: BTreeMap<String, u64>,
    /// Most frequent errors.
    pub errors: Vec<ErrorCount>,
    /// Errors not in `errors`.
    pub errors_unlisted: u64,
    /// Causes of failures, from [`look_ahead`](crate::admin::look_ahead).
    pub causes: Vec<CauseNow>,
    /// Effect sentences.
    pub effects: Vec<String>,
    /// First messages of a retry or replay, at most 100, for
    /// [`look_ahead`](crate::admin::look_ahead).
    #[serde(skip)]
    pub first: Vec<MessageId>,
}

/// Messages with the same error, apart from numbers, ids and quoted parts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ErrorCount {
    /// Error text, with `<n>` for parts that differ.
    pub error: String,
    /// Number of messages.
    pub messages: u64,
}

/// Previews a change. Reads up to [`PREVIEW_MAX`] messages, without payloads.
///
/// # Errors
///
/// [`StoreError`].
pub async fn preview(
    store: &impl OutboxReader,
    change: Change,
    selection: &Selection,
    first: Option<NonZeroU64>,
) -> Result<Preview, StoreError> {
    read(store, change, selection, first, None).await
}

/// Runs or continues an operation of [`Change::operation`] to its end. Each transaction commits at
/// most 1,000 messages and the operation's progress.
///
/// # Errors
///
/// [`StoreError`]. Call again with the same operation to continue; no message changes twice.
///
/// # Cancellation
///
/// A dropped call has the same effect as an error.
pub async fn carry_out(store: &impl OutboxAudit, operation: &Operation) -> Result<Operation, StoreError> {
    let mut operation = operation.clone();
    while !operation.is_finished() {
        operation = store.advance(&operation, STEP).await?;
    }
    Ok(operation)
}

/// Previews the rest of an interrupted operation; `None` if it changes no messages.
///
/// # Errors
///
/// [`StoreError`].
pub async fn preview_rest(
    store: &impl OutboxReader,
    operation: &Operation,
) -> Result<Option<Preview>, StoreError> {
    let Some(change) = Change::of(operation) else {
        return Ok(None);
    };
    if operation.is_finished() {
        return Ok(Some(summarise(change, true, &[])));
    }
    let mut selection = operation.scope.selection.clone();
    selection.after = selection.after.max(operation.position);
    let first = operation
        .left()
        .map(|left| NonZeroU64::new(left).unwrap_or(NonZeroU64::MIN));
    read(store, change, &selection, first, operation.until)
        .await
        .map(Some)
}

async fn read(
    store: &impl OutboxReader,
    change: Change,
    selection: &Selection,
    first: Option<NonZeroU64>,
    until: Option<i64>,
) -> Result<Preview, StoreError> {
    let statuses: &[MessageStatus] = match (change, selection.status) {
        (Change::Replay, None) => &[
            MessageStatus::Published,
            MessageStatus::Logged,
            MessageStatus::Dead,
        ],
        (Change::Replay, Some(MessageStatus::Logged)) => &[MessageStatus::Logged],
        (Change::Replay, Some(MessageStatus::Published)) => &[MessageStatus::Published],
        _ => &[MessageStatus::Dead],
    };
    let mut selected = Vec::new();
    for status in statuses {
        let limit = NonZeroU32::MIN.saturating_add(PREVIEW_MAX);
        let selection = selection.clone().status(*status);
        selected.extend(store.list(&selection, limit).await?);
    }
    let bound = PREVIEW_MAX as usize;
    let is_complete = selected.len() <= bound;
    selected.truncate(bound);
    let is_within = |message: &StoredMessage| until.is_none_or(|until| message.row_id <= until);
    selected.retain(|message| change.takes(message) && is_within(message));
    let Some(first) = first.and_then(|first| usize::try_from(first.get()).ok()) else {
        return Ok(summarise(change, is_complete, &selected));
    };
    selected.sort_by_key(|message| message.row_id);
    let is_complete = is_complete || selected.len() >= first;
    selected.truncate(first);
    Ok(summarise(change, is_complete, &selected))
}

fn summarise(change: Change, is_complete: bool, selected: &[StoredMessage]) -> Preview {
    let aggregates: HashSet<&Aggregate> = selected.iter().map(|message| &message.aggregate).collect();
    let halting = selected.iter().filter(|message| message.halts).count();
    let unordered = selected
        .iter()
        .filter(|message| message.sequence.is_none())
        .count();
    let in_order = match change {
        // A halting dead letter is still the next message of its aggregate.
        Change::Retry => selected
            .iter()
            .filter(|message| message.halts || message.sequence.is_none())
            .count(),
        Change::Skip | Change::Replay => unordered,
    };
    let mut event_types: BTreeMap<String, u64> = BTreeMap::new();
    for message in selected {
        *event_types.entry(message.event_type.clone()).or_default() += 1;
    }
    let (errors, errors_unlisted) = errors_of(selected);
    let mut preview = Preview {
        change,
        messages: count(selected.len()),
        is_complete,
        aggregates: count(aggregates.len()),
        halts_ended: match change {
            Change::Replay => 0,
            _ => count(halting),
        },
        in_order: count(in_order),
        out_of_order: count(selected.len() - in_order),
        recorded_from: selected.iter().map(|message| message.created_at).min(),
        recorded_until: selected.iter().map(|message| message.created_at).max(),
        event_types,
        errors,
        errors_unlisted,
        effects: Vec::new(),
        causes: Vec::new(),
        first: match change {
            Change::Retry | Change::Replay => {
                let first = selected.iter().take(RECHECKED_MAX);
                first.map(|message| message.id).collect()
            }
            Change::Skip => Vec::new(),
        },
    };
    preview.effects = effects(&preview);
    let logged = selected
        .iter()
        .filter(|message| message.status == MessageStatus::Logged)
        .count();
    if logged > 0 {
        preview.effects.push(counted(
            count(logged),
            "is logged, and skipped unless the log position has passed it",
            "are logged, and skipped unless the log position has passed them",
        ));
    }
    preview
}

pub(crate) fn errors_of(selected: &[StoredMessage]) -> (Vec<ErrorCount>, u64) {
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    for error in selected.iter().filter_map(|message| message.error.as_deref()) {
        *counts.entry(error).or_default() += 1;
    }
    let mut kinds: BTreeMap<String, ErrorCount> = BTreeMap::new();
    for (error, messages) in counts {
        let kind = without_particulars(error);
        if let Some(known) = kinds.get_mut(&kind) {
            known.error = kind;
            known.messages += messages;
        } else {
            let error = error.to_owned();
            kinds.insert(kind, ErrorCount { error, messages });
        }
    }
    let mut errors: Vec<ErrorCount> = kinds.into_values().collect();
    errors.sort_by_key(|error| std::cmp::Reverse(error.messages));
    let unlisted = errors.iter().skip(ERRORS_MAX);
    let unlisted = unlisted.map(|error| error.messages).sum();
    errors.truncate(ERRORS_MAX);
    (errors, unlisted)
}

fn effects(preview: &Preview) -> Vec<String> {
    let mut effects = Vec::new();
    if preview.messages == 0 {
        return effects;
    }
    let Preview {
        in_order,
        out_of_order,
        halts_ended,
        ..
    } = preview;
    match preview.change {
        Change::Retry => {
            if *in_order > 0 {
                effects.push(counted(*in_order, "keeps its order", "keep their order"));
            }
            if *out_of_order > 0 {
                effects.push(counted(
                    *out_of_order,
                    "may be published after later messages of its aggregate",
                    "may be published after later messages of their aggregates",
                ));
            }
            if *halts_ended > 0 {
                effects.push(counted(
                    *halts_ended,
                    "halted aggregate continues",
                    "halted aggregates continue",
                ));
            }
            effects.push("if the cause persists, the messages become dead letters again".to_owned());
        }
        Change::Skip => {
            effects.push(counted(
                *halts_ended,
                "halted aggregate continues without its dead letter",
                "halted aggregates continue without their dead letters",
            ));
            effects.push("consumers do not receive these messages".to_owned());
            effects.push(
                "consumers see a gap; with strategy `sequence` they wait for the time `gap`".to_owned(),
            );
            effects
                .push("the messages stay dead letters; a later retry publishes them out of order".to_owned());
        }
        Change::Replay => {
            effects
                .push("copies have new message ids and are published after all recorded messages".to_owned());
            effects.push(
                "a consumer handles a copy only if its inbox has no row of the event (rows expire after 15 days by default)".to_owned(),
            );
            effects.push(
                "a repeated command makes new copies; `--operation` continues without new copies".to_owned(),
            );
        }
    }
    effects
}

#[cfg(test)]
mod tests {
    use outbox::core::EventId;
    use uuid::Uuid;

    use super::*;

    fn dead(error: &str) -> StoredMessage {
        StoredMessage {
            row_id: 1,
            id: MessageId::from(Uuid::nil()),
            event_id: EventId::from(Uuid::nil()),
            aggregate: Aggregate::new("order", "1"),
            sequence: None,
            event_type: "order.placed".to_owned(),
            status: MessageStatus::Dead,
            attempts: 1,
            failures: 1,
            error: Some(error.to_owned()),
            halts: false,
            created_at: OffsetDateTime::UNIX_EPOCH,
            published_at: None,
        }
    }

    #[test]
    fn errors_are_grouped_without_ids() {
        let errors = [
            "message 1 is too large",
            "no answer in 5s",
            "message 2 is too large",
            "no answer in 5s",
        ];
        let (errors, unlisted) = errors_of(&errors.map(dead));
        let listed: Vec<_> = errors
            .iter()
            .map(|error| (error.error.as_str(), error.messages))
            .collect();
        assert_eq!(listed, [("message <n> is too large", 2), ("no answer in 5s", 2)]);
        assert_eq!(unlisted, 0);
    }

    #[test]
    fn unlisted_errors_are_counted() {
        let kinds = "abcdefghijkl".chars();
        let mut selected: Vec<_> = kinds.map(|kind| dead(&format!("failed of {kind}"))).collect();
        selected.push(dead("failed of l"));
        let (errors, unlisted) = errors_of(&selected);
        assert_eq!((errors.len(), unlisted), (ERRORS_MAX, 2));
        assert_eq!((errors[0].error.as_str(), errors[0].messages), ("failed of l", 2));
    }
}
