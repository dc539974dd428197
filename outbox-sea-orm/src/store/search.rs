//! The bounded search among published messages.
//!
//! Invariant: each statement reads a bounded number of rows by the index on ids. Rows that come or
//! go between the statements are of no consequence.

use outbox_core::headers::CAUSATION_ID;
use outbox_core::{FoundPublished, PublishedFound, PublishedSearch};
use sea_orm::{DbErr, QueryResult};
use time::OffsetDateTime;
use uuid::Uuid;

use super::admin::read_stored;
use super::ids;
use super::session::Session;
use crate::dialect::Dialect;

pub(super) async fn search_published(
    db: &Session,
    dialect: &Dialect,
    search: &PublishedSearch,
) -> Result<PublishedFound, DbErr> {
    let mut by_id = search.clone();
    let name_times = ids::name_times(db, dialect).await?;
    if !name_times {
        (by_id.from, by_id.until) = (None, None);
    }
    let rows = db.query_all_raw(dialect.search_published(&by_id)).await?;
    let messages = rows.iter().map(read).collect::<Result<_, _>>()?;
    let end = db.query_one_raw(dialect.search_end(&by_id)).await?;
    let end: Option<Uuid> = end.map(|row| row.try_get("", "id")).transpose()?;
    // If ids name no times, an unread row may be of any time.
    let any = || search.until.unwrap_or_else(OffsetDateTime::now_utc);
    Ok(PublishedFound {
        messages,
        looked_from: end.map(|end| if name_times { time_of(end) } else { any() }),
    })
}

fn read(row: &QueryResult) -> Result<FoundPublished, DbErr> {
    // A row whose headers are damaged was published before that, and names no cause.
    let headers: Option<String> = row.try_get("", "headers").ok();
    let headers = headers.and_then(|headers| serde_json::from_str::<serde_json::Value>(&headers).ok());
    let cause = headers
        .as_ref()
        .and_then(|headers| headers.get(CAUSATION_ID)?.as_str());
    Ok(FoundPublished {
        stored: read_stored(row)?,
        causation_id: cause.map(str::to_owned),
    })
}

/// The time at which an id was made, in milliseconds. 48 bits of them end within the years that the type has.
fn time_of(id: Uuid) -> OffsetDateTime {
    let millis = i128::from(id.as_u64_pair().0 >> 16);
    OffsetDateTime::from_unix_timestamp_nanos(millis * 1_000_000).unwrap_or(OffsetDateTime::UNIX_EPOCH)
}
