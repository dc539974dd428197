//! Reads one aggregate's messages with bounded cost.
//!
//! Unpublished messages have small indexes. Published messages are only indexed by id, which rises
//! with time. The search reads a bounded number of published rows before the aggregate's last
//! recording. It also reads the newest rows, to find replayed copies. Invariant: time spans not
//! searched are reported.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use outbox::core::{
    Aggregate, AggregateHead, MessageStatus, OutboxReader, PublishedSearch, Selection, StoreError,
    StoredMessage,
};
use time::{Duration, OffsetDateTime};

use crate::admin::serial::rfc3339;

/// Maximum rows of all aggregates per search: about 0.2 s of database CPU.
const LOOKED_AT_MAX: NonZeroU32 = NonZeroU32::new(200_000).unwrap();

const FOUND_MAX: NonZeroU32 = NonZeroU32::new(1_000).unwrap();

const CLOCKS_APART: Duration = Duration::minutes(5);

pub(crate) const UNPUBLISHED_MAX: NonZeroU32 = NonZeroU32::new(1_000).unwrap();

pub(crate) const UNPUBLISHED: [MessageStatus; 3] = [
    MessageStatus::Pending,
    MessageStatus::Waiting,
    MessageStatus::Dead,
];

pub(crate) struct OfAggregate {
    pub(crate) messages: Vec<StoredMessage>,
    pub(crate) has_more: bool,
    pub(crate) unseen: Vec<String>,
}

pub(crate) async fn of_aggregate(
    store: &impl OutboxReader,
    aggregate: &Aggregate,
    head: Option<&AggregateHead>,
    selection: &Selection,
    limit: NonZeroU32,
) -> Result<OfAggregate, StoreError> {
    let selection = selection.clone().aggregate(aggregate);
    let is_asked = |status: MessageStatus| selection.status.is_none_or(|asked| asked == status);
    let mut found = BTreeMap::new();
    for status in UNPUBLISHED.into_iter().filter(|status| is_asked(*status)) {
        let of_status = selection.clone().status(status);
        let listed = store.list(&of_status, limit.saturating_add(1)).await?;
        found.extend(listed.into_iter().map(|message| (message.row_id, message)));
    }
    let mut unseen = Vec::new();
    // Published rows are read after unpublished rows, so a message published in between replaces
    // its unpublished version.
    if is_asked(MessageStatus::Published) || is_asked(MessageStatus::Logged) {
        let mut searched = Vec::new();
        for (from, until) in spans(head, selection.recorded_from) {
            let search = PublishedSearch {
                aggregate: Some(aggregate.clone()),
                from,
                until,
                looked_at_max: LOOKED_AT_MAX,
                limit: FOUND_MAX,
            };
            let answer = store.search_published(&search).await?;
            if answer.messages.len() == FOUND_MAX.get() as usize {
                unseen.push(format!(
                    "published events before the last {FOUND_MAX}; `outbox list --aggregate` reads all"
                ));
            }
            searched.extend(answer.messages);
            if let Some(looked_from) = answer.looked_from {
                unseen.push(not_looked_through(looked_from, from));
            }
        }
        let searched = searched.into_iter().map(|found| found.stored);
        let matching = searched.filter(|stored| matches(&selection, stored));
        found.extend(matching.map(|stored| (stored.row_id, stored)));
    }
    let most = usize::try_from(limit.get()).unwrap_or(usize::MAX);
    let has_more = found.len() > most;
    Ok(OfAggregate {
        messages: found.into_values().take(most).collect(),
        has_more,
        unseen,
    })
}

fn spans(
    head: Option<&AggregateHead>,
    recorded_from: Option<OffsetDateTime>,
) -> Vec<(Option<OffsetDateTime>, Option<OffsetDateTime>)> {
    let from = recorded_from.and_then(|from| from.checked_sub(CLOCKS_APART));
    let last = head.and_then(|head| head.recorded_at.checked_add(CLOCKS_APART));
    match last {
        Some(last) => vec![(from, Some(last)), (from.max(Some(last)), None)],
        None => vec![(from, None)],
    }
}

fn not_looked_through(looked_from: OffsetDateTime, from: Option<OffsetDateTime>) -> String {
    let since = from.map(|from| format!(" since {}", rfc3339(from)));
    format!(
        "published events that were recorded{} before {}: the outbox holds more than {LOOKED_AT_MAX} later messages; `outbox list --aggregate` reads all",
        since.unwrap_or_default(),
        rfc3339(looked_from)
    )
}

fn matches(selection: &Selection, stored: &StoredMessage) -> bool {
    let is = |asked: &Option<String>, value: &str| asked.as_deref().is_none_or(|asked| asked == value);
    selection.id.is_none_or(|id| id == stored.id)
        && selection.status.is_none_or(|status| status == stored.status)
        && is(&selection.event_type, &stored.event_type)
        && selection
            .recorded_from
            .is_none_or(|from| stored.created_at >= from)
        && selection
            .recorded_until
            .is_none_or(|until| stored.created_at < until)
        && selection.after.is_none_or(|after| stored.row_id > after)
}

pub(crate) async fn unpublished(
    store: &impl OutboxReader,
    aggregate: &Aggregate,
) -> Result<Vec<StoredMessage>, StoreError> {
    let mut messages = Vec::new();
    for status in [MessageStatus::Waiting, MessageStatus::Pending] {
        let selection = Selection::all().aggregate(aggregate).status(status);
        messages.extend(store.list(&selection, UNPUBLISHED_MAX).await?);
    }
    messages.sort_by_key(|message| message.row_id);
    messages.truncate(UNPUBLISHED_MAX.get() as usize);
    Ok(messages)
}
