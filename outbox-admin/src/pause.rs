//! Pauses of publishing, see [`Pause`]. Pauses of consumers are in `outbox-inbox`.
//!
//! Invariant: previews only read.

use std::num::NonZeroU32;
use std::time::Duration;

use outbox_core::{
    Intent, MessageStatus, Operation, OperationId, OperationKind, OperationScope, OutboxAudit, OutboxReader,
    Pause, PauseRequest, Selection, StoreError,
};
use serde::Serialize;
use time::OffsetDateTime;

use crate::next::Command;
use crate::serial;
use crate::table::{Column, Columns};
use crate::words::{any, compact, counted, utc};

const COUNTED_MAX: u32 = 10_000;

/// An active pause.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct PauseRow {
    /// Aggregate type; `None`: all messages.
    pub aggregate_type: Option<String>,
    /// Reason.
    pub reason: String,
    /// Who began the pause.
    pub by: String,
    /// Start time, by the database clock.
    #[serde(serialize_with = "serial::time")]
    pub since: OffsetDateTime,
    /// Time until expiry; `None`: until ended.
    #[serde(rename = "ends_in_seconds", serialize_with = "serial::seconds_if_any")]
    pub ends_in: Option<Duration>,
}

impl PauseRow {
    fn new(pause: Pause) -> Self {
        Self {
            aggregate_type: pause.aggregate_type,
            reason: pause.reason,
            by: pause.by,
            since: pause.since,
            ends_in: pause.ends_in,
        }
    }

    /// Scope of the pause, in words.
    #[must_use]
    pub fn scope(&self) -> String {
        pause_scope(self.aggregate_type.as_deref())
    }

    pub(crate) fn sentence(&self) -> String {
        let ends = match self.ends_in {
            Some(left) => format!("it ends by itself in {} s", left.as_secs()),
            None => "until somebody ends it".to_owned(),
        };
        format!(
            "publishing of {} is paused by {} ({ends}): {}",
            self.scope(),
            self.by,
            self.reason
        )
    }

    pub(crate) fn unpause(&self) -> Command {
        unpause_command(self.aggregate_type.as_deref())
    }

    pub(crate) fn covers(&self, aggregate_type: &str) -> bool {
        self.aggregate_type
            .as_deref()
            .is_none_or(|paused| paused == aggregate_type)
    }
}

/// Scope in words.
#[must_use]
pub fn pause_scope(aggregate_type: Option<&str>) -> String {
    match aggregate_type {
        Some(aggregate_type) => format!("aggregates of type {aggregate_type}"),
        None => "all messages".to_owned(),
    }
}

pub(crate) fn unpause_command(aggregate_type: Option<&str>) -> Command {
    match aggregate_type {
        Some(aggregate_type) => Command::from("outbox resume").option("--aggregate-type", aggregate_type),
        None => "outbox resume".into(),
    }
}

/// Preview of a pause or its end.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct PausePreview {
    /// `pause` or `resume`.
    pub change: &'static str,
    /// Aggregate type; `None`: all messages.
    pub aggregate_type: Option<String>,
    /// Unpublished messages in the scope.
    pub unpublished: u64,
    /// Whether complete: counting stops at 10,000 messages of a type, or 100,000.
    pub is_complete: bool,
    /// Active pause of this scope.
    pub present: Option<PauseRow>,
    /// Effects, one sentence each.
    pub effects: Vec<String>,
}

/// Active pauses, the general one first.
///
/// # Errors
///
/// [`StoreError`].
pub async fn pauses(store: &impl OutboxReader) -> Result<Vec<PauseRow>, StoreError> {
    let pauses = store.pauses().await?;
    Ok(pauses
        .into_iter()
        .filter(Pause::stands)
        .map(PauseRow::new)
        .collect())
}

