//! The operations of operators: list, count, retry, skip, replay.
//!
//! Invariant: blocks are locked first, in the order of their keys as in settling; then rows. Nothing is published here; the relays are woken.

use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use outbox_core::store::{BACKLOG_COUNT_MAX, RowKey};
use outbox_core::{
    Aggregate, Backlog, BlockedAggregate, Message, MessageId, MessageStatus, PageFrom, Selection, StoreError,
    StoredMessage,
};
use sea_orm::{DbErr, QueryResult, Statement, TryGetable};
use time::OffsetDateTime;
use uuid::Uuid;

use super::fetch::{key, read_all, time_of};
use super::session::Session;
use super::waiting::read_key;
use super::{blocks, failed, ids, repeat_deadlocks};
use crate::dialect::Dialect;
use crate::dialect::ids::IdRange;
use crate::dialect::key::Key;

/// Messages per transaction.
pub(super) const MESSAGES_MAX: i64 = 1_000;

/// How many messages a replay finds at a time: 24 MB of ids. With fewer, PostgreSQL would read the table more often.
pub(super) const REPLAYED_MAX: usize = 1_000_000;

/// Copies per statement; SQLite takes 500 parts of a union.
const COPIES_MAX: usize = 250;

pub(super) async fn backlog(db: &Session, dialect: &Dialect) -> Result<Backlog, DbErr> {
    let row = db
        .query_one_raw(dialect.backlog(BACKLOG_COUNT_MAX))
        .await?
        .ok_or_else(|| DbErr::RecordNotFound("backlog".to_owned()))?;
    let count = |column| {
        row.try_get::<i64>("", column)
            .map(|count| u64::try_from(count).unwrap_or_default())
    };
    let (waiting, halted) = (count("waiting")?, count("halted")?);
    let now: i64 = row.try_get("", "now_micros")?;
    let pending = count("pending")?;
    // Relays publish in the order of row ids, so the pending ones of a large backlog are next to each other.
    let end = |column| row.try_get::<Option<i64>>("", column);
    let span = match (end("first_row_id")?, end("last_row_id")?) {
        (Some(first), Some(last)) if pending >= BACKLOG_COUNT_MAX => u64::try_from(last - first + 1),
        _ => Ok(0),
    };
    let span = span.unwrap_or_default();
    // SQLite keeps any type in any column.
    let due_since = |column| row.try_get::<Option<i64>>("", column).unwrap_or_default();
    let due = [due_since("pending_due_micros"), due_since("waiting_due_micros")];
    let due = due.into_iter().flatten().min();
    let bounded = |count: u64| count.min(BACKLOG_COUNT_MAX);
    Ok(Backlog {
        pending: bounded(pending + waiting),
        pending_estimate: pending.max(span) + waiting,
        waiting,
        dead_letters: count("dead")?,
        halted_aggregates: halted,
        blocked_aggregates: bounded(count("backing_off")? + halted),
        oldest_unpublished: due.map(|due| since(due, now)),
    })
}

pub(super) async fn list(
    db: &Session,
    dialect: &Dialect,
    selection: &Selection,
    limit: NonZeroU32,
) -> Result<Vec<StoredMessage>, DbErr> {
    let first = ids::first(db, dialect, selection).await?;
    read_all_stored(db, dialect.list(selection, first, i64::from(limit.get()))).await
}

pub(super) async fn page(
    db: &Session,
    dialect: &Dialect,
    selection: &Selection,
    from: PageFrom,
    limit: NonZeroU32,
) -> Result<Vec<StoredMessage>, DbErr> {
    let first = ids::first(db, dialect, selection).await?;
    let statement = dialect.page(selection, first, from, i64::from(limit.get()));
    read_all_stored(db, statement).await
}

pub(super) async fn read_all_stored(db: &Session, statement: Statement) -> Result<Vec<StoredMessage>, DbErr> {
    let rows = db.query_all_raw(statement).await?;
    rows.iter().map(read_stored).collect()
}

/// A message of an operator's selection.
pub(super) struct Selected {
    pub(super) row_id: i64,
    pub(super) id: Uuid,
    /// The aggregate of a dead letter that asks for order.
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

/// Reads selected dead letters.
pub(super) async fn select(db: &Session, statement: Statement) -> Result<Vec<Selected>, DbErr> {
    let rows = db.query_all_raw(statement).await?;
    rows.iter()
        .map(|row| {
            let is_sequenced = row.try_get::<i64>("", "is_sequenced")? != 0;
            Ok(Selected {
                row_id: row.try_get("", "row_id")?,
                // A row may be dead because its id cannot be read.
                id: row.try_get("", "id").unwrap_or_default(),
                key: is_sequenced.then(|| read_key(row)).transpose()?,
            })
        })
        .collect()
}

/// An operator's decision about dead letters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Decision {
    Retry,
    Skip,
}

