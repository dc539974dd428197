//! Operations on dead letters: list, count, retry, discard.
//!
//! Invariant: at most 1,000 rows per transaction, and no wait for locked rows.

use std::collections::BTreeMap;

use bytes::Bytes;
use outbox_core::payload::json_reason;
use outbox_core::{Aggregate, EventId, Operation, codec};
use outbox_sea_orm::TableNames;
use sea_orm::{
    ConnectionTrait, DatabaseConnection, DatabaseTransaction, DbBackend, DbErr, QueryResult, Value,
};
use uuid::Uuid;

use super::selection::{
    DeadLetterSelection, LetterPlace, ORDER, count_selected, push_selection, push_status, read_place,
    select_places,
};
use super::{DeadLetter, DeadLetterStatus, OPEN, RETRY};
use crate::columns::{micros, read_consumer, read_count, read_name, read_time};
use crate::database::Database;
use crate::dedup::sql::{DEAD, InboxSql};
use crate::operations::Note;

const ROWS_MAX: usize = 1_000;

/// Maximum ids in one statement. MariaDB turns a list of 1,000 or more values into a join, which
/// need not use the primary key.
pub(crate) const LIST_MAX: usize = 500;

/// The dead letters of a database: messages that consumers could not handle.
///
/// Operations on a [`DeadLetterSelection`] process its rows oldest first, at most 1,000 per
/// transaction. After an error, repeat the call: finished transactions stay committed. A dropped
/// future ends after the current transaction.
///
/// Rows in use by an inbox or another operator are skipped and not counted.
///
/// ```
/// # async fn demo(db: sea_orm::DatabaseConnection) -> Result<(), sea_orm::DbErr> {
/// use outbox_inbox::{DeadLetters, DeadLetterSelection};
///
/// let letters = DeadLetters::new(db);
/// let of_billing = DeadLetterSelection::consumer("billing");
/// let fields = outbox_core::SensitiveFields::linked();
/// for letter in letters.list(&of_billing, 20).await? {
///     println!("{} {:?}: {}", letter.id, letter.event_type, letter.error);
///     println!("{}", letter.masked_payload(&fields));
/// }
/// // After the bug was fixed and the program deployed:
/// let marked = letters.retry(&of_billing.clone().event_type("order.placed")).await?;
/// // What nobody needs any more:
/// let deleted = letters.discard(&of_billing.event_type("order.archived")).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct DeadLetters {
    db: DatabaseConnection,
    names: TableNames,
    operation: Option<Operation>,
}

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
    /// Uses the tables with the default names.
    #[must_use]
    pub fn new(db: DatabaseConnection) -> Self {
        Self {
            db,
            names: TableNames::default(),
            operation: None,
        }
    }

    /// Records all changes as one operation in the audit log
    /// ([`InboxOperations`](crate::InboxOperations)), in the transactions of the changes. Without
    /// the table `inbox_operations` a change fails.
    #[must_use]
    pub fn written_down(mut self, operation: &Operation) -> Self {
        self.operation = Some(operation.clone());
        self
    }

    outbox_core::__setters! {
        /// Sets the names of the inbox tables. Default: [`TableNames::default`].
        fn with_names(names: TableNames);
    }

    /// Lists dead letters, oldest first, at most `limit`. For the next page see
    /// [`DeadLetterSelection::after`].
    ///
    /// # Errors
    ///
    /// The database's error; [`DbErr::Type`] or [`DbErr::Json`] for a row that this crate did not
    /// write.
    pub async fn list(&self, selection: &DeadLetterSelection, limit: u32) -> Result<Vec<DeadLetter>, DbErr> {
        self.read(selection, limit, "payload").await
    }

    /// As [`Self::list`], but the returned payloads are empty.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::list`].
    pub async fn list_without_payloads(
        &self,
        selection: &DeadLetterSelection,
        limit: u32,
    ) -> Result<Vec<DeadLetter>, DbErr> {
        let nothing = match self.db.get_database_backend() {
            DbBackend::Postgres => "''::bytea AS payload",
            _ => "x'' AS payload",
        };
        self.read(selection, limit, nothing).await
    }

    async fn read(
        &self,
        selection: &DeadLetterSelection,
        limit: u32,
        payload: &str,
    ) -> Result<Vec<DeadLetter>, DbErr> {
        selection.check()?;
        let inbox = self.sql();
        let mut sql = inbox.sql(format!(
            "SELECT id, consumer, event_id, event_type, aggregate_type, aggregate_id, sequence, subject, stream_sequence, {}, {payload}, \
             error, attempts, status, {} AS created_micros FROM {}",
            headers_column(inbox.backend()),
            micros(inbox.backend(), "created_at"),
            inbox.dead_letters()
        ));
        push_selection(&mut sql, &inbox, selection);
        sql.push(ORDER).push(" LIMIT ").bind(i64::from(limit));
        let rows = self.db.query_all_raw(sql.statement()).await?;
        rows.iter().map(|row| read(row, inbox.backend())).collect()
    }

    /// Returns a dead letter, or `None` if it no longer exists.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::list`].
    pub async fn get(&self, id: Uuid) -> Result<Option<DeadLetter>, DbErr> {
        Ok(self.list(&DeadLetterSelection::ids([id]), 1).await?.pop())
    }

    /// Counts the selected dead letters by reading each selected row.
    ///
    /// # Errors
    ///
    /// The database's error.
    pub async fn count(&self, selection: &DeadLetterSelection) -> Result<u64, DbErr> {
        selection.check()?;
        let row = self
            .db
            .query_one_raw(count_selected(&self.sql(), selection))
            .await?;
        let row = row.ok_or_else(|| DbErr::RecordNotFound("count".to_owned()))?;
        read_count(&row, "letters")
    }

    /// Marks open dead letters for retry and returns their number. An inbox of the consumer retries
    /// each marked dead letter once, in stream order within an aggregate. A successful retry
    /// commits the effect and deletes the dead letter in one transaction. After a failed retry, the
    /// dead letter is open again with the new error.
    ///
    /// Later messages of the aggregate are usually handled before the retry.
    ///
    /// If a copy of the message is handled before the retry, the dead letter is deleted without a
    /// second effect.
    ///
    /// # Errors
    ///
    /// The database's error.
    pub async fn retry(&self, selection: &DeadLetterSelection) -> Result<u64, DbErr> {
        self.change(selection, Some(DeadLetterStatus::Open), Change::Status(RETRY))
            .await
    }

    /// Removes the mark of [`Self::retry`] and returns the number of reopened dead letters.
    ///
    /// # Errors
    ///
    /// The database's error.
    pub async fn cancel_retry(&self, selection: &DeadLetterSelection) -> Result<u64, DbErr> {
        self.change(selection, Some(DeadLetterStatus::Retry), Change::Status(OPEN))
            .await
    }

    /// Deletes dead letters, marked for retry or not, and returns their number. Until the inbox row
    /// expires, a redelivered copy of the message has no effect. For personal data see
    /// [`Self::erase`].
    ///
    /// # Errors
    ///
    /// The database's error.
    pub async fn discard(&self, selection: &DeadLetterSelection) -> Result<u64, DbErr> {
        self.change(selection, None, Change::Delete).await
    }

    /// Deletes the dead letters of an aggregate, of all consumers, and clears the error texts in
    /// the inbox rows of their messages. Use it together with
    /// [`OutboxAudit::forget_as`](outbox_core::OutboxAudit::forget_as).
    ///
    /// As with [`Self::discard`], a redelivered copy of a message has no effect until its inbox row
    /// expires ([`InboxConfig::retention`](crate::InboxConfig#structfield.retention)). Repeat the
    /// call until [`erased`](ErasedDeadLetters::erased) and [`busy`](ErasedDeadLetters::busy) are 0
    /// and consumers have no pending message of the aggregate.
    ///
    /// **Not erased:** dead letters without a decoded message, messages in the stream, results of
    /// handlers, error texts of messages that are not dead-lettered (until their rows expire), the
    /// aggregate id in `inbox_sequences`, logs, and backups.
    ///
    /// # Errors
    ///
    /// The database's error. On SQLite also a lock timeout, if a handler holds the write lock: call
    /// again.
    pub async fn erase(&self, aggregate: &Aggregate) -> Result<ErasedDeadLetters, DbErr> {
        let (plain, unattributed) = self.plain_of(aggregate).await?;
        let mut total = ErasedDeadLetters {
            unattributed,
            ..ErasedDeadLetters::default()
        };
        let plain = plain.chunks(LIST_MAX).map(<[Uuid]>::to_vec);
        let whole = DeadLetterSelection::all().aggregate(aggregate.clone());
        for selection in plain.map(DeadLetterSelection::ids).chain([whole]) {
            total.erased += self.change_pages(&selection, Change::Erase).await?;
            total.busy += self.count(&selection).await?;
        }
        self.end_note().await;
        // The aggregate id may be personal data.
        tracing::info!(
            aggregate_type = aggregate.aggregate_type,
            ?total,
            "dead letters of an aggregate were erased"
        );
        Ok(total)
    }

    /// Returns the keys of the aggregate's dead letters that have its name only in the headers,
    /// because the database rejected the name. Counts the dead letters of unknown aggregates.
    async fn plain_of(&self, aggregate: &Aggregate) -> Result<(Vec<Uuid>, u64), DbErr> {
        let inbox = self.sql();
        let (mut found, mut unattributed, mut after) = (Vec::new(), 0, Uuid::nil());
        loop {
            let mut sql = inbox.sql(format!(
                "SELECT id, {} FROM {} WHERE aggregate_type IS NULL AND id > ",
                headers_column(inbox.backend()),
                inbox.dead_letters()
            ));
            sql.bind(after).push(&format!(" ORDER BY id LIMIT {LIST_MAX}"));
            let rows = self.db.query_all_raw(sql.statement()).await?;
            for row in &rows {
                after = row.try_get("", "id")?;
                let headers = match read_headers(row) {
                    Err(DbErr::Json(_)) => None,
                    headers => Some(headers?),
                };
                match headers.and_then(|headers| codec::decode(&headers, Bytes::new()).ok()) {
                    Some(message) if message.aggregate == *aggregate => found.push(after),
                    Some(_) => {}
                    None => unattributed += 1,
                }
            }
            if rows.len() < LIST_MAX {
                return Ok((found, unattributed));
            }
        }
    }

    async fn change(
        &self,
        selection: &DeadLetterSelection,
        status: Option<DeadLetterStatus>,
        change: Change,
    ) -> Result<u64, DbErr> {
        selection.check()?;
        let mut selection = selection.clone();
        if let Some(status) = status
            && *selection.status.get_or_insert(status) != status
        {
            return Ok(0);
        }
        let changed = self.change_pages(&selection, change).await?;
        self.end_note().await;
        Ok(changed)
    }

    async fn change_pages(&self, selection: &DeadLetterSelection, change: Change) -> Result<u64, DbErr> {
        let (inbox, database) = (self.sql(), Database::inspect(self.db.clone()).await?);
        let (mut changed, mut selection, note) = (0, selection.clone(), self.note());
        loop {
            let (inbox, database, batch) = (inbox.clone(), database.clone(), selection.clone());
            let noted = note.clone();
            let work = async move { change_batch(&database, &inbox, &batch, change, noted.as_ref()).await };
            let (rows, last) = outbox_sea_orm::detached(work).await?;
            changed += rows;
            selection.after = last;
            if selection.after.is_none() {
                return Ok(changed);
            }
        }
    }

    async fn end_note(&self) {
        if let Some(note) = self.note()
            && let Err(error) = note.end(&self.db).await
        {
            tracing::warn!(
                error = %crate::handler::describe(&error),
                "operation on dead letters completed, but its end could not be recorded in the audit log"
            );
        }
    }

    fn note(&self) -> Option<Note> {
        let operation = self.operation.as_ref()?;
        Some(Note::new(&self.db, &self.names, operation))
    }

    fn sql(&self) -> InboxSql {
        InboxSql::of(&self.db, &self.names)
    }
}

