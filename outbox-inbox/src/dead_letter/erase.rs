//! Erases the dead letters of an aggregate, for the erasure of personal data.
//!
//! Invariant: a dead letter of the aggregate is gone, or it is counted as busy; none is passed over without a word. Not here: what the outbox holds
//! ([`OutboxAudit::forget_as`](outbox_core::OutboxAudit::forget_as)), and what the stream holds.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use outbox_core::{Aggregate, codec};
use sea_orm::{ConnectionTrait, DatabaseTransaction, DbBackend, DbErr, QueryResult, Value};
use uuid::Uuid;

use super::admin::{DeadLetters, LIST_MAX, headers_column, read_headers};
use crate::columns::{read_consumer, read_name};
use crate::database::Database;
use crate::dedup::sql::{DEAD, InboxSql};
use crate::operations::Note;

/// What [`DeadLetters::erase`] did and found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ErasedDeadLetters {
    /// Dead letters of the aggregate that were deleted.
    pub erased: u64,
    /// Those that are still there, because an inbox is trying them again at this moment, or another operator is changing them. Call again.
    pub busy: u64,
    /// Dead letters of all consumers that are no messages: nothing says which aggregate they are of. Look at them, and discard what is to go.
    pub unattributed: u64,
}

impl DeadLetters {
    /// Deletes the dead letters of an aggregate, of all consumers, marked or not, with headers and payload, and empties the error texts in the inbox rows of their
    /// messages. Returns how many, and how many are left. For the erasure of personal data, together with
    /// [`OutboxAudit::forget_as`](outbox_core::OutboxAudit::forget_as).
    ///
    /// It ends them as [`Self::discard`] does: the inbox rows stay dead until they expire ([`InboxConfig::retention`](crate::InboxConfig#structfield.retention)), so a copy that is delivered until then stays
    /// without effect. Letters that were no message for the program that kept them have no such row. And
    /// [`Self::retry`] finds nothing. Where `discard` leaves out what an inbox is trying again, this counts it: erasure is complete when
    /// [`erased`](ErasedDeadLetters::erased) and [`busy`](ErasedDeadLetters::busy) are 0 and consumers have nothing of the aggregate left: a dead letter that is being
    /// stored meanwhile is not seen.
    ///
    /// Reads all dead letters once, without locks, by their primary key; deletes in transactions of at most 500. After an error, what was erased stays erased; call again.
    ///
    /// **Not erased:** what the stream keeps, results of handlers, error texts of messages that are no dead letters (until
    /// [`InboxConfig::retention`](crate::InboxConfig#structfield.retention) is over), the aggregate's id in `inbox_sequences`, logs, and backups.
    ///
    /// # Errors
    ///
    /// The database's error, on SQLite also that it is locked, if a handler holds its one write lock for longer than a statement waits: call again.
    ///
    /// # Cancellation
    ///
    /// Dropping the future ends it after the transaction that runs.
    pub async fn erase(&self, aggregate: &Aggregate) -> Result<ErasedDeadLetters, DbErr> {
        let (inbox, database) = (self.sql(), Database::inspect(self.db.clone()).await?);
        let (mut total, mut after) = (ErasedDeadLetters::default(), None);
        let note = self.note();
        loop {
            let (inbox, database, whose) = (inbox.clone(), database.clone(), aggregate.clone());
            let noted = note.clone();
            // A dropped `begin` would poison the pool.
            let work = async move { erase_batch(&database, &inbox, &whose, after, noted.as_ref()).await };
            let (batch, last) = outbox_sea_orm::detached(work).await?;
            total.erased += batch.erased;
            total.busy += batch.busy;
            total.unattributed += batch.unattributed;
            after = last;
            if after.is_none() {
                self.end_note().await;
                // Without the id: it may be personal data.
                tracing::info!(
                    aggregate_type = aggregate.aggregate_type,
                    erased = total.erased,
                    busy = total.busy,
                    unattributed = total.unattributed,
                    "dead letters of an aggregate were erased"
                );
                return Ok(total);
            }
        }
    }
}

/// A dead letter of the aggregate.
struct Found {
    id: Uuid,
    consumer: String,
    /// `None`: it has no inbox row.
    event_id: Option<Uuid>,
}