/// Retries or skips dead letters, batch by batch. Returns their number.
pub(super) async fn decide(
    db: &Session,
    dialect: &Dialect,
    mut selection: Selection,
    decision: Decision,
) -> Result<u64, DbErr> {
    let mut decided = 0;
    loop {
        let batch = select(db, dialect.select_dead(&selection, MESSAGES_MAX)).await?;
        let Some(last) = batch.last() else {
            return Ok(decided);
        };
        selection.after = Some(last.row_id);
        decided += repeat_deadlocks!(decide_batch(db, dialect, &batch, decision))?;
        outbox_core::wake::notify();
        if (batch.len() as i64) < MESSAGES_MAX {
            return Ok(decided);
        }
    }
}

async fn decide_batch(
    db: &Session,
    dialect: &Dialect,
    batch: &[Selected],
    decision: Decision,
) -> Result<u64, DbErr> {
    let tx = db.begin().await?;
    let decided = decide_in(&tx, dialect, batch, decision).await?;
    tx.commit().await?;
    Ok(decided)
}

/// Retries or skips dead letters in an open transaction. Returns how many were dead until now, or halted their aggregates.
pub(super) async fn decide_in(
    tx: &Session,
    dialect: &Dialect,
    batch: &[Selected],
    decision: Decision,
) -> Result<u64, DbErr> {
    let keys: BTreeSet<Key> = batch.iter().filter_map(|row| row.key.clone()).collect();
    let keys: Vec<Key> = keys.into_iter().collect();
    let blocked = blocks::lock(tx, dialect, &keys).await?;
    let halting: Vec<Key> = batch
        .iter()
        .filter_map(|row| {
            row.key.clone().filter(|key| {
                blocked
                    .get(key)
                    .is_some_and(|block| block.halted_by == Some(row.row_id))
            })
        })
        .collect();
    if !halting.is_empty() {
        tx.execute_raw(dialect.lift_halts(&halting)).await?;
    }
    let blocked: Vec<Key> = blocked.into_keys().collect();
    blocks::end(tx, dialect, &blocked).await?;
    Ok(match decision {
        Decision::Retry => {
            // If later messages of its aggregate wait, a retried message waits with them, as the first one. Such an aggregate still has a block.
            let blocked = blocks::lock(tx, dialect, &blocked).await?;
            let (waiting, pending): (Vec<&Selected>, Vec<&Selected>) = batch
                .iter()
                .partition(|row| row.key.as_ref().is_some_and(|key| blocked.contains_key(key)));
            let mut retried = 0;
            for (rows, waiting) in [(waiting, true), (pending, false)] {
                let rows: Vec<RowKey> = rows.iter().map(|row| row.row_key()).collect();
                if !rows.is_empty() {
                    let done = tx.execute_raw(dialect.retry(&rows, waiting)).await?;
                    retried += done.rows_affected();
                }
            }
            retried
        }
        // The blocks were locked before they were read, so nobody else has lifted these halts.
        Decision::Skip => halting.len() as u64,
    })
}

/// Copies published messages and dead letters behind everything recorded so far, batch by batch. Returns the number of copies.
///
/// The messages to copy are read first, [`REPLAYED_MAX`] at a time, and each reading may go over the whole table. Copies become published messages,
/// too; so if one reading is not enough, the later ones leave out the rows that were recorded after the first.
pub(super) async fn replay(
    db: &Session,
    dialect: &Dialect,
    mut selection: Selection,
    page: usize,
) -> Result<u64, DbErr> {
    let (mut until, mut copied) = (None, 0);
    loop {
        let rows = replayable(db, dialect, &selection, until, page).await?;
        let is_last = rows.len() < page;
        if !is_last && until.is_none() {
            until = Some(last_row_id(db, dialect).await?);
        }
        for batch in rows.chunks(MESSAGES_MAX as usize) {
            let ids: Vec<(Uuid, Uuid)> = batch
                .iter()
                .map(|(_, id)| (*id, MessageId::fresh().as_uuid()))
                .collect();
            copied += repeat_deadlocks!(copy_batch(db, dialect, &ids))?;
            outbox_core::wake::notify();
        }
        if is_last {
            return Ok(copied);
        }
        selection.after = rows.last().map(|(row_id, _)| *row_id).or(selection.after);
    }
}

pub(super) async fn last_row_id(db: &Session, dialect: &Dialect) -> Result<i64, DbErr> {
    let last = db.query_one_raw(dialect.last_row_id()).await?;
    let last = last.ok_or_else(|| DbErr::RecordNotFound("last row id".to_owned()))?;
    last.try_get("", "row_id")
}

/// Whether a log relay stores its position in this database, so that logged rows may be published ones.
async fn has_log(db: &Session, dialect: &Dialect) -> Result<bool, DbErr> {
    let Some(statement) = dialect.has_log() else {
        return Ok(false);
    };
    let row = db.query_one_raw(statement).await?;
    row.map_or(Ok(false), |row| row.try_get("", "has_log"))
}