#[derive(Debug, Clone, Copy)]
enum Change {
    Status(i16),
    Delete,
    /// Deletes the letters and the error texts of their messages.
    Erase,
}

async fn change_batch(
    database: &Database,
    inbox: &InboxSql,
    selection: &DeadLetterSelection,
    change: Change,
    note: Option<&Note>,
) -> Result<(u64, Option<LetterPlace>), DbErr> {
    let mut sql = select_places(inbox, selection);
    sql.push(ORDER).push(&format!(" LIMIT {ROWS_MAX}"));
    let rows = database.pool().query_all_raw(sql.statement()).await?;
    let page = rows.iter().map(read_place).collect::<Result<Vec<_>, _>>()?;
    let ids: Vec<Uuid> = page.iter().map(|(_, _, id)| *id).collect();
    let mut changed = 0;
    if !ids.is_empty() {
        let tx = database.begin().await?;
        let mut letters = Vec::new();
        for ids in ids.chunks(LIST_MAX) {
            letters.extend(change_rows(&tx, inbox, selection.status, change, ids).await?);
        }
        changed = letters.len() as u64;
        if let Some(note) = note {
            note.count(&tx, changed, &letters).await?;
        }
        tx.commit().await?;
    }
    Ok((changed, page.last().copied().filter(|_| page.len() == ROWS_MAX)))
}