/// Erases what is among the next rows; returns the last of them if there may be more.
async fn erase_batch(
    database: &Database,
    inbox: &InboxSql,
    aggregate: &Aggregate,
    after: Option<Uuid>,
    note: Option<&Note>,
) -> Result<(ErasedDeadLetters, Option<Uuid>), DbErr> {
    // Read without locks and locked by their keys, as elsewhere. Primary key, a range of it.
    let mut sql = inbox.sql(format!(
        "SELECT id, consumer, event_id, aggregate_type, {} FROM {} WHERE (aggregate_type IS NULL OR (aggregate_type = ",
        headers_column(inbox.backend()),
        inbox.dead_letters()
    ));
    sql.bind(inbox.key(&aggregate.aggregate_type))
        .push(" AND aggregate_id = ")
        .bind(inbox.key(&aggregate.id))
        .push("))");
    if let Some(after) = after {
        sql.push(" AND id > ").bind(after);
    }
    sql.push(&format!(" ORDER BY id LIMIT {LIST_MAX}"));
    let rows = database.pool().query_all_raw(sql.statement()).await?;
    let last = rows.last().map(|row| row.try_get::<Uuid>("", "id")).transpose()?;
    let (mut found, mut batch) = (Vec::new(), ErasedDeadLetters::default());
    for row in &rows {
        match is_of(row, inbox.backend(), aggregate)? {
            Some(true) => found.push(Found {
                id: row.try_get("", "id")?,
                consumer: read_consumer(row, inbox.backend())?,
                event_id: row.try_get("", "event_id")?,
            }),
            Some(false) => {}
            None => batch.unattributed += 1,
        }
    }
    if !found.is_empty() {
        let tx = database.begin().await?;
        (batch.erased, batch.busy) = erase_rows(&tx, inbox, &found).await?;
        if let Some(note) = note {
            note.count(&tx, batch.erased, &[]).await?;
        }
        // A crash before this line changes nothing.
        tx.commit().await?;
    }
    Ok((batch, last.filter(|_| rows.len() == LIST_MAX)))
}

/// Whether a row that was selected is of the aggregate; `None` if nothing says so. Names that the database refused stand in the headers only.
fn is_of(row: &QueryResult, backend: DbBackend, aggregate: &Aggregate) -> Result<Option<bool>, DbErr> {
    if read_name(row, backend, "aggregate_type")?.is_some() {
        return Ok(Some(true));
    }
    // Another program may have written headers that say nothing to this one. They must not keep the others from being erased.
    let headers = match read_headers(row) {
        Err(DbErr::Json(_)) => return Ok(None),
        headers => headers?,
    };
    let message = codec::decode(&headers, Bytes::new()).ok();
    Ok(message.map(|message| message.aggregate == *aggregate))
}

/// Returns how many were erased, and how many are busy. Primary key; dead letters first, then their inbox rows, as everybody who locks both.
async fn erase_rows(
    tx: &DatabaseTransaction,
    inbox: &InboxSql,
    found: &[Found],
) -> Result<(u64, u64), DbErr> {
    let mut sql = inbox.sql(format!("SELECT id FROM {} WHERE id IN ", inbox.dead_letters()));
    sql.bind_rows([found.iter().map(|letter| Value::from(letter.id))]);
    // On SQLite the transaction has the only write lock.
    if inbox.backend() != DbBackend::Sqlite {
        sql.push(" FOR UPDATE SKIP LOCKED");
    }
    let rows = tx.query_all_raw(sql.statement()).await?;
    let ids = rows.iter().map(|row| row.try_get("", "id"));
    let held: BTreeSet<Uuid> = ids.collect::<Result<_, _>>()?;
    let others: Vec<Value> = found
        .iter()
        .filter(|letter| !held.contains(&letter.id))
        .map(|letter| letter.id.into())
        .collect();
    let busy = still_there(tx, inbox, others).await?;
    if held.is_empty() {
        return Ok((0, busy));
    }
    let mut rows_of: BTreeMap<&str, Vec<Uuid>> = BTreeMap::new();
    for letter in found.iter().filter(|letter| held.contains(&letter.id)) {
        let ids = rows_of.entry(&letter.consumer).or_default();
        ids.extend(letter.event_id);
    }
    let mut sql = inbox.sql(format!("DELETE FROM {} WHERE id IN ", inbox.dead_letters()));
    sql.bind_rows([held.into_iter().map(Value::from)]);
    let erased = tx.execute_raw(sql.statement()).await?.rows_affected();
    for (consumer, ids) in rows_of.into_iter().filter(|(_, ids)| !ids.is_empty()) {
        // The text of a handler's error may quote the message. Status and attempts stay.
        let mut sql = inbox.sql(format!(
            "UPDATE {} SET last_error = NULL WHERE status = {DEAD} AND consumer = ",
            inbox.messages()
        ));
        sql.bind(inbox.key(consumer)).push(" AND id IN ");
        sql.bind_rows([ids.into_iter().map(Value::from)]);
        tx.execute_raw(sql.statement()).await?;
    }
    Ok((erased, busy))
}

/// How many of these dead letters are there, held by others. Primary key, no lock.
async fn still_there(tx: &DatabaseTransaction, inbox: &InboxSql, ids: Vec<Value>) -> Result<u64, DbErr> {
    if ids.is_empty() {
        return Ok(0);
    }
    let mut sql = inbox.sql(format!(
        "SELECT count(*) AS letters FROM {} WHERE id IN ",
        inbox.dead_letters()
    ));
    sql.bind_rows([ids]);
    let row = tx.query_one_raw(sql.statement()).await?;
    let row = row.ok_or_else(|| DbErr::RecordNotFound("count".to_owned()))?;
    Ok(u64::try_from(row.try_get::<i64>("", "letters")?).unwrap_or_default())
}
