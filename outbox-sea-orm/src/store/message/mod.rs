//! Reads messages for operators. Locks and writes nothing.

pub(super) mod sql;

use std::num::NonZeroU32;
use std::sync::Arc;

use outbox_core::headers::CAUSATION_ID;
use outbox_core::{
    Aggregate, AggregateHead, FoundMessage, FoundPublished, Message, MessageId, MessageStatus, PageFrom,
    PublishedFound, PublishedSearch, Selection, StoreError, StoredMessage,
};
use sea_orm::{DbErr, QueryResult};
use time::OffsetDateTime;
use uuid::Uuid;

use super::failed;
use super::id_range::{self, IdRange};
use super::row::{self, read_aggregate, since, time_of};
use super::session::Session;

pub(super) async fn list(
    db: &Session,
    selection: &Selection,
    limit: NonZeroU32,
) -> Result<Vec<StoredMessage>, DbErr> {
    let first = id_range::first(db, selection).await?;
    db.read(sql::list(&db.dialect, selection, first, limit), read)
        .await
}

pub(super) async fn page(
    db: &Session,
    selection: &Selection,
    from: PageFrom,
    limit: NonZeroU32,
) -> Result<Vec<StoredMessage>, DbErr> {
    let first = id_range::first(db, selection).await?;
    db.read(sql::page(&db.dialect, selection, first, from, limit), read)
        .await
}

pub(super) async fn with_ids(db: &Session, ids: &[Uuid]) -> Result<Vec<StoredMessage>, DbErr> {
    db.read(sql::list_ids(&db.dialect, ids), read).await
}

pub(super) async fn recorded_between(
    db: &Session,
    recorded: (OffsetDateTime, OffsetDateTime),
    after: Option<MessageId>,
    limit: NonZeroU32,
) -> Result<Vec<StoredMessage>, DbErr> {
    let ids = id_range::range(db, IdRange::of(recorded.0, recorded.1)).await?;
    let statement = sql::recorded_between(&db.dialect, recorded, ids, after, i64::from(limit.get()));
    db.read(statement, read).await
}

pub(super) async fn has_log(db: &Session) -> Result<bool, DbErr> {
    let Some(statement) = sql::has_log(&db.dialect) else {
        return Ok(false);
    };
    let row = db.one(statement).await?;
    row.map_or(Ok(false), |row| row.try_get("", "has_log"))
}

pub(super) async fn published(
    db: &Session,
    recorded: (OffsetDateTime, OffsetDateTime),
    mut after: Option<MessageId>,
    limit: NonZeroU32,
) -> Result<Vec<Message>, StoreError> {
    const CONTEXT: &str = "messages could not be read";
    let limit = limit.get() as usize;
    let mut messages = Vec::new();
    let has_log = has_log(db).await.map_err(failed(CONTEXT))?;
    let ids = id_range::range(db, IdRange::of(recorded.0, recorded.1)).await;
    let ids = ids.map_err(failed(CONTEXT))?;
    // A page shortened by damaged rows must not look like the last page.
    while messages.len() < limit {
        let wanted = limit - messages.len();
        let statement = sql::published(&db.dialect, recorded, ids, after, wanted as i64, has_log);
        let rows = row::read_all(db, statement, false, usize::MAX).await?;
        let is_last = rows.len() < wanted;
        for (scanned, row) in rows {
            let id: Uuid = row.try_get("", "id").map_err(failed(CONTEXT))?;
            after = Some(MessageId::from(id));
            messages.extend(scanned.row.message.map(Arc::unwrap_or_clone));
        }
        if is_last {
            break;
        }
    }
    Ok(messages)
}

