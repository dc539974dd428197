//! The audit: which operations there were, who made each and why, and what became of its messages.
//!
//! Invariant: nothing here changes anything. What is exact and what is not stands at each field.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use outbox_core::{
    MessageStatus, Operation, OperationFilter, OperationId, OperationKind, OutboxAudit, StoreError,
    StoredMessage,
};
use outbox_inbox::{DatabaseAnswer, DeadLetterSelection, DeadLetterStatus, DeadLetters, InboxOperations};
use sea_orm::DbErr;
use serde::Serialize;
use serde_json::Value;
use time::OffsetDateTime;

use crate::change::{Change, ErrorCount, errors_of};
use crate::next::Command;
use crate::serial;
use crate::table::{Column, Columns};
use crate::words::{any, utc, yes};

/// An operation in a list.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct OperationRow {
    /// Its id.
    #[serde(serialize_with = "serial::text")]
    pub id: OperationId,
    /// What it does: `retry`, `skip`, `replay`, `resume`, `forget`, `pause`, `unpause`, `purge`, `reconcile`, `init-log`, `drop-log`, or a kind of the inbox.
    pub kind: String,
    /// Whether it has ended. One that has not is running, or broke off.
    pub is_finished: bool,
    /// Who made it.
    pub actor: String,
    /// Why, in their words.
    pub reason: Option<String>,
    /// What it was to take, by criterion. Empty: everything.
    pub scope: Value,
    /// How many messages it has changed or copied, or things of another kind. Exact: counted in the transactions of the changes.
    pub changed: u64,
    /// When it began, by the clock of the database.
    #[serde(serialize_with = "serial::time_if_any")]
    pub started_at: Option<OffsetDateTime>,
    /// When it ended.
    #[serde(serialize_with = "serial::time_if_any")]
    pub finished_at: Option<OffsetDateTime>,
}

impl From<&Operation> for OperationRow {
    fn from(operation: &Operation) -> Self {
        Self {
            id: operation.id,
            kind: operation.kind.as_str().to_owned(),
            is_finished: operation.is_finished(),
            actor: operation.intent.actor.clone(),
            reason: operation.intent.reason.clone(),
            // The store writes an object.
            scope: serde_json::from_str(&operation.scope.to_json()).unwrap_or(Value::Null),
            changed: operation.changed,
            started_at: operation.started_at,
            finished_at: operation.finished_at,
        }
    }
}

/// An operation, and what became of its messages.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct OperationDetail {
    /// What lists show.
    #[serde(flatten)]
    pub row: OperationRow,
    /// How many messages the operation names: the first 1,000 that it took, or that a replay has made. The following counts are of these.
    pub named: u64,
    /// Whether these are all that it has taken.
    pub names_all: bool,
    /// Those that are published and still kept.
    pub published: u64,
    /// Those that are to be published: pending, waiting, or in the hands of a log relay. Of dead letters of consumers: those that are to be tried again.
    pub pending: u64,
    /// Those that are dead letters now. After a retry they have failed again; after a skip it is what was asked for. Of dead letters of consumers: those that are open,
    /// after a retry because they have failed again, are being tried at this moment, or the retry was cancelled.
    pub dead: u64,
    /// Those that the outbox does not hold any more: deleted after they were published, or forgotten. Of dead letters of consumers: those that were handled or discarded.
    pub gone: u64,
    /// The most frequent errors of those that are dead letters.
    pub errors: Vec<ErrorCount>,
    /// Those with other errors, which are not listed.
    pub errors_unlisted: u64,
    /// What became of it, in a sentence.
    pub outcome: String,
    /// The command that helps, if one does.
    pub next: Option<Command>,
}

/// At most `limit` operations, the last one first.
///
/// # Errors
///
/// [`StoreError`].
pub async fn list_operations(
    store: &impl OutboxAudit,
    filter: &OperationFilter,
    limit: NonZeroU32,
) -> Result<Vec<OperationRow>, StoreError> {
    let operations = store.operations(filter, limit).await?;
    Ok(operations.iter().map(OperationRow::from).collect())
}

