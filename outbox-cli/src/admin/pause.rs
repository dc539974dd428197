//! Pauses of publishing, see [`Pause`]. Pauses of consumers are in `outbox-inbox`.

use std::num::NonZeroU32;
use std::time::Duration;

use outbox::core::{MessageStatus, OutboxReader, Pause, Selection, StoreError};
use serde::Serialize;
use time::OffsetDateTime;

use crate::admin::next::Command;
use crate::admin::plan::Plan;
use crate::admin::serial;
use crate::admin::table::{Column, Columns};
use crate::admin::words::{any, compact, counted, utc};

const COUNTED_MAX: u32 = 10_000;

/// An active pause.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PauseRow {
    /// Paused aggregate type; `None`: all messages.
    pub aggregate_type: Option<String>,
    /// Reason.
    pub reason: String,
    /// Actor.
    pub by: String,
    /// Start time, by the database clock.
    #[serde(serialize_with = "serial::time")]
    pub since: OffsetDateTime,
    /// Time until the pause expires; `None`: until ended.
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

    /// The paused scope in words.
    pub fn scope(&self) -> String {
        pause_scope(self.aggregate_type.as_deref())
    }

    pub(crate) fn sentence(&self) -> String {
        let ends = match self.ends_in {
            Some(left) => format!("ends in {} s", left.as_secs()),
            None => "until an operator ends it".to_owned(),
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

fn pause_scope(aggregate_type: Option<&str>) -> String {
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

/// Active pauses, first the pause of all messages.
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

/// Previews a pause of an aggregate type, or of all messages.
///
/// # Errors
///
/// [`StoreError`].
pub async fn preview_pause(
    store: &impl OutboxReader,
    aggregate_type: Option<&str>,
    lasts: Option<Duration>,
) -> Result<Plan, StoreError> {
    let (present, unpublished, bound) = read(store, aggregate_type).await?;
    let messages = counted(unpublished, "message waits", "messages wait");
    let end = unpause_command(aggregate_type);
    let mut effects = vec![
        format!("{bound}{messages} now, and all messages recorded later"),
        "each relay stops within a third of its `lease_ttl` (5 s by default), after the messages already sent"
            .to_owned(),
        "order is kept, no attempt is used, and nothing becomes a dead letter".to_owned(),
        match lasts {
            Some(lasts) => format!("it ends after {} s, or with `{end}`", lasts.as_secs()),
            None => format!("it lasts until `{end}`"),
        },
    ];
    if present.is_some() {
        effects.push("it replaces the present pause".to_owned());
    }
    Ok(Plan::new("pause", publishing_of(aggregate_type), effects))
}

/// Previews the end of a pause.
///
/// # Errors
///
/// [`StoreError`].
pub async fn preview_unpause(
    store: &impl OutboxReader,
    aggregate_type: Option<&str>,
) -> Result<Plan, StoreError> {
    let (present, unpublished, bound) = read(store, aggregate_type).await?;
    let subject = publishing_of(aggregate_type);
    if present.is_none() {
        let why = format!("{subject} is not paused");
        return Ok(Plan::nothing("resume", subject, why));
    }
    let messages = counted(unpublished, "message is", "messages are");
    let mut effects = vec![format!(
        "{bound}{messages} published again, in order, from each relay's next lease renewal on"
    )];
    let is_other = |pause: &&PauseRow| pause.aggregate_type.is_some() != aggregate_type.is_some();
    if let Some(other) = pauses(store).await?.iter().find(is_other) {
        effects.push(format!(
            "{} stay paused, until `{}`",
            other.scope(),
            other.unpause()
        ));
    }
    Ok(Plan::new("resume", subject, effects))
}

/// Text for the publishing that a pause of `aggregate_type` stops.
pub fn publishing_of(aggregate_type: Option<&str>) -> String {
    format!("publishing of {}", pause_scope(aggregate_type))
}

/// The scope's pause, the scope's number of unpublished messages, and `at least ` if the count
/// stopped early.
async fn read(
    store: &impl OutboxReader,
    aggregate_type: Option<&str>,
) -> Result<(Option<PauseRow>, u64, &'static str), StoreError> {
    let present = pauses(store).await?;
    let present = present
        .into_iter()
        .find(|pause| pause.aggregate_type.as_deref() == aggregate_type);
    let (unpublished, bound) = match aggregate_type {
        None => (
            store.backlog().await?.pending,
            outbox::core::store::BACKLOG_COUNT_MAX,
        ),
        Some(aggregate_type) => (of_type(store, aggregate_type).await?, COUNTED_MAX.into()),
    };
    let is_complete = unpublished < bound;
    Ok((
        present,
        unpublished.min(bound),
        if is_complete { "" } else { "at least " },
    ))
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
    use outbox::core::PauseRequest;
    use outbox_testing::{MemoryStore, Operator as _};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn preview_reports_the_remaining_pause() {
        let store = MemoryStore::new();
        let nothing = preview_unpause(&store, Some("order")).await.expect("preview");
        assert!(!nothing.is_possible, "{nothing:?}");
        for aggregate_type in [None, Some("order")] {
            let request = PauseRequest {
                aggregate_type: aggregate_type.map(str::to_owned),
                reason: "overrun".to_owned(),
                by: "alice".to_owned(),
                lasts: None,
            };
            store.pause(&request).await.expect("paused");
        }
        let plan = preview_unpause(&store, Some("order")).await.expect("preview");
        assert!(
            plan.effects[1].contains("all messages stay paused, until `outbox resume`"),
            "{plan:?}"
        );
        let again = preview_pause(&store, None, None).await.expect("preview");
        assert!(again.effects[4].contains("replaces"), "{again:?}");
        store.unpause(None).await.expect("ended");
        let rows = pauses(&store).await.expect("pauses");
        assert!(rows.len() == 1 && rows[0].covers("order") && !rows[0].covers("Order"));
    }
}
