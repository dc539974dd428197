//! Messages for lists and details.
//!
//! Invariant: payloads and application headers are masked.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::time::Duration;

use outbox::core::headers::{CAUSATION_ID, CORRELATION_ID, TRACEPARENT, TRACESTATE};
use outbox::core::sensitive::MASK;
use outbox::core::{
    EventId, FoundMessage, Headers, MaskedPayload, Message, MessageId, MessageStatus, OutboxReader, PageFrom,
    Selection, SensitiveFields, StoreError, StoredMessage,
};
use serde::Serialize;
use time::OffsetDateTime;

use crate::admin::next::Command;
use crate::admin::serial;
use crate::admin::table::{Column, Columns};
use crate::admin::words::{any, compact, utc};

/// Message list row.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MessageRow {
    /// Message id.
    #[serde(serialize_with = "serial::text")]
    pub id: MessageId,
    /// Event id. A replayed copy has another message id.
    #[serde(serialize_with = "serial::text")]
    pub event_id: EventId,
    /// Row id, used for paging.
    pub row_id: i64,
    /// Status.
    #[serde(serialize_with = "serial::status")]
    pub status: MessageStatus,
    /// Aggregate type.
    pub aggregate_type: String,
    /// Aggregate id.
    pub aggregate_id: String,
    /// Sequence; `None` if unsequenced.
    pub sequence: Option<u64>,
    /// Event type.
    pub event_type: String,
    /// The message's used attempts.
    pub attempts: u32,
    /// Number of all failures.
    pub failures: u32,
    /// Whether the message halts its aggregate.
    pub halts: bool,
    /// Last error.
    pub error: Option<String>,
    /// Recording time.
    #[serde(serialize_with = "serial::time")]
    pub recorded_at: OffsetDateTime,
    /// Publishing time.
    #[serde(serialize_with = "serial::time_if_any")]
    pub published_at: Option<OffsetDateTime>,
}

impl From<StoredMessage> for MessageRow {
    fn from(stored: StoredMessage) -> Self {
        Self {
            id: stored.id,
            event_id: stored.event_id,
            row_id: stored.row_id,
            status: stored.status,
            aggregate_type: stored.aggregate.aggregate_type,
            aggregate_id: stored.aggregate.id,
            sequence: stored.sequence,
            event_type: stored.event_type,
            attempts: stored.attempts,
            failures: stored.failures,
            halts: stored.halts,
            error: stored.error,
            recorded_at: stored.created_at,
            published_at: stored.published_at,
        }
    }
}

/// A message with its content.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MessageDetail {
    /// The list row.
    #[serde(flatten)]
    pub row: MessageRow,
    /// Partition.
    pub partition: u16,
    /// Remaining delay of the message.
    #[serde(rename = "delayed_for_seconds", serialize_with = "serial::seconds_if_any")]
    pub delayed_for: Option<Duration>,
    /// Message content, unless the row is damaged.
    pub content: Option<PayloadView>,
    /// Decoding error of a damaged row.
    pub damage: Option<String>,
}

/// Message content.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PayloadView {
    /// Schema version.
    pub event_version: u32,
    /// Fixed subject.
    pub subject: Option<String>,
    /// Content type.
    pub content_type: String,
    /// Payload size in bytes.
    pub payload_bytes: usize,
    /// Masked headers.
    pub headers: BTreeMap<String, String>,
    /// Masked payload, if requested.
    pub payload: Option<String>,
}

impl PayloadView {
    fn new(message: &Message, shown: Option<&SensitiveFields>) -> Self {
        let masked = shown.map(|fields| fields.mask_message(message));
        Self {
            event_version: message.event_version,
            subject: message.subject.clone(),
            content_type: message.content_type.clone(),
            payload_bytes: message.payload.len(),
            headers: masked_headers(&message.headers),
            payload: masked.as_ref().map(MaskedPayload::to_string),
        }
    }
}

fn masked_headers(headers: &Headers) -> BTreeMap<String, String> {
    let is_own = |name: &str| [CAUSATION_ID, CORRELATION_ID, TRACEPARENT, TRACESTATE].contains(&name);
    headers
        .iter()
        .map(|(name, value)| {
            let shown = if is_own(name) { value } else { MASK };
            (name.to_owned(), shown.to_owned())
        })
        .collect()
}