/// Previews a pause of a type, or of everything.
///
/// # Errors
///
/// [`StoreError`].
pub async fn preview_pause(
    store: &impl OutboxReader,
    aggregate_type: Option<&str>,
    lasts: Option<Duration>,
) -> Result<PausePreview, StoreError> {
    let mut preview = preview(store, "pause", aggregate_type).await?;
    let messages = counted(preview.unpublished, "message waits", "messages wait");
    let bound = if preview.is_complete { "" } else { "at least " };
    let mut effects = vec![
        format!("{bound}{messages} now, and what is recorded from then on"),
        "each relay knows of it after a third of its `lease_ttl` (5 s by default); what it has sent before is finished"
            .to_owned(),
        "order is kept, no attempt is used, and nothing becomes a dead letter".to_owned(),
        match lasts {
            Some(lasts) => format!("it ends by itself after {} s, or with `{}`", lasts.as_secs(), unpause_command(aggregate_type)),
            None => format!("it lasts until `{}`", unpause_command(aggregate_type)),
        },
    ];
    if preview.present.is_some() {
        effects.push("it replaces the pause that stands".to_owned());
    }
    preview.effects = effects;
    Ok(preview)
}

/// Previews the end of a pause.
///
/// # Errors
///
/// [`StoreError`].
pub async fn preview_unpause(
    store: &impl OutboxReader,
    aggregate_type: Option<&str>,
) -> Result<PausePreview, StoreError> {
    let mut preview = preview(store, "resume", aggregate_type).await?;
    if preview.present.is_none() {
        preview.effects = vec![format!(
            "nothing: publishing of {} is not paused",
            pause_scope(aggregate_type)
        )];
        return Ok(preview);
    }
    let messages = counted(preview.unpublished, "message is", "messages are");
    let bound = if preview.is_complete { "" } else { "at least " };
    preview.effects = vec![format!(
        "{bound}{messages} published again, in order, from each relay's next renewal of its leases on"
    )];
    let is_other = |pause: &&PauseRow| pause.aggregate_type.is_some() != aggregate_type.is_some();
    if let Some(other) = pauses(store).await?.iter().find(is_other) {
        preview.effects.push(format!(
            "{} stay paused, until `{}`",
            other.scope(),
            other.unpause()
        ));
    }
    Ok(preview)
}

async fn preview(
    store: &impl OutboxReader,
    change: &'static str,
    aggregate_type: Option<&str>,
) -> Result<PausePreview, StoreError> {
    let present = pauses(store).await?;
    let present = present
        .into_iter()
        .find(|pause| pause.aggregate_type.as_deref() == aggregate_type);
    let (unpublished, bound) = match aggregate_type {
        None => (
            store.backlog().await?.pending,
            outbox_core::store::BACKLOG_COUNT_MAX,
        ),
        Some(aggregate_type) => (of_type(store, aggregate_type).await?, COUNTED_MAX.into()),
    };
    Ok(PausePreview {
        change,
        aggregate_type: aggregate_type.map(str::to_owned),
        unpublished: unpublished.min(bound),
        is_complete: unpublished < bound,
        present,
        effects: Vec::new(),
    })
}

async fn of_type(store: &impl OutboxReader, aggregate_type: &str) -> Result<u64, StoreError> {
    let mut count = 0;
    for status in [MessageStatus::Pending, MessageStatus::Waiting] {
        let selection = Selection::all().aggregate_type(aggregate_type).status(status);
        let limit = NonZeroU32::new(COUNTED_MAX).unwrap_or(NonZeroU32::MIN);
        count += store.list(&selection, limit).await?.len() as u64;
    }
    Ok(count)
}

/// Result of a pause or its end.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct PauseChanged {
    /// `pause` or `resume`.
    pub change: &'static str,
    /// Aggregate type; `None`: all messages.
    pub aggregate_type: Option<String>,
    /// Whether a pause changed. A repeated operation changes nothing.
    pub changed: bool,
    /// The operation; `None` if nothing changed.
    #[serde(serialize_with = "serial::text_if_any")]
    pub operation: Option<OperationId>,
}

/// A new operation for [`apply_pause`], on a type or on everything.
#[must_use]
pub fn pause_operation(aggregate_type: Option<&str>, intent: Intent) -> Operation {
    Operation::new(
        OperationKind::Pause,
        OperationScope::names(aggregate_type),
        intent,
    )
}

/// A new operation for [`apply_unpause`].
#[must_use]
pub fn unpause_operation(aggregate_type: Option<&str>, intent: Intent) -> Operation {
    Operation::new(
        OperationKind::Unpause,
        OperationScope::names(aggregate_type),
        intent,
    )
}

