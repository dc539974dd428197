//! Preview of ending a back-off.
//!
//! Invariant: reads only.

use std::time::Duration;

use outbox_core::{Aggregate, MessageId, OutboxReader, StoreError};
use serde::Serialize;

use crate::recheck::CauseNow;
use crate::relays::dead_letter;
use crate::serial;

/// Preview of `resume`.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ResumePreview {
    /// Aggregate type.
    pub aggregate_type: String,
    /// Aggregate id.
    pub aggregate_id: String,
    /// Whether a back-off can be ended.
    pub can_resume: bool,
    /// Halting dead letter.
    #[serde(serialize_with = "serial::text_if_any")]
    pub halted_by: Option<MessageId>,
    /// Time until the back-off ends.
    #[serde(rename = "blocked_for_seconds", serialize_with = "serial::seconds_if_any")]
    pub blocked_for: Option<Duration>,
    /// Effect, one sentence.
    pub effect: String,
    /// State of the cause, from [`Self::recheck`].
    pub causes: Vec<CauseNow>,
}

impl ResumePreview {
    /// Stores the result of [`causes_of_aggregate`](crate::causes_of_aggregate).
    pub fn recheck(&mut self, causes: Vec<CauseNow>) {
        self.causes = causes;
    }
}

/// Previews `resume`.
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
