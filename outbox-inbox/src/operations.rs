//! Operations on consumers and their dead letters: who, what and why, in the transactions of the changes.
//!
//! Invariant: an operation is written down with the first thing that it changes, so one that changed nothing leaves no trace. Not here: operations on the outbox, which
//! have a table of their own ([`OutboxAudit`](outbox_core::OutboxAudit)).

use std::num::NonZeroU32;

use outbox_core::{Operation, OperationFilter, OperationId};
use outbox_sea_orm::{OperationsSql, TableNames};
use sea_orm::{ConnectionTrait, DatabaseConnection, DatabaseTransaction, DbErr};
use uuid::Uuid;

use crate::dedup::sql::is_duplicate_key;
use crate::pool::Pool;

/// The table, without schema and prefix.
const TABLE: &str = "inbox_operations";

/// The operations that were made on the consumers of a database, and on their dead letters.
///
/// [`DeadLetters::written_down`](crate::DeadLetters::written_down) and [`PausedConsumers::written_down`](crate::PausedConsumers::written_down) write them. They are kept
/// until somebody deletes them.
#[derive(Debug, Clone)]
pub struct InboxOperations {
    db: Pool,
    names: TableNames,
}

impl InboxOperations {
    /// The operations in the table with the default name.
    #[must_use]
    pub fn new(db: DatabaseConnection) -> Self {
        Self {
            db: Pool::new(db),
            names: TableNames::default(),
        }
    }

    outbox_core::__setters! {
        /// Sets the names of the inbox tables. Default: [`TableNames::default`].
        fn with_names(names: TableNames);
    }

    /// Lists at most `limit` of them, the last one first.
    ///
    /// # Errors
    ///
    /// The database's error, also if the table is missing.
    pub async fn list(&self, filter: &OperationFilter, limit: NonZeroU32) -> Result<Vec<Operation>, DbErr> {
        let list = self.sql().list(filter, i64::from(limit.get()));
        let rows = self.db.query_all_raw(list).await?;
        rows.iter().map(OperationsSql::read).collect()
    }

    /// Reads one; `None` if there is none, or if it has changed nothing.
    ///
    /// # Errors
    ///
    /// As [`Self::list`].
    pub async fn get(&self, id: OperationId) -> Result<Option<Operation>, DbErr> {
        let row = self.db.query_one_raw(self.sql().find(id)).await?;
        row.as_ref().map(OperationsSql::read).transpose()
    }

    /// The keys of the first 1,000 dead letters that an operation has changed. Those that were handled or discarded since are gone.
    ///
    /// # Errors
    ///
    /// As [`Self::list`].
    pub async fn letters_of(&self, id: OperationId) -> Result<Vec<Uuid>, DbErr> {
        let row = self.db.query_one_raw(self.sql().messages(id)).await?;
        let ids = row.as_ref().map(OperationsSql::read_ids).transpose()?;
        Ok(ids.unwrap_or_default())
    }

    /// Writes down an operation that no transaction can hold together with what it does, such as a migration. It runs until [`finish`](Self::finish). Writing it down again
    /// changes nothing.
    ///
    /// # Errors
    ///
    /// As [`Self::list`].
    pub async fn write_down(&self, operation: &Operation) -> Result<(), DbErr> {
        match self.db.execute_raw(self.sql().insert(operation, None)).await {
            Err(error) if !is_duplicate_key(&error) => Err(error),
            _ => Ok(()),
        }
    }

    /// Says that an operation that was [written down](Self::write_down) has ended, and how many things it has changed. Does nothing if it had ended before.
    ///
    /// # Errors
    ///
    /// As [`Self::list`].
    pub async fn finish(&self, id: OperationId, changed: u64) -> Result<(), DbErr> {
        self.db
            .execute_raw(self.sql().finish(id, Some(changed), None))
            .await?;
        Ok(())
    }

    fn sql(&self) -> OperationsSql {
        sql(&self.db, &self.names)
    }
}

fn sql(db: &DatabaseConnection, names: &TableNames) -> OperationsSql {
    OperationsSql::new(db.get_database_backend(), names, TABLE)
}

/// An operation, and the table in which it is written down.
#[derive(Debug, Clone)]
pub(crate) struct Note {
    sql: OperationsSql,
    operation: Operation,
}

impl Note {
    pub(crate) fn new(db: &DatabaseConnection, names: &TableNames, operation: &Operation) -> Self {
        Self {
            sql: sql(db, names),
            operation: operation.clone(),
        }
    }

    /// Counts in an open transaction what was changed there; with the first change the operation is written down (primary key).
    pub(crate) async fn count(
        &self,
        tx: &DatabaseTransaction,
        changed: u64,
        letters: &[Uuid],
    ) -> Result<(), DbErr> {
        if changed == 0 {
            return Ok(());
        }
        match tx.execute_raw(self.sql.insert(&self.operation, None)).await {
            Err(error) if !is_duplicate_key(&error) => return Err(error),
            _ => {}
        }
        let count = self.sql.count(self.operation.id, changed, letters, false);
        tx.execute_raw(count).await?;
        Ok(())
    }

    /// Writes down in an open transaction an operation that is done in it.
    pub(crate) async fn done(&self, tx: &DatabaseTransaction) -> Result<(), DbErr> {
        self.count(tx, 1, &[]).await?;
        tx.execute_raw(self.sql.finish(self.operation.id, None, None))
            .await?;
        Ok(())
    }

    /// Says that the operation has ended, if it was written down. A crash before this leaves one whose end is unknown.
    pub(crate) async fn end(&self, db: &DatabaseConnection) -> Result<(), DbErr> {
        Pool::new(db.clone())
            .execute_raw(self.sql.finish(self.operation.id, None, None))
            .await?;
        Ok(())
    }
}
