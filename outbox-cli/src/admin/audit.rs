//! Reads recorded operations and the state of their messages.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use outbox::core::{
    MessageStatus, Operation, OperationFilter, OperationId, OperationKind, OutboxAudit, StoreError,
    StoredMessage,
};
use outbox::inbox::{DatabaseAnswer, DeadLetterSelection, DeadLetterStatus, DeadLetters, InboxOperations};
use sea_orm::DbErr;
use serde::Serialize;
use serde_json::Value;
use time::OffsetDateTime;

use crate::admin::change::{Change, ErrorCount, errors_of};
use crate::admin::next::Command;
use crate::admin::serial;
use crate::admin::table::{Column, Columns};
use crate::admin::words::{any, utc, yes};

/// Operation list row.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OperationRow {
    /// Operation id.
    #[serde(serialize_with = "serial::text")]
    pub id: OperationId,
    /// Kind of operation, such as `retry`, `pause` or an inbox kind.
    pub kind: String,
    /// Whether the operation is finished, not running or interrupted.
    pub is_finished: bool,
    /// Actor.
    pub actor: String,
    /// Reason.
    pub reason: Option<String>,
    /// Selection criteria by name. Empty: everything.
    pub scope: Value,
    /// Number of changed objects.
    pub changed: u64,
    /// Start time, by the database clock.
    #[serde(serialize_with = "serial::time_if_any")]
    pub started_at: Option<OffsetDateTime>,
    /// End time.
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
            scope: serde_json::from_str(&operation.scope.to_json()).unwrap_or(Value::Null),
            changed: operation.changed,
            started_at: operation.started_at,
            finished_at: operation.finished_at,
        }
    }
}

/// An operation with its messages.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OperationDetail {
    /// The list row.
    #[serde(flatten)]
    pub row: OperationRow,
    /// Recorded message ids, at most the first 1,000. The counts `published`, `pending`, `dead` and
    /// `gone` cover these ids.
    pub named: u64,
    /// Whether all ids were recorded.
    pub names_all: bool,
    /// Messages published and still in the outbox.
    pub published: u64,
    /// Outbox: pending, waiting or logged messages. Inbox: dead letters marked for retry.
    pub pending: u64,
    /// Outbox: dead letters that failed again or were skipped. Inbox: dead letters that are open,
    /// being retried or cancelled.
    pub dead: u64,
    /// Outbox: messages deleted after publishing, or forgotten. Inbox: dead letters handled or
    /// discarded.
    pub gone: u64,
    /// Most frequent errors.
    pub errors: Vec<ErrorCount>,
    /// Errors not in `errors`.
    pub errors_unlisted: u64,
    /// Outcome sentence.
    pub outcome: String,
    /// Next command.
    pub next: Option<Command>,
}

/// At most `limit` operations, newest first.
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

/// One operation; `None` if unknown. Reads at most 1,000 of its messages by id.
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

/// At most `limit` operations on consumers and dead letters, newest first; none without inbox
/// tables.
///
/// # Errors
///
/// `DbErr`.
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

/// One operation on consumers or dead letters; `None` if unknown.
///
/// # Errors
///
/// As for [`list_inbox_operations`].
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
    // Marked letters are read before open letters: a letter that changes in between is counted
    // twice, never as handled.
    let marked = letters
        .count(&named.clone().status(DeadLetterStatus::Retry))
        .await?;
    let open = letters.count(&named.status(DeadLetterStatus::Open)).await?;
    let gone = count.saturating_sub(marked).saturating_sub(open);
    let now = || became(&operation, gone, marked, open);
    let outcome = match (count, operation.is_finished()) {
        (0, true) => "finished".to_owned(),
        (0, false) => "running or interrupted".to_owned(),
        (_, true) => now(),
        (_, false) => format!("running or interrupted; {}", now()),
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

fn became(operation: &Operation, gone: u64, marked: u64, open: u64) -> String {
    let why = if operation.kind == OperationKind::RetryLetters && open > 0 {
        ": failed again, being retried, or cancelled"
    } else {
        ""
    };
    format!("{gone} handled or discarded, {marked} to be retried, {open} open{why}")
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
        "running or interrupted; "
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
                gone => format!(", {gone} no longer stored"),
            };
            format!("{state}{of}{published} published, {pending} pending, {dead} {again}{gone}")
        }
        OperationKind::Skip => format!(
            "{state}{of}{dead} skipped and still dead letters, {} retried since",
            published + pending
        ),
        _ if operation.is_finished() => "finished".to_owned(),
        _ => "running or interrupted; its result is unknown".to_owned(),
    }
}

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
