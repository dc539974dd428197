//! Reads message rows. A damaged row is returned with the reason, and does not fail its batch of
//! rows.

pub(super) mod sql;

use std::sync::Arc;
use std::time::Duration;

use outbox_core::store::RowKey;
use outbox_core::{
    Aggregate, FetchedRow, Headers, Message, MessageId, RowFault, Settlement, StoreError, Verdict,
};
#[cfg(feature = "testing")]
use sea_orm::DatabaseConnection;
use sea_orm::{DbErr, QueryResult, Statement, TryGetable};
use time::OffsetDateTime;
use uuid::Uuid;

use self::sql::Column;
use super::failed;
use super::session::Session;
#[cfg(feature = "testing")]
use super::session::{self, Isolation};
#[cfg(feature = "testing")]
use crate::names::TableNames;
#[cfg(feature = "testing")]
use crate::sql::Dialect;
use crate::sql::Key;

#[derive(Debug)]
pub(super) struct ScannedRow {
    pub(super) row: FetchedRow,
    pub(super) has_to_wait: bool,
}

impl ScannedRow {
    pub(super) fn bytes(&self) -> usize {
        let message = self.row.message.as_ref();
        message.map_or(0, |message| message.payload.len())
    }

    pub(super) fn waits(&self) -> Settlement {
        self.row.with_verdict(Verdict::Waits)
    }
}

impl Session {
    pub(super) async fn read<T>(
        &self,
        statement: Statement,
        read: impl Fn(&QueryResult) -> Result<T, DbErr>,
    ) -> Result<Vec<T>, DbErr> {
        self.all(statement).await?.iter().map(read).collect()
    }

    pub(super) async fn only(&self, statement: Statement) -> Result<QueryResult, DbErr> {
        let row = self.one(statement).await?;
        row.ok_or_else(|| DbErr::RecordNotFound("the only row of a query".to_owned()))
    }

    pub(super) async fn now_micros(&self) -> Result<i64, DbErr> {
        self.only(self.dialect.clock()).await?.try_get("", "now_micros")
    }
}

#[cfg(feature = "testing")]
pub(crate) async fn recorded(
    db: &DatabaseConnection,
    names: &TableNames,
) -> Result<Vec<Message>, StoreError> {
    let dialect = Arc::new(Dialect::new(db.get_database_backend(), names));
    let read = move |db: Arc<Session>| async move {
        read_all(&db, sql::recorded(&db.dialect), false, usize::MAX).await
    };
    let rows = session::call(db, &Isolation::default(), dialect, read).await?;
    let message = |(scanned, _): (ScannedRow, QueryResult)| {
        let message = scanned.row.message.map(Arc::unwrap_or_clone);
        message.map_err(|fault| StoreError::Corrupt {
            context: fault.to_string(),
        })
    };
    rows.into_iter().map(message).collect()
}

pub(super) async fn read_all(
    db: &Session,
    statement: Statement,
    waited: bool,
    bytes_max: usize,
) -> Result<Vec<(ScannedRow, QueryResult)>, StoreError> {
    let (mut scanned, mut bytes) = (Vec::new(), 0_usize);
    let take = |row: QueryResult| {
        let read = read(&row, waited)?;
        bytes = bytes.saturating_add(read.bytes());
        scanned.push((read, row));
        Ok(bytes <= bytes_max)
    };
    db.each_row(
        statement,
        |error| failed("messages could not be read")(error),
        take,
    )
    .await?;
    Ok(scanned)
}

/// Fails only if the row cannot be identified.
pub(super) fn read(row: &QueryResult, waited: bool) -> Result<ScannedRow, StoreError> {
    let mut damage: Option<String> = None;
    let row_id: i64 = get(row, Column::RowId).map_err(corrupt)?;
    let id: Option<Uuid> = or_damage(column(row, Column::Id), &mut damage);
    // SQLite stores any type in any column. No settlement matches a damaged partition.
    let partition = or_damage(int(row, Column::Partition), &mut damage).unwrap_or_default();
    let mut key = |column: Column| {
        let (text, unreadable) = readable(column.name(), get(row, column).map_err(corrupt)?);
        damage = damage.take().or(unreadable);
        Ok::<_, StoreError>(text)
    };
    let aggregate = Aggregate::new(key(Column::AggregateType)?, key(Column::AggregateId)?);
    let payload: Option<Option<Vec<u8>>> = or_damage(column(row, Column::Payload), &mut damage);
    let sequence: Option<Option<i64>> = or_damage(column(row, Column::Sequence), &mut damage);
    let created_micros: Option<i64> = or_damage(column(row, Column::CreatedMicros), &mut damage);
    let now: i64 = get(row, Column::NowMicros).map_err(corrupt)?;
    let age = created_micros.map_or(0, |created| now.saturating_sub(created));
    Ok(ScannedRow {
        has_to_wait: payload == Some(None),
        row: FetchedRow {
            row_id,
            id: id.map(MessageId::from),
            partition,
            sequenced: sequence != Some(None),
            attempts: counter(row, Column::Attempts),
            failures: counter(row, Column::Failures),
            waited,
            age: Duration::from_micros(u64::try_from(age).unwrap_or_default()),
            message: match damage {
                Some(damage) => Err(damage.into()),
                None => {
                    let (payload, created) = (payload.flatten(), created_micros.unwrap_or_default());
                    let payload = payload.unwrap_or_default();
                    read_message(row, &aggregate, sequence.flatten(), created, payload).map(Arc::new)
                }
            },
            aggregate,
        },
    })
}

