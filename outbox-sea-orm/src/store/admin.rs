//! What operators see and do: counts, parked messages, retry and skip.
//!
//! Invariant: rows are locked before head rows, as in settling, so an operator cannot deadlock with a relay.

use std::num::NonZeroU32;

use outbox_core::{Aggregate, Backlog, MessageId, ParkedMessage};
use sea_orm::{ConnectionTrait, DatabaseConnection, DatabaseTransaction, DbBackend, DbErr, QueryResult};
use uuid::Uuid;

use super::begin;
use crate::dialect::Dialect;

pub(super) async fn backlog(db: &DatabaseConnection, dialect: &Dialect) -> Result<Backlog, DbErr> {
    let row = db
        .query_one_raw(dialect.backlog())
        .await?
        .ok_or_else(|| DbErr::RecordNotFound("backlog".to_owned()))?;
    let count = |column| {
        row.try_get::<i64>("", column)
            .map(|count| u64::try_from(count).unwrap_or_default())
    };
    Ok(Backlog {
        pending: count("pending")?,
        parked: count("parked")?,
        halted_aggregates: count("halted")?,
    })
}

pub(super) async fn parked(
    db: &DatabaseConnection,
    dialect: &Dialect,
    limit: NonZeroU32,
) -> Result<Vec<ParkedMessage>, DbErr> {
    let rows = db.query_all_raw(dialect.parked(limit.get())).await?;
    rows.iter().map(|row| read(dialect.backend, row)).collect()
}

pub(super) async fn retry(db: &DatabaseConnection, dialect: &Dialect, id: MessageId) -> Result<bool, DbErr> {
    let tx = begin(db).await?;
    let Some(seq) = lock_parked(&tx, dialect, id).await? else {
        return Ok(false);
    };
    tx.execute_raw(dialect.retry(id.as_uuid())).await?;
    tx.execute_raw(dialect.resume(seq)).await?;
    tx.commit().await?;
    Ok(true)
}

pub(super) async fn skip(db: &DatabaseConnection, dialect: &Dialect, id: MessageId) -> Result<bool, DbErr> {
    let tx = begin(db).await?;
    let Some(seq) = lock_parked(&tx, dialect, id).await? else {
        return Ok(false);
    };
    tx.execute_raw(dialect.resume(seq)).await?;
    tx.commit().await?;
    Ok(true)
}

async fn lock_parked(
    tx: &DatabaseTransaction,
    dialect: &Dialect,
    id: MessageId,
) -> Result<Option<i64>, DbErr> {
    match tx.query_one_raw(dialect.lock_parked(id.as_uuid())).await? {
        Some(row) => row.try_get("", "seq").map(Some),
        None => Ok(None),
    }
}

/// A parked row may be one that could not be read, so texts are read as far as they go.
fn read(backend: DbBackend, row: &QueryResult) -> Result<ParkedMessage, DbErr> {
    let text = |column| match backend {
        DbBackend::Postgres => row.try_get::<String>("", column),
        _ => row
            .try_get::<Vec<u8>>("", column)
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned()),
    };
    let sequence: Option<i64> = row.try_get("", "sequence")?;
    let attempts: i64 = row.try_get("", "attempts")?;
    let halts: i64 = row.try_get("", "halts")?;
    Ok(ParkedMessage {
        id: MessageId::from(row.try_get::<Uuid>("", "id")?),
        aggregate: Aggregate::new(text("aggregate_type")?, text("aggregate_id")?),
        sequence: sequence.and_then(|sequence| u64::try_from(sequence).ok()),
        event_type: text("event_type")?,
        attempts: u32::try_from(attempts).unwrap_or_default(),
        error: text("last_error")?,
        halts: halts == 1,
    })
}
