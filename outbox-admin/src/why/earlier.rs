//! The events of an aggregate that come before a message.

use std::num::NonZeroU32;

use outbox_core::{EventId, Message, OutboxReader, PublishedSearch, StoreError};
use time::Duration;

/// Earlier events of an aggregate that are looked for.
const EARLIER_MAX: NonZeroU32 = NonZeroU32::new(100).unwrap();

/// Messages of everybody that are read for them: about 0.02 s of a processor of the database.
const LOOKED_AT_MAX: NonZeroU32 = NonZeroU32::new(20_000).unwrap();

/// The published events of a message's aggregate that come before it, with their numbers, at most 100 of them: a consumer that keeps the order keeps the message back behind them. They are
/// looked for among the 20,000 messages of everybody whose ids were made last before the message was recorded, so what was recorded long before it on a busy outbox is not
/// found. None if the message has no number, since nothing comes before it then. Two statements, which change nothing.
///
/// # Errors
///
/// [`StoreError`].
///
/// # Cancellation
///
/// Nothing is left behind.
pub async fn earlier_events(
    store: &impl OutboxReader,
    message: &Message,
) -> Result<Vec<(EventId, u64)>, StoreError> {
    let Some(number) = message.sequence else {
        return Ok(Vec::new());
    };
    // Ids are made by the clocks of writers, so what they made while this message was recorded counts, too.
    let until = message.created_at.checked_add(Duration::seconds(1));
    let search = PublishedSearch {
        aggregate: Some(message.aggregate.clone()),
        from: None,
        until,
        looked_at_max: LOOKED_AT_MAX,
        limit: EARLIER_MAX,
    };
    let found = store.search_published(&search).await?;
    let stored = found.messages.into_iter().map(|found| found.stored);
    let numbered = stored.filter_map(|stored| Some((stored.event_id, stored.sequence?)));
    Ok(numbered.filter(|(_, other)| *other < number).collect())
}
