//! Narrows a reading to the ids of a time, if the ids name times.

use outbox_core::Selection;
use sea_orm::DbErr;
use time::OffsetDateTime;
use uuid::Uuid;

use super::session::Session;
use crate::dialect::Dialect;
use crate::dialect::ids::IdRange;

/// The range, or all ids if some were given by another program.
pub(super) async fn range(db: &Session, dialect: &Dialect, range: IdRange) -> Result<IdRange, DbErr> {
    Ok(match name_times(db, dialect).await? {
        true => range,
        false => IdRange::ALL,
    })
}

/// Whether no id was given by another program.
pub(super) async fn name_times(db: &Session, dialect: &Dialect) -> Result<bool, DbErr> {
    let foreign = dialect.has_foreign_ids(OffsetDateTime::now_utc());
    Ok(db.query_one_raw(foreign).await?.is_none())
}

/// The first id of a selection by the time of recording; `None` for other selections. Copies have
/// later ids than their time of recording, so there is no last id.
pub(super) async fn first(
    db: &Session,
    dialect: &Dialect,
    selection: &Selection,
) -> Result<Option<Uuid>, DbErr> {
    let Some(from) = selection.recorded_from else {
        return Ok(None);
    };
    let ids = range(db, dialect, IdRange::of(from, from)).await?;
    Ok(Some(ids.above))
}
