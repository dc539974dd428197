//! What the end of a back-off would do.
//!
//! Invariant: it reads and changes nothing.

use std::time::Duration;

use outbox_core::{Aggregate, MessageId, OutboxReader, StoreError};
use serde::Serialize;

use crate::recheck::CauseNow;
use crate::relays::dead_letter;
use crate::serial;

/// What `resume` would do to an aggregate.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ResumePreview {
    /// Type of the aggregate.
    pub aggregate_type: String,
    /// Id of the aggregate.
    pub aggregate_id: String,
    /// Whether a block can be ended.
    pub can_resume: bool,
    /// The dead letter that halts the aggregate.
    #[serde(serialize_with = "serial::text_if_any")]
    pub halted_by: Option<MessageId>,
    /// The time until the block would end by itself.
    #[serde(rename = "blocked_for_seconds", serialize_with = "serial::seconds_if_any")]
    pub blocked_for: Option<Duration>,
    /// What it would do, in a sentence.
    pub effect: String,
    /// Whether the cause still holds of which its first message has failed, if [`Self::recheck`] was told.
    pub causes: Vec<CauseNow>,
}

impl ResumePreview {
    /// Adds whether the cause still holds: what [`causes_of_aggregate`](crate::causes_of_aggregate) says.
    pub fn recheck(&mut self, causes: Vec<CauseNow>) {
        self.causes = causes;
    }
}

/// Says what `resume` would do.
///
/// # Errors
///
/// [`StoreError`].
pub async fn preview_resume(
    store: &impl OutboxReader,
    aggregate: &Aggregate,
) -> Result<ResumePreview, StoreError> {
    let block = store.block(aggregate).await?;
    let halting = match block.as_ref().and_then(|block| Some((block, block.halted_by?))) {
        Some((block, row_id)) => dead_letter(store, block, row_id).await?,
        None => None,
    };
    let blocked_for = block.as_ref().and_then(|block| block.blocked_for);
    let effect = match (&halting, blocked_for) {
        (Some(letter), _) => format!(
            "nothing: a dead letter halts it; remove the cause, then `outbox retry {0}`, or `outbox retry --skip {0}`",
            letter.id
        ),
        (None, Some(left)) if !left.is_zero() => format!(
            "its back-off of {} s more ends now, and its messages are tried in order; a delayed message keeps its time",
            left.as_secs()
        ),
        (None, Some(_)) => "nothing: its block has ended, and a relay will find it".to_owned(),
        (None, None) => "nothing: it is not blocked".to_owned(),
    };
    Ok(ResumePreview {
        aggregate_type: aggregate.aggregate_type.clone(),
        aggregate_id: aggregate.id.clone(),
        can_resume: blocked_for.is_some_and(|left| !left.is_zero()),
        halted_by: halting.map(|letter| letter.id),
        blocked_for,
        effect,
        causes: Vec::new(),
    })
}
