//! Walks the pending messages.
//!
//! Invariants: a row that cannot be read is returned with the reason, it never fails the batch: the relay halts its aggregate, the
//! others flow. Rows are read one by one, so that a batch takes no more memory than its bound. Absent: locks and state. Who may fetch is
//! decided by the leases, what is done by the settlements.

use std::collections::HashSet;
use std::time::Duration;

use futures_util::TryStreamExt;
use outbox_core::{
    Aggregate, Fetched, FetchedRow, Headers, Message, MessageId, Settlement, StoreError, Verdict,
};
use sea_orm::{DatabaseConnection, DbErr, QueryResult, Statement, StreamTrait};
use time::OffsetDateTime;
use uuid::Uuid;

use super::failed;

const CONTEXT: &str = "messages could not be fetched";

/// Bounds of an answer, in rows and payload bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    pub(super) rows: usize,
    pub(super) bytes: usize,
}

impl Bounds {
    /// Counts a row; whether another one fits.
    pub(super) fn take(&mut self, bytes: usize) -> bool {
        self.rows = self.rows.saturating_sub(1);
        let fits = bytes <= self.bytes;
        self.bytes = self.bytes.saturating_sub(bytes);
        fits && self.rows > 0
    }
}

/// A row as it was read.
#[derive(Debug)]
pub(super) struct Walked {
    pub(super) row: FetchedRow,
    /// It is delayed, or its aggregate is held.
    pub(super) has_to_wait: bool,
    pub(super) is_delayed: bool,
}

impl Walked {
    pub(super) fn bytes(&self) -> usize {
        self.row
            .message
            .as_ref()
            .map_or(0, |message| message.payload.len())
    }

    pub(super) fn waits(&self) -> Settlement {
        Settlement {
            seq: self.row.seq,
            partition: self.row.partition,
            waited: self.row.waited,
            verdict: Verdict::Waits,
        }
    }
}

pub(super) async fn fetch(
    db: &DatabaseConnection,
    statement: Statement,
    mut bounds: Bounds,
) -> Result<Fetched, StoreError> {
    let mut fetched = Fetched::default();
    // Aggregates of delayed messages that this fetch has met: held as soon as its answer is settled.
    let mut delayed: HashSet<Aggregate> = HashSet::new();
    let mut rows = Box::pin(db.stream_raw(statement).await.map_err(failed(CONTEXT))?);
    while let Some(row) = rows.try_next().await.map_err(failed(CONTEXT))? {
        let walked = read(&row, false)?;
        fetched.more = !bounds.take(walked.bytes());
        let is_behind = walked.row.sequenced && delayed.contains(&walked.row.aggregate);
        if walked.has_to_wait || is_behind {
            fetched.waits.push(walked.waits());
            if walked.is_delayed && walked.row.sequenced {
                delayed.insert(walked.row.aggregate);
            }
        } else {
            fetched.due.push(walked.row);
        }
        if fetched.more {
            break;
        }
    }
    Ok(fetched)
}

/// All rows of a query, up to a bound.
pub(super) async fn read_all<C: StreamTrait>(
    db: &C,
    statement: Statement,
    waited: bool,
    bytes_max: usize,
) -> Result<Vec<(Walked, QueryResult)>, StoreError> {
    let (mut walked, mut bytes) = (Vec::new(), 0_usize);
    let mut rows = Box::pin(db.stream_raw(statement).await.map_err(failed(CONTEXT))?);
    while let Some(row) = rows.try_next().await.map_err(failed(CONTEXT))? {
        let read = read(&row, waited)?;
        bytes = bytes.saturating_add(read.bytes());
        walked.push((read, row));
        if bytes > bytes_max {
            break;
        }
    }
    Ok(walked)
}