/// A damaged number becomes 0, a damaged time 1970.
fn read(row: &QueryResult) -> Result<StoredMessage, DbErr> {
    let int = |column| row.try_get::<i64>("", column);
    let time = |column| {
        let micros = row.try_get::<Option<i64>>("", column).ok()?;
        Some(time_of(micros?).unwrap_or(OffsetDateTime::UNIX_EPOCH))
    };
    let id: Uuid = row.try_get("", "id").unwrap_or_default();
    let event_id: Option<Uuid> = row.try_get("", "event_id").unwrap_or_default();
    let sequence: Option<i64> = row.try_get("", "sequence").unwrap_or_default();
    let counter = |column| u32::try_from(int(column).unwrap_or_default()).unwrap_or_default();
    Ok(StoredMessage {
        row_id: int("row_id")?,
        id: id.into(),
        event_id: event_id.unwrap_or(id).into(),
        aggregate: read_aggregate(row)?,
        sequence: sequence.and_then(|sequence| u64::try_from(sequence).ok()),
        event_type: row.try_get("", "event_type").unwrap_or_default(),
        status: match int("status")? {
            0 => MessageStatus::Pending,
            1 => MessageStatus::Published,
            3 => MessageStatus::Waiting,
            4 => MessageStatus::Logged,
            _ => MessageStatus::Dead,
        },
        attempts: counter("attempts"),
        failures: counter("failures"),
        error: row.try_get("", "last_error")?,
        halts: int("halts")? == 1,
        created_at: time("created_micros").unwrap_or(OffsetDateTime::UNIX_EPOCH),
        published_at: time("published_micros"),
    })
}

pub(super) async fn find(db: &Session, id: MessageId) -> Result<Option<FoundMessage>, StoreError> {
    const CONTEXT: &str = "the message could not be read";
    let row = db
        .one(sql::find(&db.dialect, id))
        .await
        .map_err(failed(CONTEXT))?;
    let stored = list(db, &Selection::id(id), NonZeroU32::MIN).await;
    // A purge may remove the row before the second query.
    let (Some(row), Some(stored)) = (row, stored.map_err(failed(CONTEXT))?.pop()) else {
        return Ok(None);
    };
    let micros = |column| row.try_get::<Option<i64>>("", column).map_err(failed(CONTEXT));
    let now = micros("now_micros")?.unwrap_or_default();
    let available = micros("available_micros")?.filter(|available| *available > now);
    Ok(Some(FoundMessage {
        stored,
        delayed_for: available.map(|available| since(now, available)),
        message: row::read(&row, false)?.row.message.map(Arc::unwrap_or_clone),
    }))
}

pub(super) async fn head(db: &Session, aggregate: &Aggregate) -> Result<Option<AggregateHead>, DbErr> {
    let row = db.one(sql::head(&db.dialect, aggregate)).await?;
    row.as_ref().map(read_head).transpose()
}

fn read_head(row: &QueryResult) -> Result<AggregateHead, DbErr> {
    let last: i64 = row.try_get("", "last_sequence")?;
    Ok(AggregateHead {
        last_sequence: u64::try_from(last).unwrap_or_default(),
        recorded_at: row::time(row, "recorded_micros", "recorded_at")?,
    })
}

pub(super) async fn search_published(
    db: &Session,
    search: &PublishedSearch,
) -> Result<PublishedFound, DbErr> {
    let mut by_id = search.clone();
    let name_times = id_range::name_times(db).await?;
    if !name_times {
        (by_id.from, by_id.until) = (None, None);
    }
    let messages = db
        .read(sql::search_published(&db.dialect, &by_id), read_found)
        .await?;
    let end = db.one(sql::search_end(&db.dialect, &by_id)).await?;
    let end: Option<Uuid> = end.map(|row| row.try_get("", "id")).transpose()?;
    // If ids do not contain times, an unread row may have any time.
    let any = || search.until.unwrap_or_else(OffsetDateTime::now_utc);
    Ok(PublishedFound {
        messages,
        looked_from: end.map(|end| if name_times { id_range::time_of(end) } else { any() }),
    })
}

fn read_found(row: &QueryResult) -> Result<FoundPublished, DbErr> {
    let headers: Option<String> = row.try_get("", "headers").ok();
    let headers = headers.and_then(|headers| serde_json::from_str::<serde_json::Value>(&headers).ok());
    let cause = headers
        .as_ref()
        .and_then(|headers| headers.get(CAUSATION_ID)?.as_str());
    Ok(FoundPublished {
        stored: read(row)?,
        causation_id: cause.map(str::to_owned),
    })
}
