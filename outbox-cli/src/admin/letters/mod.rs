//! Consumer dead letters.
//!
//! Invariant: payloads and application headers are masked.

mod change;
mod groups;

use std::collections::BTreeMap;

use outbox::core::sensitive::MASK;
use outbox::core::{EventId, SensitiveFields};
use outbox::inbox::{DeadLetter, DeadLetterStatus, DeadLetters};
use sea_orm::DbErr;
use serde::Serialize;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::admin::messages::lines;
use crate::admin::next::Command;
use crate::admin::serial;
use crate::admin::table::{Column, Columns};
use crate::admin::words::{any, utc};

pub use change::{LetterChange, carry_out_by_key, carry_out_letters};
pub(crate) use groups::without_particulars;
pub use groups::{GroupFingerprint, GroupFingerprintError, LetterGroup, group_letters, read_letters};

/// Row of the dead-letter list. Ids and types are `None` if the stored bytes are no message.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LetterRow {
    /// Dead letter key.
    #[serde(serialize_with = "serial::text")]
    pub id: Uuid,
    /// Consumer that failed.
    pub consumer: String,
    /// `open` or `retry`.
    pub status: &'static str,
    /// Event id.
    #[serde(serialize_with = "serial::text_if_any")]
    pub event_id: Option<EventId>,
    /// Event type; `None` if the bytes are no message.
    pub event_type: Option<String>,
    /// Aggregate type.
    pub aggregate_type: Option<String>,
    /// Aggregate id.
    pub aggregate_id: Option<String>,
    /// Sequence.
    pub sequence: Option<u64>,
    /// Subject.
    pub subject: String,
    /// Stream sequence.
    pub stream_sequence: u64,
    /// Failed attempts; 0 if no handler ran.
    pub attempts: u32,
    /// Last error.
    pub error: String,
    /// Dead-lettering time.
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

/// A dead letter with its content.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LetterDetail {
    /// The list row.
    #[serde(flatten)]
    pub row: LetterRow,
    /// Masked headers.
    pub headers: BTreeMap<String, String>,
    /// Masked payload, if requested.
    pub payload: Option<String>,
}

/// One dead letter, if it exists. `shown`: events with a visible, masked payload.
///
/// # Errors
///
/// `DbErr`.
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

fn aggregate(row: &LetterRow) -> String {
    match (&row.aggregate_type, &row.aggregate_id) {
        (Some(aggregate_type), Some(id)) => format!("{aggregate_type}/{id}"),
        _ => String::new(),
    }
}

fn why_aggregate(row: &LetterRow) -> Option<Command> {
    let name = Some(aggregate(row)).filter(|name| !name.is_empty())?;
    Some(Command::from("outbox why").arg(name))
}

impl Columns for LetterRow {
    const COLUMNS: &'static [Column<Self>] = &[
        Column::linked(
            "id",
            |row| row.id.to_string(),
            |row| Some(Command::from("outbox dead-letters show").arg(row.id)),
        ),
        Column::new("consumer", |row| row.consumer.clone()),
        Column::new("status", |row| row.status.to_owned()),
        Column::linked("aggregate", aggregate, why_aggregate),
        Column::new("type", |row| any(row.event_type.as_ref())),
        Column::new("since", |row| utc(row.dead_lettered_at)),
        Column::new("error", |row| row.error.clone()),
    ];
}

impl Columns for LetterDetail {
    const COLUMNS: &'static [Column<Self>] = &[
        Column::new("id", |detail| detail.row.id.to_string()),
        Column::new("consumer", |detail| detail.row.consumer.clone()),
        Column::new("status", |detail| detail.row.status.to_owned()),
        Column::linked(
            "aggregate",
            |detail| aggregate(&detail.row),
            |detail| why_aggregate(&detail.row),
        ),
        Column::new("sequence", |detail| any(detail.row.sequence)),
        Column::new("type", |detail| any(detail.row.event_type.as_ref())),
        Column::new("since", |detail| utc(detail.row.dead_lettered_at)),
        Column::new("attempts", |detail| detail.row.attempts.to_string()),
        Column::new("error", |detail| detail.row.error.clone()),
        Column::new("event_id", |detail| any(detail.row.event_id)),
        Column::new("subject", |detail| detail.row.subject.clone()),
        Column::new("stream_sequence", |detail| detail.row.stream_sequence.to_string()),
        Column::new("headers", |detail| lines(&detail.headers)),
        Column::new("payload", |detail| any(detail.payload.as_ref())),
    ];
}

impl Columns for LetterGroup {
    const COLUMNS: &'static [Column<Self>] = &[
        Column::linked(
            "fingerprint",
            |group| group.fingerprint.to_string(),
            |group| {
                let list = Command::from("outbox dead-letters list").option("--consumer", &group.consumer);
                Some(list.option("--group", group.fingerprint))
            },
        ),
        Column::new("consumer", |group| group.consumer.clone()),
        Column::new("type", |group| any(group.event_type.as_ref())),
        Column::new("dead_letters", |group| group.dead_letters.to_string()),
        Column::new("first", |group| utc(group.first_at)),
        Column::new("last", |group| utc(group.last_at)),
        Column::new("error", |group| group.error.clone()),
    ];
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn application_headers_are_masked_despite_similar_names() {
        let shown = |name: &str| masked_header(&(name.to_owned(), "secret".to_owned())).1;
        for name in ["traceparent", "Content-Type", "ce-id"] {
            assert_eq!(shown(name), "secret", "{name}");
        }
        for name in ["trace-user", "tracer", "content-typed", "x"] {
            assert_eq!(shown(name), MASK, "{name}");
        }
    }
}
