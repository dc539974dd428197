//! Finds earlier events of a message's aggregate.

use std::num::NonZeroU32;

use outbox::core::{EventId, Message, OutboxReader, PublishedSearch, StoreError};
use time::Duration;

const EARLIER_MAX: NonZeroU32 = NonZeroU32::new(100).unwrap();

/// Maximum rows searched: about 0.02 s of database CPU.
const LOOKED_AT_MAX: NonZeroU32 = NonZeroU32::new(20_000).unwrap();

/// Published events of the aggregate before a message, at most 100, with sequences. Ordered
/// consumers handle these events first. Searches the 20,000 rows of all aggregates before the
/// message; empty if the message is unsequenced.
///
/// # Errors
///
/// [`StoreError`].
///
/// # Cancellation
///
/// A dropped search leaves nothing behind.
pub async fn earlier_events(
    store: &impl OutboxReader,
    message: &Message,
) -> Result<Vec<(EventId, u64)>, StoreError> {
    let Some(number) = message.sequence else {
        return Ok(Vec::new());
    };
    // Message ids contain the time of the writer's clock, so the search ends one second after the
    // message's time.
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
