//! Preview of forgetting aggregates.
//!
//! Invariant: a preview only reads. Stream, inboxes and backups are not covered.

use std::num::NonZeroU32;

use outbox_core::{Aggregate, MessageStatus, OutboxReader, Selection, StoreError};
use serde::Serialize;

const COUNTED_MAX: NonZeroU32 = NonZeroU32::new(10_000).unwrap();

/// What forgetting would do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ForgetPreview {
    /// The aggregates.
    pub aggregates: Vec<ForgetRow>,
    /// Effects, one sentence each.
    pub effects: Vec<String>,
}

/// An aggregate to be forgotten.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ForgetRow {
    /// Aggregate type.
    pub aggregate_type: String,
    /// Aggregate id.
    pub aggregate_id: String,
    /// Last sequence, if any.
    pub last_sequence: Option<u64>,
    /// Messages in the outbox, dead letters included.
    pub messages: u64,
    /// Whether complete: counting stops at 10,000.
    pub is_complete: bool,
    /// Whether skipped: a message is pending, waiting or logged, or halts the aggregate.
    pub is_left: bool,
}

impl ForgetRow {
    /// Whether the outbox has anything of the aggregate.
    pub fn is_known(&self) -> bool {
        self.last_sequence.is_some() || self.messages > 0
    }
}

/// Previews forgetting these aggregates.
///
/// # Errors
///
/// [`StoreError`].
pub async fn preview_forget(
    store: &impl OutboxReader,
    aggregates: &[Aggregate],
) -> Result<ForgetPreview, StoreError> {
    let mut rows = Vec::new();
    for aggregate in aggregates {
        let head = store.head(aggregate).await?;
        let selection = Selection::all().aggregate(aggregate);
        let messages = store.list(&selection, COUNTED_MAX).await?;
        let is_left = messages.iter().any(|message| {
            let is_open = matches!(
                message.status,
                MessageStatus::Pending | MessageStatus::Waiting | MessageStatus::Logged
            );
            message.halts || is_open
        });
        rows.push(ForgetRow {
            aggregate_type: aggregate.aggregate_type.clone(),
            aggregate_id: aggregate.id.clone(),
            last_sequence: head.map(|head| head.last_sequence),
            messages: u64::try_from(messages.len()).unwrap_or(u64::MAX),
            is_complete: messages.len() < COUNTED_MAX.get() as usize,
            is_left,
        });
    }
    let effects = if rows.iter().any(|row| row.is_known() && !row.is_left) {
        effects()
    } else {
        Vec::new()
    };
    Ok(ForgetPreview {
        aggregates: rows,
        effects,
    })
}

fn effects() -> Vec<String> {
    [
        "messages, dead letters, deduplication keys and the last number are deleted; that cannot be undone",
        "if the aggregate records again, its numbers begin at 1: consumers with strategy `sequence` skip them without a word up to the number that they know, so \
         forget only what does not come back, or delete its row of inbox_sequences too",
        "the stream keeps its messages until its max_age, and so do backups",
    ]
    .map(str::to_owned)
    .to_vec()
}
