//! Finds sequences of an aggregate without a row.
//!
//! Recorded sequences have no gaps, so a missing row was deleted; whether its event was published
//! is unknown. For time spans see [`prove`](fn@crate::admin::prove).

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use outbox::core::{
    Aggregate, AggregateHead, OutboxReader, PublishedSearch, Selection, StoreError, StoredMessage,
};
use serde::Serialize;
use time::{Duration, OffsetDateTime};

use crate::admin::of_aggregate::UNPUBLISHED;
use crate::admin::serial;

/// Maximum difference between the clocks of writers.
const CLOCKS_APART: Duration = Duration::HOUR;

const ROWS_MAX: NonZeroU32 = NonZeroU32::new(10_000).unwrap();

const LOOKED_AT_MAX: NonZeroU32 = NonZeroU32::new(200_000).unwrap();
const SEARCHES_MAX: u32 = 5;

pub(crate) const NOT_KNOWN: &str =
    "missing sequences: too many rows were recorded at the time of the aggregate's events";

/// Consecutive missing sequences, after a sequence with a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Hole {
    /// First missing sequence.
    pub first: u64,
    /// Last missing sequence.
    pub last: u64,
    /// When the row before the hole was recorded.
    #[serde(serialize_with = "serial::time")]
    pub recorded_after: OffsetDateTime,
}

impl Hole {
    /// `#2`, or `#2 to #7`.
    pub fn numbers(&self) -> String {
        match self.first == self.last {
            true => format!("#{}", self.first),
            false => format!("#{} to #{}", self.first, self.last),
        }
    }
}

/// `rows` may be incomplete, so each hole is confirmed by a search of its time span. `None`: too
/// many rows in the span.
pub(crate) async fn of_rows(
    store: &impl OutboxReader,
    aggregate: &Aggregate,
    rows: &[StoredMessage],
    head: Option<&AggregateHead>,
) -> Result<Option<Vec<Hole>>, StoreError> {
    let holes = between(rows, head);
    let (Some(first), Some(last)) = (holes.first(), holes.last()) else {
        return Ok(Some(holes));
    };
    let above = rows
        .iter()
        .find(|row| row.sequence.is_some_and(|number| number > last.last));
    let above = above.map(|row| row.created_at);
    let until = above.or(head.map(|head| head.recorded_at));
    let span = (
        first.recorded_after.checked_sub(CLOCKS_APART),
        until.and_then(|until| until.checked_add(CLOCKS_APART)),
    );
    let Some(mut all) = of_span(store, aggregate, span).await? else {
        return Ok(None);
    };
    all.extend_from_slice(rows);
    Ok(Some(between(&all, head)))
}

async fn of_span(
    store: &impl OutboxReader,
    aggregate: &Aggregate,
    (from, until): (Option<OffsetDateTime>, Option<OffsetDateTime>),
) -> Result<Option<Vec<StoredMessage>>, StoreError> {
    // Unpublished rows are read before and after the search: relays may publish meanwhile.
    let Some(mut rows) = unpublished(store, aggregate, (from, until)).await? else {
        return Ok(None);
    };
    let mut end = until;
    for _ in 0..SEARCHES_MAX {
        let search = PublishedSearch {
            aggregate: Some(aggregate.clone()),
            from,
            until: end,
            looked_at_max: LOOKED_AT_MAX,
            limit: ROWS_MAX,
        };
        let found = store.search_published(&search).await?;
        if found.messages.len() >= ROWS_MAX.get() as usize {
            return Ok(None);
        }
        rows.extend(found.messages.into_iter().map(|found| found.stored));
        let Some(looked_from) = found.looked_from else {
            let later = unpublished(store, aggregate, (from, until)).await?;
            return Ok(later.map(|later| {
                rows.extend(later);
                rows
            }));
        };
        let next = looked_from.checked_add(Duration::milliseconds(1));
        if next.is_none() || end.is_some_and(|end| next >= Some(end)) {
            return Ok(None);
        }
        end = next;
    }
    Ok(None)
}

async fn unpublished(
    store: &impl OutboxReader,
    aggregate: &Aggregate,
    (from, until): (Option<OffsetDateTime>, Option<OffsetDateTime>),
) -> Result<Option<Vec<StoredMessage>>, StoreError> {
    let mut rows = Vec::new();
    for status in UNPUBLISHED {
        let mut selection = Selection::all().aggregate(aggregate).status(status);
        (selection.recorded_from, selection.recorded_until) = (from, until);
        let listed = store.list(&selection, ROWS_MAX).await?;
        if listed.len() >= ROWS_MAX.get() as usize {
            return Ok(None);
        }
        rows.extend(listed);
    }
    Ok(Some(rows))
}

fn between(rows: &[StoredMessage], head: Option<&AggregateHead>) -> Vec<Hole> {
    let numbered = rows
        .iter()
        .filter_map(|row| Some((row.sequence?, row.created_at)));
    let numbered: BTreeMap<u64, OffsetDateTime> = numbered.collect();
    let end = head.map(|head| head.last_sequence.saturating_add(1));
    let next = numbered.keys().copied().skip(1).map(Some).chain([end]);
    let gaps = numbered.iter().zip(next).filter_map(|((number, at), next)| {
        let (first, last) = (number.checked_add(1)?, next?.checked_sub(1)?);
        let recorded_after = *at;
        (first <= last).then_some(Hole {
            first,
            last,
            recorded_after,
        })
    });
    gaps.collect()
}
