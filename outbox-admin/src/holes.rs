//! Numbers of an aggregate without a row.
//!
//! The outbox gives numbers without holes, so a missing row was deleted: after `retention`, by `outbox purge`, or by hand. Whether its event was published before is
//! not known. Not here: holes of a span, see [`prove`](fn@crate::prove).

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use outbox_core::{Aggregate, AggregateHead, OutboxReader, Selection, StoreError, StoredMessage};
use serde::Serialize;
use time::{Duration, OffsetDateTime};

use crate::serial;

/// How far the clocks of writers may differ.
const CLOCKS_APART: Duration = Duration::HOUR;

/// Rows of an aggregate that are read to confirm its holes.
const ROWS_MAX: NonZeroU32 = NonZeroU32::new(10_000).unwrap();

/// Consecutive numbers of an aggregate without a row, behind a number with a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Hole {
    /// The first number without a row.
    pub first: u64,
    /// The last number without a row.
    pub last: u64,
    /// When the row before the hole was recorded. The missing events were recorded later.
    #[serde(serialize_with = "serial::time")]
    pub recorded_after: OffsetDateTime,
}

impl Hole {
    /// `#2`, or `#2 to #7`.
    #[must_use]
    pub fn numbers(&self) -> String {
        match self.first == self.last {
            true => format!("#{}", self.first),
            false => format!("#{} to #{}", self.first, self.last),
        }
    }
}

/// The holes between rows of an aggregate, and behind the last one. `rows` may be incomplete: each hole is confirmed by the rows of its time. None are returned for
/// an aggregate with more rows since then than are read.
pub(crate) async fn of_rows(
    store: &impl OutboxReader,
    aggregate: &Aggregate,
    rows: &[StoredMessage],
    head: Option<&AggregateHead>,
) -> Result<Vec<Hole>, StoreError> {
    let Some(first) = between(rows, head).first().copied() else {
        return Ok(Vec::new());
    };
    let since = first.recorded_after.checked_sub(CLOCKS_APART);
    let mut selection = Selection::all().aggregate(aggregate);
    selection.recorded_from = since;
    let mut all = store.list(&selection, ROWS_MAX).await?;
    if all.len() >= ROWS_MAX.get() as usize {
        return Ok(Vec::new());
    }
    all.extend_from_slice(rows);
    Ok(between(&all, head))
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
