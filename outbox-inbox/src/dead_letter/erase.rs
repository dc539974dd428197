//! Erases the dead letters of an aggregate: each dead letter is deleted or counted as busy.

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

/// Result of [`DeadLetters::erase`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ErasedDeadLetters {
    /// Number of deleted dead letters of the aggregate.
    pub erased: u64,
    /// Number of remaining dead letters, which an inbox or another operator is using. Call again.
    pub busy: u64,
    /// Number of dead letters of all consumers without a decoded message. Their aggregate is
    /// unknown.
    pub unattributed: u64,
}

impl DeadLetters {
    /// Deletes the dead letters of an aggregate, of all consumers, and clears the error texts in
    /// the inbox rows of their messages. Use it together with
    /// [`OutboxAudit::forget_as`](outbox_core::OutboxAudit::forget_as).
    ///
    /// As with [`Self::discard`], a redelivered copy of a message has no effect until its inbox row
    /// expires ([`InboxConfig::retention`](crate::InboxConfig#structfield.retention)). Repeat the
    /// call until [`erased`](ErasedDeadLetters::erased) and [`busy`](ErasedDeadLetters::busy) are 0
    /// and consumers have no pending message of the aggregate.
    ///
    /// The call reads all dead letters once, without locks. Each transaction deletes at most 500
    /// dead letters. After an error, call again: finished transactions stay committed.
    ///
    /// **Not erased:** messages in the stream, results of handlers, error texts of messages that
    /// are not dead-lettered (until their rows expire), the aggregate id in `inbox_sequences`,
    /// logs, and backups.
    ///
    /// # Errors
    ///
    /// The database's error. On SQLite also a lock timeout, if a handler holds the write lock: call
    /// again.
    ///
    /// # Cancellation
    ///
    /// Dropping the future ends it after the current transaction.
    pub async fn erase(&self, aggregate: &Aggregate) -> Result<ErasedDeadLetters, DbErr> {
        let (inbox, database) = (self.sql(), Database::inspect(self.db.clone()).await?);
        let (mut total, mut after) = (ErasedDeadLetters::default(), None);
        let note = self.note();
        loop {
            let (inbox, database, whose) = (inbox.clone(), database.clone(), aggregate.clone());
            let noted = note.clone();
            let work = async move { erase_batch(&database, &inbox, &whose, after, noted.as_ref()).await };
            let (batch, last) = outbox_sea_orm::detached(work).await?;
            total.erased += batch.erased;
            total.busy += batch.busy;
            total.unattributed += batch.unattributed;
            after = last;
            if after.is_none() {
                self.end_note().await;
                // The aggregate id may be personal data.
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

struct Found {
    id: Uuid,
    consumer: String,
    event_id: Option<Uuid>,
}

async fn erase_batch(
    database: &Database,
    inbox: &InboxSql,
    aggregate: &Aggregate,
    after: Option<Uuid>,
    note: Option<&Note>,
) -> Result<(ErasedDeadLetters, Option<Uuid>), DbErr> {
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
        tx.commit().await?;
    }
    Ok((batch, last.filter(|_| rows.len() == LIST_MAX)))
}

/// Whether a dead letter belongs to the aggregate, `None` if unknown. Names that the database
/// rejected are only in the headers.
fn is_of(row: &QueryResult, backend: DbBackend, aggregate: &Aggregate) -> Result<Option<bool>, DbErr> {
    if read_name(row, backend, "aggregate_type")?.is_some() {
        return Ok(Some(true));
    }
    let headers = match read_headers(row) {
        Err(DbErr::Json(_)) => return Ok(None),
        headers => headers?,
    };
    let message = codec::decode(&headers, Bytes::new()).ok();
    Ok(message.map(|message| message.aggregate == *aggregate))
}

/// Deletes by primary key. Lock order: dead letters, then inbox rows.
async fn erase_rows(
    tx: &DatabaseTransaction,
    inbox: &InboxSql,
    found: &[Found],
) -> Result<(u64, u64), DbErr> {
    let mut sql = inbox.sql(format!("SELECT id FROM {} WHERE id IN ", inbox.dead_letters()));
    sql.bind_rows([found.iter().map(|letter| Value::from(letter.id))]);
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