fn or_damage<T>(read: Result<T, String>, damage: &mut Option<String>) -> Option<T> {
    read.map_err(|unreadable| damage.get_or_insert(unreadable)).ok()
}

/// A damaged counter counts as exhausted, so that the message is not retried forever.
fn counter(row: &QueryResult, column: Column) -> u32 {
    int(row, column).unwrap_or(u32::MAX)
}

fn int<T: TryFrom<i64>>(row: &QueryResult, name: Column) -> Result<T, String> {
    unsigned(column(row, name)?, name)
}

pub(super) fn corrupt(error: DbErr) -> StoreError {
    StoreError::Corrupt {
        context: format!("a row of the outbox cannot be read: {error}"),
    }
}

pub(super) fn key(row: &QueryResult, column: &str) -> Result<(String, Option<String>), DbErr> {
    Ok(readable(column, row.try_get("", column)?))
}

fn readable(column: &str, bytes: Vec<u8>) -> (String, Option<String>) {
    match String::from_utf8(bytes) {
        Ok(text) => (text, None),
        Err(error) => {
            let readable = String::from_utf8_lossy(error.as_bytes()).into_owned();
            (readable, Some(format!("{column} is not UTF-8")))
        }
    }
}

fn read_message(
    row: &QueryResult,
    aggregate: &Aggregate,
    sequence: Option<i64>,
    created_micros: i64,
    payload: Vec<u8>,
) -> Result<Message, RowFault> {
    RowFault::check_sizes(int(row, Column::PayloadBytes)?, int(row, Column::HeadersBytes)?)?;
    let id: Uuid = column(row, Column::Id)?;
    let event_id: Uuid = column(row, Column::EventId)?;
    let headers = Headers::from_stored(column::<String>(row, Column::Headers)?.as_bytes())?;
    let message = Message {
        id: MessageId::from(id),
        event_id: event_id.into(),
        aggregate: aggregate.clone(),
        sequence: sequence
            .map(|number| unsigned(number, Column::Sequence))
            .transpose()?,
        event_type: column(row, Column::EventType)?,
        event_version: int(row, Column::EventVersion)?,
        subject: column(row, Column::Subject)?,
        content_type: column(row, Column::ContentType)?,
        payload: payload.into(),
        headers,
        created_at: time_of(created_micros)
            .map_err(|error| format!("created_at is out of range: {error}"))?,
    };
    RowFault::check_names(&message)?;
    Ok(message)
}

pub(super) fn time_of(micros: i64) -> Result<OffsetDateTime, time::error::ComponentRange> {
    OffsetDateTime::from_unix_timestamp_nanos(i128::from(micros) * 1000)
}

pub(super) fn time(row: &QueryResult, column: &str, name: &str) -> Result<OffsetDateTime, DbErr> {
    let time = time_of(row.try_get("", column)?);
    time.map_err(|error| DbErr::Type(format!("{name} is out of range: {error}")))
}

fn get<T: TryGetable>(row: &QueryResult, column: Column) -> Result<T, DbErr> {
    row.try_get_by_index(column as usize)
}

fn column<T: TryGetable>(row: &QueryResult, column: Column) -> Result<T, String> {
    get(row, column).map_err(|error| {
        let name = column.name().replace("_micros", "_at");
        format!("{name} cannot be read: {error}")
    })
}

fn unsigned<T: TryFrom<i64>>(value: i64, column: Column) -> Result<T, String> {
    T::try_from(value).map_err(|_| format!("{} is {value}", column.name()))
}

/// A damaged row on SQLite may have no message id.
pub(super) fn row_key(row: &QueryResult) -> Result<RowKey, DbErr> {
    Ok(RowKey {
        row_id: row.try_get("", "row_id")?,
        id: row.try_get::<Uuid>("", "id").ok().map(MessageId::from),
    })
}

pub(super) fn read_key(row: &QueryResult) -> Result<Key, DbErr> {
    Ok(Key {
        aggregate_type: row.try_get("", "aggregate_type")?,
        aggregate_id: row.try_get("", "aggregate_id")?,
    })
}

pub(super) fn read_aggregate(row: &QueryResult) -> Result<Aggregate, DbErr> {
    Ok(Aggregate::new(
        key(row, "aggregate_type")?.0,
        key(row, "aggregate_id")?.0,
    ))
}

pub(super) fn since(earlier: i64, later: i64) -> Duration {
    Duration::from_micros(u64::try_from(later.saturating_sub(earlier)).unwrap_or_default())
}
