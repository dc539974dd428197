//! Preview of forgetting aggregates.
//!
//! Forgetting does not cover stream, inboxes and backups.

use std::num::NonZeroU32;

use outbox::core::{Aggregate, MessageStatus, OutboxReader, Selection, StoreError, StoredMessage};

use crate::admin::plan::Plan;
use crate::admin::words::{count, counted};

const COUNTED_MAX: NonZeroU32 = NonZeroU32::new(10_000).unwrap();

const EFFECTS: [&str; 3] = [
    "messages, dead letters, deduplication keys and the last sequence are deleted; this cannot be undone",
    "if the aggregate records again, its sequences start at 1: consumers with strategy `sequence` skip them silently up to their position, so \
     forget only finished aggregates, or delete the row of inbox_sequences too",
    "the stream keeps its messages until max_age; backups keep them too",
];

/// Previews forgetting these aggregates, with the number of messages that would be deleted.
///
/// # Errors
///
/// [`StoreError`].
pub async fn preview_forget(
    store: &impl OutboxReader,
    aggregates: &[Aggregate],
) -> Result<(Plan, u64), StoreError> {
    let (mut effects, mut deleted, mut is_known) = (Vec::new(), None, false);
    for aggregate in aggregates {
        let head = store.head(aggregate).await?;
        let messages = store
            .list(&Selection::all().aggregate(aggregate), COUNTED_MAX)
            .await?;
        let bound = match messages.len() < COUNTED_MAX.get() as usize {
            true => "",
            false => "at least ",
        };
        let held = counted(count(messages.len()), "message", "messages");
        if messages.iter().any(is_open) {
            effects.push(format!(
                "{aggregate} is unchanged: of its {bound}{held}, one is pending, deferred, halting or logged (see `outbox relay log drop`)"
            ));
        } else if head.is_none() && messages.is_empty() {
            effects.push(format!("{aggregate}: the outbox has no data of it"));
            continue;
        } else {
            effects.push(format!("{aggregate}: {bound}{held}"));
            *deleted.get_or_insert_default() += count(messages.len());
        }
        is_known = true;
    }
    if deleted.is_some() {
        effects.extend(EFFECTS.map(str::to_owned));
    }
    let subject = counted(count(aggregates.len()), "aggregate", "aggregates");
    let mut plan = Plan::new("purge", subject, effects);
    plan.is_possible = is_known;
    Ok((plan, deleted.unwrap_or_default()))
}

fn is_open(message: &StoredMessage) -> bool {
    let is_open = matches!(
        message.status,
        MessageStatus::Pending | MessageStatus::Waiting | MessageStatus::Logged
    );
    message.halts || is_open
}
