//! Expired records as operators see and delete them: counted first, then deleted batch by batch, each with the operation that says so.
//!
//! Invariant: what is deleted is what [`purge`](crate::purge) deletes, by the same statements. Not here: whether the stream can still deliver what the inbox would
//! forget. An inbox asks that before each purge; whoever purges here has to ask it too.

use std::collections::BTreeMap;

use outbox_core::Operation;
use outbox_sea_orm::TableNames;
use sea_orm::{ConnectionTrait, DatabaseConnection, DbErr};

use super::{BATCH, purge_batch};
use crate::columns::{read_consumer, read_count};
use crate::dedup::sql::{DEAD, InboxSql};
use crate::operations::Note;

/// Most expired records that are counted.
pub const EXPIRED_MAX: u64 = 100_000;

/// The records of an inbox that have expired, for operators.
///
/// A running inbox deletes them by itself. Dead letters are not among them:
/// they stay until somebody decides ([`DeadLetters::discard`](crate::DeadLetters::discard)), and so does the record of a message that has one.
#[derive(Debug, Clone)]
pub struct ExpiredRecords {
    db: DatabaseConnection,
    names: TableNames,
}

/// Expired records, counted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExpiredCount {
    /// Records that a purge deletes, by consumer.
    pub consumers: BTreeMap<String, u64>,
    /// Records of dead messages that have expired. Those whose dead letter was discarded are deleted, the others stay.
    pub dead: u64,
    /// Whether these are all. Counting stops at [`EXPIRED_MAX`] records.
    pub is_complete: bool,
}

impl ExpiredRecords {
    /// Those in the tables with the default names.
    #[must_use]
    pub fn new(db: DatabaseConnection) -> Self {
        Self {
            db,
            names: TableNames::default(),
        }
    }

    outbox_core::__setters! {
        /// Sets the names of the inbox tables. Default: [`TableNames::default`].
        fn with_names(names: TableNames);
    }

    /// Counts them. Reads the index on `expires_at` up to [`EXPIRED_MAX`] records, and locks nothing.
    ///
    /// # Errors
    ///
    /// The database's error.
    pub async fn count(&self) -> Result<ExpiredCount, DbErr> {
        let sql = self.sql();
        let mut statement = sql.sql(format!(
            "SELECT consumer, status, count(*) AS records FROM \
             (SELECT consumer, status FROM {} WHERE expires_at < {} ORDER BY expires_at LIMIT {}) e GROUP BY consumer, status",
            sql.messages(),
            sql.statement_now(),
            EXPIRED_MAX + 1
        ));
        let mut count = ExpiredCount::default();
        for row in self.db.query_all_raw(statement.statement()).await? {
            let consumer = read_consumer(&row, sql.backend())?;
            let records = read_count(&row, "records")?;
            if row.try_get::<i16>("", "status")? == DEAD {
                count.dead += records;
            } else {
                *count.consumers.entry(consumer).or_default() += records;
            }
        }
        let all = count.consumers.values().sum::<u64>() + count.dead;
        count.is_complete = all <= EXPIRED_MAX;
        Ok(count)
    }

    /// Deletes the oldest of them in one transaction, at most `at_most` and at most 1,000, together with their number in the operation. With the first deletion the
    /// operation is written down. Returns how many were deleted, and whether more may be left.
    ///
    /// Passes over records that a handler holds. After a crash both the deletion and its number are there, or neither. Several processes may do this at once.
    ///
    /// # Errors
    ///
    /// The database's error, also if the table `inbox_operations` is missing; nothing was deleted then.
    ///
    /// # Cancellation
    ///
    /// Dropping the future is safe: the transaction ends in the background.
    pub async fn delete_some(&self, at_most: u32, operation: &Operation) -> Result<(u64, bool), DbErr> {
        let note = Note::new(&self.db, &self.names, operation);
        let (purged, more) = purge_batch(&self.db, &self.sql(), at_most.clamp(1, BATCH), Some(&note)).await?;
        Ok((purged.messages, more))
    }

    /// Says that the operation has ended, if it was written down. A crash before this leaves one whose end is unknown.
    ///
    /// # Errors
    ///
    /// The database's error.
    pub async fn end(&self, operation: &Operation) -> Result<(), DbErr> {
        Note::new(&self.db, &self.names, operation).end(&self.db).await
    }

    fn sql(&self) -> InboxSql {
        InboxSql::of(&self.db, &self.names)
    }
}