/// A page of messages, see [`PageFrom`](outbox::core::PageFrom).
///
/// # Errors
///
/// [`StoreError`].
pub async fn page(
    store: &impl OutboxReader,
    selection: &Selection,
    from: PageFrom,
    limit: NonZeroU32,
) -> Result<Vec<MessageRow>, StoreError> {
    let rows = store.page(selection, from, limit).await?;
    Ok(rows.into_iter().map(MessageRow::from).collect())
}

/// One message, if it exists. `shown`: events with a visible, masked payload.
///
/// # Errors
///
/// [`StoreError`].
pub async fn show(
    store: &impl OutboxReader,
    id: MessageId,
    shown: Option<&SensitiveFields>,
) -> Result<Option<MessageDetail>, StoreError> {
    let found = store.find(id).await?;
    Ok(found.map(|found| detail(found, shown)))
}

fn detail(found: FoundMessage, shown: Option<&SensitiveFields>) -> MessageDetail {
    let content = found.message.as_ref().ok();
    MessageDetail {
        partition: found.stored.aggregate.partition(),
        delayed_for: found.delayed_for,
        content: content.map(|message| PayloadView::new(message, shown)),
        damage: found.message.err().map(|fault| fault.to_string()),
        row: MessageRow::from(found.stored),
    }
}

fn status(row: &MessageRow) -> String {
    let halts = if row.halts { ", halts" } else { "" };
    format!("{}{halts}", row.status.as_str())
}

fn aggregate(row: &MessageRow) -> String {
    format!("{}/{}", row.aggregate_type, row.aggregate_id)
}

fn why_aggregate(row: &MessageRow) -> Option<Command> {
    Some(Command::from("outbox why").arg(aggregate(row)))
}

impl Columns for MessageRow {
    const COLUMNS: &'static [Column<Self>] = &[
        Column::linked(
            "id",
            |row| row.id.to_string(),
            |row| Some(Command::from("outbox show").arg(row.id)),
        ),
        Column::new("status", status),
        Column::linked("aggregate", aggregate, why_aggregate),
        Column::new("sequence", |row| any(row.sequence)),
        Column::new("type", |row| row.event_type.clone()),
        Column::new("recorded", |row| utc(row.recorded_at)),
        Column::new("error", |row| row.error.clone().unwrap_or_default()),
    ];
}

impl Columns for MessageDetail {
    const COLUMNS: &'static [Column<Self>] = &[
        Column::new("id", |detail| detail.row.id.to_string()),
        Column::new("status", |detail| status(&detail.row)),
        Column::linked(
            "aggregate",
            |detail| aggregate(&detail.row),
            |detail| why_aggregate(&detail.row),
        ),
        Column::new("sequence", |detail| any(detail.row.sequence)),
        Column::new("type", |detail| detail.row.event_type.clone()),
        Column::new("version", |detail| {
            of_content(detail, |content| content.event_version)
        }),
        Column::new("partition", |detail| detail.partition.to_string()),
        Column::new("recorded", |detail| utc(detail.row.recorded_at)),
        Column::new("published", |detail| any(detail.row.published_at.map(utc))),
        Column::new("delayed_for", |detail| any(detail.delayed_for.map(compact))),
        Column::new("attempts", |detail| detail.row.attempts.to_string()),
        Column::new("failures", |detail| detail.row.failures.to_string()),
        Column::new("error", |detail| detail.row.error.clone().unwrap_or_default()),
        Column::new("damage", |detail| detail.damage.clone().unwrap_or_default()),
        Column::new("event_id", |detail| detail.row.event_id.to_string()),
        Column::new("row_id", |detail| detail.row.row_id.to_string()),
        Column::new("subject", |detail| {
            of_content(detail, |content| any(content.subject.as_ref()))
        }),
        Column::new("content_type", |detail| {
            of_content(detail, |content| content.content_type.clone())
        }),
        Column::new("bytes", |detail| {
            of_content(detail, |content| content.payload_bytes)
        }),
        Column::new("headers", |detail| {
            of_content(detail, |content| lines(&content.headers))
        }),
        Column::new("payload", |detail| {
            of_content(detail, |content| any(content.payload.as_ref()))
        }),
    ];
}

fn of_content<T: ToString>(detail: &MessageDetail, text: impl Fn(&PayloadView) -> T) -> String {
    any(detail.content.as_ref().map(|content| text(content).to_string()))
}

pub(crate) fn lines(headers: &BTreeMap<String, String>) -> String {
    let headers = headers.iter().map(|(name, value)| format!("{name}: {value}"));
    headers.collect::<Vec<_>>().join("; ")
}