/// An operation and what became of its messages; `None` if there is none. Reads at most 1,000 messages, by their ids.
///
/// # Errors
///
/// [`StoreError`].
pub async fn show_operation(
    store: &impl OutboxAudit,
    id: OperationId,
) -> Result<Option<OperationDetail>, StoreError> {
    let Some(operation) = store.operation(id).await? else {
        return Ok(None);
    };
    let found = store.messages_of(id).await?;
    Ok(Some(detail(&operation, found.named, &found.messages)))
}

/// At most `limit` operations on the consumers of a database and on their dead letters, the last one first.
///
/// # Errors
///
/// The database's error. A database without an inbox has no operations.
pub async fn list_inbox_operations(
    operations: &InboxOperations,
    filter: &OperationFilter,
    limit: NonZeroU32,
) -> Result<Vec<OperationRow>, DbErr> {
    match operations.list(filter, limit).await {
        Err(error) if has_no_inbox(&error) => Ok(Vec::new()),
        operations => Ok(operations?.iter().map(OperationRow::from).collect()),
    }
}

fn has_no_inbox(error: &DbErr) -> bool {
    DatabaseAnswer::is_table_missing(error, "inbox_operations")
}

/// An operation on consumers or their dead letters; `None` if there is none. Of the dead letters that it names, those that are marked to be tried again count as pending, those
/// that are open as dead, and the others as gone: handled, or discarded.
///
/// # Errors
///
/// As [`list_inbox_operations`].
pub async fn show_inbox_operation(
    operations: &InboxOperations,
    letters: &DeadLetters,
    id: OperationId,
) -> Result<Option<OperationDetail>, DbErr> {
    let operation = match operations.get(id).await {
        Err(error) if has_no_inbox(&error) => None,
        operation => operation?,
    };
    let Some(operation) = operation else {
        return Ok(None);
    };
    let named = operations.letters_of(id).await?;
    let count = u64::try_from(named.len()).unwrap_or(u64::MAX);
    let named = DeadLetterSelection::ids(named);
    // In this order: one that is taken up between both counts is counted twice, and not as one that was handled.
    let marked = letters
        .count(&named.clone().status(DeadLetterStatus::Retry))
        .await?;
    let open = letters.count(&named.status(DeadLetterStatus::Open)).await?;
    let gone = count.saturating_sub(marked).saturating_sub(open);
    let now = || became(&operation, gone, marked, open);
    let outcome = match (count, operation.is_finished()) {
        (0, true) => "it has ended".to_owned(),
        (0, false) => "it is running, or broke off".to_owned(),
        (_, true) => now(),
        (_, false) => format!("it is running, or broke off; {}", now()),
    };
    Ok(Some(OperationDetail {
        row: OperationRow::from(&operation),
        named: count,
        names_all: count >= operation.changed,
        published: 0,
        pending: marked,
        dead: open,
        gone,
        errors: Vec::new(),
        errors_unlisted: 0,
        outcome,
        next: match operation.kind {
            OperationKind::RetryLetters if open > 0 => Some("outbox dead-letters list".into()),
            _ => None,
        },
    }))
}

/// What became of dead letters of consumers. One that is being tried is open until that has ended.
fn became(operation: &Operation, gone: u64, marked: u64, open: u64) -> String {
    let why = if operation.kind == OperationKind::RetryLetters && open > 0 {
        ": failed again, being tried, or cancelled"
    } else {
        ""
    };
    format!("{gone} handled or discarded, {marked} to be tried again, {open} open{why}")
}