async fn change_rows(
    tx: &DatabaseTransaction,
    inbox: &InboxSql,
    status: Option<DeadLetterStatus>,
    change: Change,
    ids: &[Uuid],
) -> Result<Vec<Uuid>, DbErr> {
    let mut sql = inbox.sql(format!(
        "SELECT id, consumer, event_id FROM {} WHERE id IN ",
        inbox.dead_letters()
    ));
    sql.bind_rows([ids.iter().copied().map(Value::from)]);
    push_status(&mut sql, status);
    if inbox.backend() != DbBackend::Sqlite {
        sql.push(" FOR UPDATE SKIP LOCKED");
    }
    let rows = tx.query_all_raw(sql.statement()).await?;
    if rows.is_empty() {
        return Ok(Vec::new());
    }
    let ids = rows.iter().map(|row| row.try_get("", "id"));
    let ids: Vec<Uuid> = ids.collect::<Result<_, _>>()?;
    let mut sql = match change {
        Change::Status(status) => inbox.sql(format!(
            "UPDATE {} SET status = {status} WHERE id IN ",
            inbox.dead_letters()
        )),
        Change::Delete | Change::Erase => {
            inbox.sql(format!("DELETE FROM {} WHERE id IN ", inbox.dead_letters()))
        }
    };
    sql.bind_rows([ids.iter().copied().map(Value::from)]);
    tx.execute_raw(sql.statement()).await?;
    if matches!(change, Change::Erase) {
        clear_errors(tx, inbox, &rows).await?;
    }
    Ok(ids)
}

