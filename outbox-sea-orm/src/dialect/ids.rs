//! Ranges of ids that stand for ranges of time.
//!
//! A message's id is a UUID v7, so its order is roughly that of recording, and the index on ids finds
//! the messages of a time. A writer may pass an id of another version, for example the id of an old
//! table. Such an id says nothing about the time. Invariant: if one exists, no range of ids is used.

use sea_orm::Statement;
use time::OffsetDateTime;
use uuid::Uuid;

use super::Dialect;

/// Largest difference between a writer's clock, which makes the ids, and ours.
const CLOCKS_APART: time::Duration = time::Duration::DAY;

/// 2024-01-01: no message was recorded before.
const FIRST_MILLIS: u64 = 1_704_067_200_000;

/// The smallest message id of a time.
pub(crate) fn id_at(time: OffsetDateTime) -> Uuid {
    let millis = time.unix_timestamp_nanos().div_euclid(1_000_000);
    let millis = u64::try_from(millis).unwrap_or_default().min((1 << 48) - 1);
    Uuid::from_u64_pair(millis << 16, 0)
}

/// The ids between two bounds, both exclusive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct IdRange {
    pub(crate) above: Uuid,
    pub(crate) below: Uuid,
}

impl IdRange {
    /// All ids.
    pub(crate) const ALL: Self = Self {
        above: Uuid::nil(),
        below: Uuid::max(),
    };

    /// The ids of what was recorded in a span of time.
    pub(crate) fn of(from: OffsetDateTime, until: OffsetDateTime) -> Self {
        Self {
            above: id_at(from.saturating_sub(CLOCKS_APART)),
            below: id_at(until.saturating_add(CLOCKS_APART)),
        }
    }
}

impl Dialect {
    /// Whether ids are stored that name no time between 2024 and tomorrow. Of random ids, all but one in
    /// 3,000 name none. Two look-ups in the index on ids.
    pub(crate) fn has_foreign_ids(&self, now: OffsetDateTime) -> Statement {
        let messages = &self.messages;
        let mut sql = self.sql(format!(
            "SELECT {} AS foreign_ids FROM (SELECT 1 AS one) x WHERE EXISTS (SELECT 1 FROM {messages} m WHERE m.id < ",
            self.int("1")
        ));
        sql.bind(Uuid::from_u64_pair(FIRST_MILLIS << 16, 0))
            .push(&format!(") OR EXISTS (SELECT 1 FROM {messages} m WHERE m.id > "))
            .bind(id_at(now.saturating_add(CLOCKS_APART)))
            .push(")");
        sql.statement()
    }
}