/// Row ids and message ids of the next messages to copy.
pub(super) async fn replayable(
    db: &Session,
    dialect: &Dialect,
    selection: &Selection,
    until: Option<i64>,
    page: usize,
) -> Result<Vec<(i64, Uuid)>, DbErr> {
    let limit = i64::try_from(page).unwrap_or(i64::MAX);
    let first = ids::first(db, dialect, selection).await?;
    let has_log = has_log(db, dialect).await?;
    let statement = dialect.replayable(selection, first, until, limit, has_log);
    let mut rows = Vec::new();
    let take = |row: QueryResult| {
        rows.push((row.try_get_by_index(0)?, row.try_get_by_index(1)?));
        Ok(true)
    };
    db.each_row(statement, |error| error, take).await?;
    Ok(rows)
}

async fn copy_batch(db: &Session, dialect: &Dialect, ids: &[(Uuid, Uuid)]) -> Result<u64, DbErr> {
    let tx = db.begin().await?;
    let copied = copy_in(&tx, dialect, ids).await?;
    tx.commit().await?;
    Ok(copied)
}

/// Copies messages in an open transaction. Returns the number of copies.
pub(super) async fn copy_in(tx: &Session, dialect: &Dialect, ids: &[(Uuid, Uuid)]) -> Result<u64, DbErr> {
    let (mut copied, has_log) = (0, has_log(tx, dialect).await?);
    for ids in ids.chunks(COPIES_MAX) {
        copied += tx.execute_raw(dialect.copy(ids, has_log)).await?.rows_affected();
    }
    Ok(copied)
}

pub(super) async fn blocked(
    db: &Session,
    dialect: &Dialect,
    limit: NonZeroU32,
) -> Result<Vec<BlockedAggregate>, DbErr> {
    let rows = db.query_all_raw(dialect.blocked(i64::from(limit.get()))).await?;
    rows.iter().map(read_blocked).collect()
}

pub(super) fn read_blocked(row: &QueryResult) -> Result<BlockedAggregate, DbErr> {
    let now: i64 = row.try_get("", "now_micros")?;
    let due: Option<i64> = row.try_get("", "due_micros")?;
    Ok(BlockedAggregate {
        aggregate: read_aggregate(row)?,
        halted_by: row.try_get("", "halted_by")?,
        blocked_for: due.map(|due| since(now, due)),
    })
}

pub(super) async fn resume(db: &Session, dialect: &Dialect, aggregate: &Aggregate) -> Result<bool, DbErr> {
    let resumed = db.execute_raw(dialect.resume(aggregate)).await?.rows_affected() > 0;
    if resumed {
        outbox_core::wake::notify();
    }
    Ok(resumed)
}

pub(super) async fn published(
    db: &Session,
    dialect: &Dialect,
    (recorded_from, recorded_until): (OffsetDateTime, OffsetDateTime),
    mut after: Option<MessageId>,
    limit: NonZeroU32,
) -> Result<Vec<Message>, StoreError> {
    let limit = limit.get() as usize;
    let mut messages = Vec::new();
    let has_log = has_log(db, dialect)
        .await
        .map_err(failed("messages could not be read"))?;
    let ids = ids::range(db, dialect, IdRange::of(recorded_from, recorded_until))
        .await
        .map_err(failed("messages could not be read"))?;
    // Rows that cannot be read are left out. A short batch must not look like the end because of them.
    while messages.len() < limit {
        let wanted = limit - messages.len();
        let recorded = (recorded_from, recorded_until);
        let statement = dialect.published(recorded, ids, after, wanted as i64, has_log);
        let rows = read_all(db, statement, false, usize::MAX).await?;
        let is_last = rows.len() < wanted;
        for (scanned, row) in rows {
            let id = row
                .try_get::<Uuid>("", "id")
                .map_err(failed("messages could not be read"))?;
            after = Some(MessageId::from(id));
            messages.extend(scanned.row.message.map(Arc::unwrap_or_clone));
        }
        if is_last {
            break;
        }
    }
    Ok(messages)
}

/// Reads a row as far as it can be read: a message may be dead because it could not. A damaged number is 0, a damaged time 1970.
pub(super) fn read_stored(row: &QueryResult) -> Result<StoredMessage, DbErr> {
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
        event_type: text(row, "event_type").unwrap_or_default(),
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

fn read_aggregate(row: &QueryResult) -> Result<Aggregate, DbErr> {
    Ok(Aggregate::new(
        key(row, "aggregate_type")?.0,
        key(row, "aggregate_id")?.0,
    ))
}

fn text(row: &QueryResult, column: &str) -> Result<String, DbErr> {
    String::try_get(row, "", column).map_err(DbErr::from)
}

/// The time between two times in microseconds; zero if `later` is the earlier one.
pub(super) fn since(earlier: i64, later: i64) -> Duration {
    Duration::from_micros(u64::try_from(later.saturating_sub(earlier)).unwrap_or_default())
}