/// Begins or replaces a pause and records the operation, in one transaction. Safe to repeat with
/// the same operation.
///
/// # Errors
///
/// [`StoreError`]. The outcome is unknown: repeat with the same operation.
pub async fn apply_pause(
    store: &impl OutboxAudit,
    request: &PauseRequest,
    operation: &Operation,
) -> Result<PauseChanged, StoreError> {
    let changed = store.pause_as(request, operation).await?;
    Ok(PauseChanged {
        change: "pause",
        aggregate_type: request.aggregate_type.clone(),
        changed,
        operation: changed.then_some(operation.id),
    })
}

/// Ends a pause and records the operation in one transaction, then releases held messages. After
/// a crash in between, relays release them. Safe to repeat.
///
/// # Errors
///
/// [`StoreError`]. The outcome is unknown: repeat with the same operation.
pub async fn apply_unpause(
    store: &impl OutboxAudit,
    aggregate_type: Option<&str>,
    operation: &Operation,
) -> Result<PauseChanged, StoreError> {
    let changed = store.unpause_as(aggregate_type, operation).await?;
    while store.finish_pauses().await? {}
    Ok(PauseChanged {
        change: "resume",
        aggregate_type: aggregate_type.map(str::to_owned),
        changed,
        operation: changed.then_some(operation.id),
    })
}

impl Columns for PauseRow {
    const COLUMNS: &'static [Column<Self>] = &[
        Column::new("scope", Self::scope),
        Column::new("by", |row| row.by.clone()),
        Column::new("since", |row| utc(row.since)),
        Column::new("ends_in", |row| any(row.ends_in.map(compact))),
        Column::new("reason", |row| row.reason.clone()),
    ];
}

#[cfg(test)]
mod tests {
    use outbox_core::OutboxStore as _;
    use outbox_testing::{MemoryStore, Operator as _};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_preview_names_the_other_pause_that_goes_on() {
        let store = MemoryStore::new();
        let request = |aggregate_type: Option<&str>| PauseRequest {
            aggregate_type: aggregate_type.map(str::to_owned),
            reason: "overrun".to_owned(),
            by: "alice".to_owned(),
            lasts: None,
        };
        let nothing = preview_unpause(&store, Some("order")).await.expect("preview");
        assert!(nothing.effects[0].starts_with("nothing: "), "{nothing:?}");
        for aggregate_type in [None, Some("order")] {
            let operation = pause_operation(aggregate_type, Intent::of("alice"));
            for changed in [true, false] {
                let done = apply_pause(&store, &request(aggregate_type), &operation).await;
                let done = done.expect("paused");
                assert_eq!(
                    (done.changed, done.operation),
                    (changed, changed.then_some(operation.id))
                );
            }
        }
        let preview = preview_unpause(&store, Some("order")).await.expect("preview");
        assert!(
            preview.effects[1].contains("all messages stay paused, until `outbox resume`"),
            "{preview:?}"
        );
        assert_eq!(
            store.pauses().await.expect("pauses").len(),
            2,
            "a preview changes nothing"
        );
        let again = preview_pause(&store, None, None).await.expect("preview");
        assert!(
            again.effects.iter().any(|effect| effect.contains("replaces")),
            "{again:?}"
        );
        for changed in [true, false] {
            let operation = unpause_operation(None, Intent::of("alice").because("INC-1"));
            let done = apply_unpause(&store, None, &operation).await.expect("ended");
            assert_eq!(done.changed, changed);
            let written = store.operation(operation.id).await.expect("operation");
            let reason = written.map(|written| written.intent.reason);
            assert_eq!(reason, changed.then(|| Some("INC-1".to_owned())));
        }
        assert_eq!(pauses(&store).await.expect("pauses").len(), 1);
        let covers = |row: &PauseRow, name| row.covers(name);
        let rows = pauses(&store).await.expect("pauses");
        assert!(covers(&rows[0], "order") && !covers(&rows[0], "Order"));
        store.unpause(Some("order")).await.expect("ended");
        assert_eq!(
            pauses(&store).await.expect("pauses"),
            [],
            "one that has ended does not stand"
        );
    }
}