pub(super) fn read(row: &QueryResult, waited: bool) -> Result<Walked, StoreError> {
    let int = |column| row.try_get::<i64>("", column).map_err(corrupt);
    let (seq, partition) = (int("seq")?, int("partition_no")?);
    let (aggregate_type, type_damage) = key(row, "aggregate_type").map_err(corrupt)?;
    let (aggregate_id, id_damage) = key(row, "aggregate_id").map_err(corrupt)?;
    let aggregate = Aggregate::new(aggregate_type, aggregate_id);
    let payload = row.try_get::<Option<Vec<u8>>>("", "payload").map_err(corrupt)?;
    let age = int("now_micros")? - int("created_micros")?;
    let has_to_wait = payload.is_none();
    Ok(Walked {
        has_to_wait,
        is_delayed: int("is_delayed")? != 0,
        row: FetchedRow {
            seq,
            partition: u16::try_from(partition).map_err(|_| StoreError::Corrupt {
                context: format!("partition {partition} of row {seq}"),
            })?,
            sequenced: row
                .try_get::<Option<i64>>("", "sequence")
                .map_err(corrupt)?
                .is_some(),
            attempts: u32::try_from(int("attempts")?).unwrap_or_default(),
            failures: u32::try_from(int("failures")?).unwrap_or_default(),
            waited,
            age: Duration::from_micros(u64::try_from(age).unwrap_or_default()),
            message: match (type_damage.or(id_damage), payload) {
                (Some(damage), _) => Err(damage),
                (None, payload) => read_message(row, &aggregate, payload.unwrap_or_default()),
            },
            aggregate,
        },
    })
}

pub(super) fn corrupt(error: DbErr) -> StoreError {
    StoreError::Corrupt {
        context: format!("key columns of outbox_messages: {error}"),
    }
}

/// A key column as far as it can be read, and what is wrong with it. Every dialect selects it as bytes.
pub(super) fn key(row: &QueryResult, column: &str) -> Result<(String, Option<String>), DbErr> {
    match String::from_utf8(row.try_get("", column)?) {
        Ok(text) => Ok((text, None)),
        Err(error) => {
            let readable = String::from_utf8_lossy(error.as_bytes()).into_owned();
            Ok((readable, Some(format!("{column} is not UTF-8"))))
        }
    }
}

fn read_message(row: &QueryResult, aggregate: &Aggregate, payload: Vec<u8>) -> Result<Message, String> {
    let id: Uuid = column(row, "id")?;
    let event_id: Option<Uuid> = column(row, "event_id")?;
    let headers: Headers = serde_json::from_str(&column::<String>(row, "headers")?)
        .map_err(|error| format!("headers are not a JSON object of texts: {error}"))?;
    let created_micros: i64 = column(row, "created_micros")?;
    Ok(Message {
        id: MessageId::from(id),
        event_id: event_id.unwrap_or(id).into(),
        aggregate: aggregate.clone(),
        sequence: unsigned(column::<Option<i64>>(row, "sequence")?, "sequence")?,
        event_type: column(row, "event_type")?,
        event_version: unsigned(Some(column::<i64>(row, "event_version")?), "event_version")?
            .unwrap_or_default(),
        subject: column(row, "subject")?,
        content_type: column(row, "content_type")?,
        payload: payload.into(),
        headers,
        created_at: time_of(created_micros)
            .map_err(|error| format!("created_at is out of range: {error}"))?,
    })
}

/// A time from microseconds since 1970.
pub(super) fn time_of(micros: i64) -> Result<OffsetDateTime, time::error::ComponentRange> {
    OffsetDateTime::from_unix_timestamp_nanos(i128::from(micros) * 1000)
}

fn column<T: sea_orm::TryGetable>(row: &QueryResult, name: &str) -> Result<T, String> {
    row.try_get("", name)
        .map_err(|error| format!("{name} cannot be read: {error}"))
}

fn unsigned<T: TryFrom<i64>>(value: Option<i64>, name: &str) -> Result<Option<T>, String> {
    value
        .map(|value| T::try_from(value).map_err(|_| format!("{name} is {value}")))
        .transpose()
}