fn detail(operation: &Operation, named: u64, messages: &[StoredMessage]) -> OperationDetail {
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    for message in messages {
        let group = match message.status {
            MessageStatus::Published => "published",
            MessageStatus::Dead => "dead",
            MessageStatus::Pending | MessageStatus::Waiting | MessageStatus::Logged => "pending",
        };
        *counts.entry(group).or_default() += 1;
    }
    let count = |group: &str| counts.get(group).copied().unwrap_or_default();
    let dead: Vec<StoredMessage> = messages
        .iter()
        .filter(|message| message.status == MessageStatus::Dead)
        .cloned()
        .collect();
    let (errors, errors_unlisted) = errors_of(&dead);
    let mut detail = OperationDetail {
        row: OperationRow::from(operation),
        named,
        names_all: named >= operation.changed,
        published: count("published"),
        pending: count("pending"),
        dead: count("dead"),
        gone: named.saturating_sub(u64::try_from(messages.len()).unwrap_or(u64::MAX)),
        errors,
        errors_unlisted,
        outcome: String::new(),
        next: next(operation, &dead),
    };
    detail.outcome = outcome(operation, &detail);
    detail
}

/// What helps, if the operation broke off or its messages failed again.
fn next(operation: &Operation, dead: &[StoredMessage]) -> Option<Command> {
    if !operation.is_finished() {
        return match operation.kind {
            OperationKind::InitLog | OperationKind::DropLog => Some("outbox status".into()),
            _ => Change::of(operation).map(|change| {
                Command::new(format!("outbox {}", change.command())).option("--operation", operation.id)
            }),
        };
    }
    match (&operation.kind, dead.first()) {
        (OperationKind::Retry | OperationKind::Replay, Some(first)) => {
            Some(Command::from("outbox why").arg(first.id))
        }
        _ => None,
    }
}

fn outcome(operation: &Operation, detail: &OperationDetail) -> String {
    let OperationDetail {
        published,
        pending,
        dead,
        gone,
        named,
        ..
    } = detail;
    let of = if detail.names_all {
        String::new()
    } else {
        format!("of the first {named}: ")
    };
    let state = if operation.is_finished() {
        ""
    } else {
        "it is running, or broke off; "
    };
    match operation.kind {
        OperationKind::Retry | OperationKind::Replay => {
            let again = if operation.kind == OperationKind::Retry {
                "failed again"
            } else {
                "dead letters"
            };
            let gone = match gone {
                0 => String::new(),
                gone => format!(", {gone} not held any more"),
            };
            format!("{state}{of}{published} published, {pending} to be published, {dead} {again}{gone}")
        }
        OperationKind::Skip => format!(
            "{state}{of}{dead} skipped and still dead letters, {} retried since",
            published + pending
        ),
        _ if operation.is_finished() => "it has ended".to_owned(),
        _ => "it is running, or broke off and its end is unknown".to_owned(),
    }
}

/// The criteria of an operation in one line.
fn scope(row: &OperationRow) -> String {
    let criteria = row.scope.as_object().into_iter().flatten();
    let criteria = criteria.map(|(name, value)| match value {
        Value::String(value) => format!("{name}={value}"),
        value => format!("{name}={value}"),
    });
    criteria.collect::<Vec<_>>().join(" ")
}

impl Columns for OperationRow {
    const COLUMNS: &'static [Column<Self>] = &[
        Column::linked(
            "operation",
            |row| row.id.to_string(),
            |row| Some(Command::from("outbox audit show").arg(row.id)),
        ),
        Column::new("began", |row| any(row.started_at.map(utc))),
        Column::new("actor", |row| row.actor.clone()),
        Column::new("kind", |row| row.kind.clone()),
        Column::new("changed", |row| row.changed.to_string()),
        Column::new("finished", |row| yes(row.is_finished)),
        Column::new("reason", |row| any(row.reason.as_ref())),
    ];
}

impl Columns for OperationDetail {
    const COLUMNS: &'static [Column<Self>] = &[
        Column::new("operation", |detail| detail.row.id.to_string()),
        Column::new("kind", |detail| detail.row.kind.clone()),
        Column::new("actor", |detail| detail.row.actor.clone()),
        Column::new("reason", |detail| any(detail.row.reason.as_ref())),
        Column::new("scope", |detail| scope(&detail.row)),
        Column::new("began", |detail| any(detail.row.started_at.map(utc))),
        Column::new("ended", |detail| any(detail.row.finished_at.map(utc))),
        Column::new("changed", |detail| detail.row.changed.to_string()),
        Column::new("named", |detail| detail.named.to_string()),
    ];
}
