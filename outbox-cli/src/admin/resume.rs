//! Preview of ending an aggregate's back-off.

use outbox::core::{Aggregate, OutboxReader, StoreError};

use crate::admin::plan::Plan;
use crate::admin::relays::dead_letter;

/// Previews the end of a back-off.
///
/// # Errors
///
/// [`StoreError`].
pub async fn preview_resume(store: &impl OutboxReader, aggregate: &Aggregate) -> Result<Plan, StoreError> {
    let block = store.block(aggregate).await?;
    let halting = match block.as_ref().and_then(|block| Some((block, block.halted_by?))) {
        Some((block, row_id)) => dead_letter(store, block, row_id).await?,
        None => None,
    };
    let name = aggregate.to_string();
    let nothing = |why: &str| Plan::nothing("resume", name.clone(), why);
    let blocked_for = block.and_then(|block| block.blocked_for);
    Ok(match (halting, blocked_for) {
        (Some(letter), _) => nothing(&format!(
            "a dead letter halts it; remove the cause, then `outbox retry {0}`, or `outbox retry --skip {0}`",
            letter.id
        )),
        (None, Some(left)) if !left.is_zero() => {
            let effect = format!(
                "its back-off of {} s more ends now, and its messages are published in order; a delayed message keeps its due time",
                left.as_secs()
            );
            Plan::new("resume", name, vec![effect])
        }
        (None, Some(_)) => nothing("its back-off has expired, and a relay will publish it"),
        (None, None) => nothing("it is not blocked"),
    })
}
