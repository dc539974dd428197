//! Reads due messages.
//!
//! Invariant: a row that cannot be read is returned with the reason, it never fails the batch: the relay halts its aggregate, the
//! others flow. Absent: locks and state. Who may fetch is decided by the leases, what is done by the settlements.

use outbox_core::{Aggregate, FetchedRow, Headers, Message, MessageId, StoreError};
use sea_orm::{ConnectionTrait, DatabaseConnection, DbBackend, DbErr, QueryResult, Statement};
use time::OffsetDateTime;
use uuid::Uuid;

use super::failed;
#[cfg(feature = "postgres")]
use crate::dialect::postgres;
use crate::dialect::{Dialect, mysql, sqlite, unsupported};

pub(super) fn statement(
    dialect: &Dialect,
    partitions: &[i64],
    excluding: &[Aggregate],
    limit: u32,
) -> Result<Statement, DbErr> {
    match dialect.backend {
        #[cfg(feature = "postgres")]
        DbBackend::Postgres => Ok(postgres::fetch(dialect, partitions, excluding, limit)),
        DbBackend::MySql => Ok(mysql::fetch(dialect, partitions, excluding, limit)),
        DbBackend::Sqlite => Ok(sqlite::fetch(dialect, partitions, excluding, limit)),
        backend => Err(unsupported(backend)),
    }
}

pub(super) async fn fetch(
    db: &DatabaseConnection,
    statement: Statement,
) -> Result<Vec<FetchedRow>, StoreError> {
    let rows = db
        .query_all_raw(statement)
        .await
        .map_err(failed("messages could not be fetched"))?;
    rows.iter().map(read).collect()
}

fn read(row: &QueryResult) -> Result<FetchedRow, StoreError> {
    let corrupt = |error: DbErr| StoreError::Corrupt {
        context: format!("key columns of outbox_messages: {error}"),
    };
    let int = |column| row.try_get::<i64>("", column).map_err(corrupt);
    let (seq, partition) = (int("seq")?, int("partition_no")?);
    let (aggregate_type, type_damage) = key(row, "aggregate_type").map_err(corrupt)?;
    let (aggregate_id, id_damage) = key(row, "aggregate_id").map_err(corrupt)?;
    let aggregate = Aggregate::new(aggregate_type, aggregate_id);
    Ok(FetchedRow {
        seq,
        partition: u16::try_from(partition).map_err(|_| StoreError::Corrupt {
            context: format!("partition {partition} of row {seq}"),
        })?,
        attempts: u32::try_from(int("attempts")?).unwrap_or_default(),
        message: match type_damage.or(id_damage) {
            Some(damage) => Err(damage),
            None => read_message(row, &aggregate),
        },
        aggregate,
    })
}

/// A key column as far as it can be read, and what is wrong with it. Every dialect selects it as bytes.
fn key(row: &QueryResult, column: &str) -> Result<(String, Option<String>), DbErr> {
    match String::from_utf8(row.try_get("", column)?) {
        Ok(text) => Ok((text, None)),
        Err(error) => {
            let readable = String::from_utf8_lossy(error.as_bytes()).into_owned();
            Ok((readable, Some(format!("{column} is not UTF-8"))))
        }
    }
}

fn read_message(row: &QueryResult, aggregate: &Aggregate) -> Result<Message, String> {
    let id: Uuid = column(row, "id")?;
    let headers: Headers = serde_json::from_str(&column::<String>(row, "headers")?)
        .map_err(|error| format!("headers are not a JSON object of texts: {error}"))?;
    let created_micros: i64 = column(row, "created_micros")?;
    Ok(Message {
        id: MessageId::from(id),
        aggregate: aggregate.clone(),
        sequence: unsigned(column::<Option<i64>>(row, "sequence")?, "sequence")?,
        event_type: column(row, "event_type")?,
        event_version: unsigned(Some(column::<i64>(row, "event_version")?), "event_version")?
            .unwrap_or_default(),
        subject: column(row, "subject")?,
        content_type: column(row, "content_type")?,
        payload: column::<Vec<u8>>(row, "payload")?.into(),
        headers,
        created_at: OffsetDateTime::from_unix_timestamp_nanos(i128::from(created_micros) * 1000)
            .map_err(|error| format!("created_at is out of range: {error}"))?,
    })
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
