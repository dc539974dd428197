//! Narrows a reading to the ids of a time, if the ids name times.

use sea_orm::DbErr;
use time::OffsetDateTime;

use super::session::Session;
use crate::dialect::Dialect;
use crate::dialect::ids::IdRange;

/// The range, or all ids if some were given by another program.
pub(super) async fn range(db: &Session, dialect: &Dialect, range: IdRange) -> Result<IdRange, DbErr> {
    let foreign = dialect.has_foreign_ids(OffsetDateTime::now_utc());
    Ok(match db.query_one_raw(foreign).await? {
        Some(_) => IdRange::ALL,
        None => range,
    })
}