/// Lock order: dead letters, then inbox rows.
async fn clear_errors(
    tx: &DatabaseTransaction,
    inbox: &InboxSql,
    letters: &[QueryResult],
) -> Result<(), DbErr> {
    let mut events: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for letter in letters {
        if let Some(event_id) = letter.try_get::<Option<Uuid>>("", "event_id")? {
            let consumer = read_consumer(letter, inbox.backend())?;
            events.entry(consumer).or_default().push(event_id.into());
        }
    }
    for (consumer, ids) in events {
        let mut sql = inbox.sql(format!(
            "UPDATE {} SET last_error = NULL WHERE status = {DEAD} AND consumer = ",
            inbox.messages()
        ));
        sql.bind(inbox.key(&consumer)).push(" AND id IN ");
        sql.bind_rows([ids]);
        tx.execute_raw(sql.statement()).await?;
    }
    Ok(())
}

pub(super) fn headers_column(backend: DbBackend) -> &'static str {
    match backend {
        DbBackend::Postgres => "headers::text AS headers",
        _ => "headers",
    }
}

fn read(row: &QueryResult, backend: DbBackend) -> Result<DeadLetter, DbErr> {
    let name = |column| read_name(row, backend, column);
    let aggregate = name("aggregate_type")?.zip(name("aggregate_id")?);
    Ok(DeadLetter {
        id: row.try_get("", "id")?,
        consumer: read_consumer(row, backend)?,
        event_id: row.try_get::<Option<Uuid>>("", "event_id")?.map(EventId::from),
        event_type: name("event_type")?,
        aggregate: aggregate.map(|(aggregate_type, id)| Aggregate::new(aggregate_type, id)),
        sequence: row
            .try_get::<Option<i64>>("", "sequence")?
            .map(i64::cast_unsigned),
        subject: row.try_get("", "subject")?,
        stream_sequence: stream_sequence(row)?,
        headers: read_headers(row)?,
        payload: row.try_get("", "payload")?,
        error: row.try_get("", "error")?,
        attempts: u32::try_from(row.try_get::<i32>("", "attempts")?).unwrap_or_default(),
        status: match row.try_get::<i16>("", "status")? {
            OPEN => DeadLetterStatus::Open,
            RETRY => DeadLetterStatus::Retry,
            other => return Err(DbErr::Type(format!("a dead letter has unknown status {other}"))),
        },
        created_at: read_time(row, "created_micros")?,
    })
}

pub(super) fn read_headers(row: &QueryResult) -> Result<Vec<(String, String)>, DbErr> {
    let headers: String = row.try_get("", "headers")?;
    serde_json::from_str(&headers).map_err(|error| {
        let id = row.try_get::<uuid::Uuid>("", "id").map(|id| id.to_string());
        DbErr::Json(format!(
            "headers of dead letter {} cannot be decoded: {}",
            id.unwrap_or_else(|_| "unknown".to_owned()),
            json_reason(&error)
        ))
    })
}

pub(super) fn stream_sequence(row: &QueryResult) -> Result<u64, DbErr> {
    Ok(row.try_get::<i64>("", "stream_sequence")?.cast_unsigned())
}
