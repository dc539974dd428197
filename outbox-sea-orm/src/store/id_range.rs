//! The ids of a time: a message id begins with the time at which the message was recorded, unless another program assigned the id.

use outbox_core::{MessageId, Selection};
use sea_orm::{DbErr, Statement};
use time::OffsetDateTime;
use uuid::Uuid;

use super::session::Session;
use crate::sql::Dialect;

/// Largest difference between a writer's clock, which makes the ids, and ours.
const CLOCKS_APART: time::Duration = time::Duration::DAY;

/// 2024-01-01: no message was recorded before.
const FIRST_MILLIS: u64 = 1_704_067_200_000;

/// The smallest message id of a time.
pub(super) fn id_at(time: OffsetDateTime) -> Uuid {
    let millis = time.unix_timestamp_nanos().div_euclid(1_000_000);
    let millis = u64::try_from(millis).unwrap_or_default().min((1 << 48) - 1);
    Uuid::from_u64_pair(millis << 16, 0)
}

/// The ids between two bounds, both exclusive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct IdRange {
    pub(super) above: Uuid,
    pub(super) below: Uuid,
}

impl IdRange {
    /// All ids.
    pub(super) const ALL: Self = Self {
        above: Uuid::nil(),
        below: Uuid::max(),
    };

    /// The ids of what was recorded in a span of time.
    pub(super) fn of(from: OffsetDateTime, until: OffsetDateTime) -> Self {
        Self {
            above: id_at(from.saturating_sub(CLOCKS_APART)),
            below: id_at(until.saturating_add(CLOCKS_APART)),
        }
    }

    /// The ids of the range behind an id.
    pub(super) fn after(self, id: Option<MessageId>) -> Self {
        let above = id.map_or(self.above, |id| self.above.max(id.as_uuid()));
        Self { above, ..self }
    }
}

/// Whether ids are stored that name no time between 2024 and tomorrow. Of random ids, all but one in
/// 3,000 name none. Two look-ups in the index on ids.
pub(super) fn has_foreign_ids(dialect: &Dialect, now: OffsetDateTime) -> Statement {
    let messages = &dialect.messages;
    let text = format!(
        "SELECT {} AS foreign_ids FROM (SELECT 1 AS one) x WHERE EXISTS (SELECT 1 FROM {messages} m WHERE m.id < ?) \
         OR EXISTS (SELECT 1 FROM {messages} m WHERE m.id > ?)",
        dialect.int("1")
    );
    let first = Uuid::from_u64_pair(FIRST_MILLIS << 16, 0);
    dialect.statement(
        &text,
        [first.into(), id_at(now.saturating_add(CLOCKS_APART)).into()],
    )
}

/// The range, or all ids if some were given by another program.
pub(super) async fn range(db: &Session, range: IdRange) -> Result<IdRange, DbErr> {
    Ok(match name_times(db).await? {
        true => range,
        false => IdRange::ALL,
    })
}

/// Whether no id was given by another program.
pub(super) async fn name_times(db: &Session) -> Result<bool, DbErr> {
    let foreign = has_foreign_ids(&db.dialect, OffsetDateTime::now_utc());
    Ok(db.one(foreign).await?.is_none())
}

/// The first id of a selection by the time of recording; `None` for other selections. Copies have
/// later ids than their time of recording, so there is no last id.
pub(super) async fn first(db: &Session, selection: &Selection) -> Result<Option<Uuid>, DbErr> {
    let Some(from) = selection.recorded_from else {
        return Ok(None);
    };
    let ids = range(db, IdRange::of(from, from)).await?;
    Ok(Some(ids.above))
}

/// The time at which an id was made, in milliseconds. 48 bits of them end within the years that the type has.
pub(super) fn time_of(id: Uuid) -> OffsetDateTime {
    let millis = i128::from(id.as_u64_pair().0 >> 16);
    OffsetDateTime::from_unix_timestamp_nanos(millis * 1_000_000).unwrap_or(OffsetDateTime::UNIX_EPOCH)
}
