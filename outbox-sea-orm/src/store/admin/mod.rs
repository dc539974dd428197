//! Operators' changes to messages.
//!
//! Lock order: blocks by key, as in settlements; then message rows.

pub(super) mod sql;

use std::collections::BTreeSet;

use outbox_core::store::RowKey;
use outbox_core::{MessageId, Selection};
use sea_orm::{DbErr, QueryResult};
use uuid::Uuid;

use super::message::has_log;
use super::row::read_key;
use super::session::Session;
use super::{block, id_range};
use crate::sql::Key;

pub(super) const MESSAGES_MAX: i64 = 1_000;

/// Message ids per page, which need 24 MB. With smaller pages PostgreSQL reads the table more
/// often.
pub(super) const REPLAYED_MAX: usize = 1_000_000;

/// SQLite limits a union to 500 parts.
const COPIES_MAX: usize = 250;

pub(super) struct Selected {
    pub(super) row_id: i64,
    pub(super) id: Uuid,
    pub(super) key: Option<Key>,
}

impl Selected {
    fn row_key(&self) -> RowKey {
        RowKey {
            row_id: self.row_id,
            id: (!self.id.is_nil()).then_some(self.id.into()),
        }
    }
}

pub(super) async fn select_dead(
    db: &Session,
    selection: &Selection,
    halting: bool,
    limit: i64,
) -> Result<Vec<Selected>, DbErr> {
    let read = |row: &QueryResult| {
        let is_sequenced = row.try_get::<i64>("", "is_sequenced")? != 0;
        Ok(Selected {
            row_id: row.try_get("", "row_id")?,
            id: row.try_get("", "id").unwrap_or_default(),
            key: is_sequenced.then(|| read_key(row)).transpose()?,
        })
    };
    db.read(sql::select_dead(&db.dialect, selection, halting, limit), read)
        .await
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Decision {
    Retry,
    Skip,
}

pub(super) async fn decide(tx: &Session, batch: &[Selected], decision: Decision) -> Result<u64, DbErr> {
    let keys: BTreeSet<Key> = batch.iter().filter_map(|row| row.key.clone()).collect();
    let keys: Vec<Key> = keys.into_iter().collect();
    let blocked = block::lock(tx, &keys).await?;
    let halts = |row: &&Selected| {
        let block = row.key.as_ref().and_then(|key| blocked.get(key));
        block.is_some_and(|block| block.halted_by == Some(row.row_id))
    };
    let halting: Vec<Key> = batch
        .iter()
        .filter(halts)
        .filter_map(|row| row.key.clone())
        .collect();
    if !halting.is_empty() {
        tx.execute(block::sql::release(&tx.dialect, &halting)).await?;
    }
    let blocked: Vec<Key> = blocked.into_keys().collect();
    block::end(tx, &blocked).await?;
    Ok(match decision {
        Decision::Retry => {
            // If the aggregate is blocked, the retried message waits ahead of later messages.
            let blocked = block::lock(tx, &blocked).await?;
            let (waiting, pending): (Vec<&Selected>, Vec<&Selected>) = batch
                .iter()
                .partition(|row| row.key.as_ref().is_some_and(|key| blocked.contains_key(key)));
            let mut retried = 0;
            for (rows, waiting) in [(waiting, true), (pending, false)] {
                let rows: Vec<RowKey> = rows.iter().map(|row| row.row_key()).collect();
                if !rows.is_empty() {
                    let done = tx.execute(sql::retry(&tx.dialect, &rows, waiting)).await?;
                    retried += done.rows_affected();
                }
            }
            retried
        }
        Decision::Skip => halting.len() as u64,
    })
}

pub(super) async fn last_row_id(db: &Session) -> Result<i64, DbErr> {
    db.only(sql::last_row_id(&db.dialect))
        .await?
        .try_get("", "row_id")
}

pub(super) async fn replayable(
    db: &Session,
    selection: &Selection,
    until: Option<i64>,
    page: usize,
) -> Result<Vec<(i64, Uuid)>, DbErr> {
    let limit = i64::try_from(page).unwrap_or(i64::MAX);
    let first = id_range::first(db, selection).await?;
    let has_log = has_log(db).await?;
    let statement = sql::replayable(&db.dialect, selection, first, until, limit, has_log);
    let mut rows = Vec::new();
    let take = |row: QueryResult| {
        rows.push((row.try_get_by_index(0)?, row.try_get_by_index(1)?));
        Ok(true)
    };
    db.each_row(statement, |error| error, take).await?;
    Ok(rows)
}

pub(super) fn fresh_id() -> Uuid {
    MessageId::fresh().as_uuid()
}

pub(super) async fn copy(tx: &Session, ids: &[(Uuid, Uuid)]) -> Result<u64, DbErr> {
    let (mut copied, has_log) = (0, has_log(tx).await?);
    for ids in ids.chunks(COPIES_MAX) {
        copied += tx
            .execute(sql::copy(&tx.dialect, ids, has_log))
            .await?
            .rows_affected();
    }
    Ok(copied)
}
