//! Converts times to ranges of message ids, because an id begins with its recording time. Ids
//! assigned by another program may not begin with a time.

use outbox_core::{MessageId, Selection};
use sea_orm::{DbErr, Statement};
use time::OffsetDateTime;
use uuid::Uuid;

use super::session::Session;
use crate::sql::Dialect;

/// Maximum clock difference between a writer and this process.
const CLOCKS_APART: time::Duration = time::Duration::DAY;

/// 2024-01-01. No message is older.
const FIRST_MILLIS: u64 = 1_704_067_200_000;

pub(super) fn id_at(time: OffsetDateTime) -> Uuid {
    let millis = time.unix_timestamp_nanos().div_euclid(1_000_000);
    let millis = u64::try_from(millis).unwrap_or_default().min((1 << 48) - 1);
    Uuid::from_u64_pair(millis << 16, 0)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct IdRange {
    pub(super) above: Uuid,
    pub(super) below: Uuid,
}

impl IdRange {
    pub(super) const ALL: Self = Self {
        above: Uuid::nil(),
        below: Uuid::max(),
    };

    pub(super) fn of(from: OffsetDateTime, until: OffsetDateTime) -> Self {
        Self {
            above: id_at(from.saturating_sub(CLOCKS_APART)),
            below: id_at(until.saturating_add(CLOCKS_APART)),
        }
    }

    pub(super) fn after(self, id: Option<MessageId>) -> Self {
        let above = id.map_or(self.above, |id| self.above.max(id.as_uuid()));
        Self { above, ..self }
    }
}

/// One random id in 3,000 looks valid.
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

/// The range, or all ids if another program assigned some ids.
pub(super) async fn range(db: &Session, range: IdRange) -> Result<IdRange, DbErr> {
    Ok(match name_times(db).await? {
        true => range,
        false => IdRange::ALL,
    })
}

pub(super) async fn name_times(db: &Session) -> Result<bool, DbErr> {
    let foreign = has_foreign_ids(&db.dialect, OffsetDateTime::now_utc());
    Ok(db.one(foreign).await?.is_none())
}

/// There is no highest id, because ids of copies are later than their recording time.
pub(super) async fn first(db: &Session, selection: &Selection) -> Result<Option<Uuid>, DbErr> {
    let Some(from) = selection.recorded_from else {
        return Ok(None);
    };
    let ids = range(db, IdRange::of(from, from)).await?;
    Ok(Some(ids.above))
}

pub(super) fn time_of(id: Uuid) -> OffsetDateTime {
    let millis = i128::from(id.as_u64_pair().0 >> 16);
    OffsetDateTime::from_unix_timestamp_nanos(millis * 1_000_000).unwrap_or(OffsetDateTime::UNIX_EPOCH)
}
