//! Audit log of operations on consumers and their dead letters.
//!
//! Invariant: an operation is inserted with its first change, in the same transaction.

use std::num::NonZeroU32;

use outbox_core::{Operation, OperationFilter, OperationId};
use outbox_sea_orm::{OperationsSql, TableNames};
use sea_orm::{ConnectionTrait, DatabaseConnection, DatabaseTransaction, DbErr};
use uuid::Uuid;

use crate::dedup::sql::is_duplicate_key;
use crate::pool::Pool;

const TABLE: &str = "inbox_operations";

/// Audit log of operations on consumers and dead letters, written by
/// [`DeadLetters::written_down`](crate::DeadLetters::written_down) and
/// [`PausedConsumers::written_down`](crate::PausedConsumers::written_down). Rows are never deleted
/// automatically.
#[derive(Debug, Clone)]
pub struct InboxOperations {
    db: Pool,
    names: TableNames,
}

impl InboxOperations {
    /// Uses the table with the default name.
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

    /// Lists at most `limit` operations, latest first.
    ///
    /// # Errors
    ///
    /// The database's error, also if the table is missing.
    pub async fn list(&self, filter: &OperationFilter, limit: NonZeroU32) -> Result<Vec<Operation>, DbErr> {
        let list = self.sql().list(filter, i64::from(limit.get()));
        let rows = self.db.query_all_raw(list).await?;
        rows.iter().map(OperationsSql::read).collect()
    }

    /// Returns an operation; `None` if it does not exist or changed nothing.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::list`].
    pub async fn get(&self, id: OperationId) -> Result<Option<Operation>, DbErr> {
        let row = self.db.query_one_raw(self.sql().find(id)).await?;
        row.as_ref().map(OperationsSql::read).transpose()
    }

    /// Returns the keys of the first 1,000 dead letters that an operation changed.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::list`].
    pub async fn letters_of(&self, id: OperationId) -> Result<Vec<Uuid>, DbErr> {
        let row = self.db.query_one_raw(self.sql().messages(id)).await?;
        let ids = row.as_ref().map(OperationsSql::read_ids).transpose()?;
        Ok(ids.unwrap_or_default())
    }

    fn sql(&self) -> OperationsSql {
        sql(&self.db, &self.names)
    }
}

fn sql(db: &DatabaseConnection, names: &TableNames) -> OperationsSql {
    OperationsSql::new(db.get_database_backend(), names, TABLE)
}

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

    pub(crate) async fn done(&self, tx: &DatabaseTransaction) -> Result<(), DbErr> {
        self.count(tx, 1, &[]).await?;
        tx.execute_raw(self.sql.finish(self.operation.id, None, None))
            .await?;
        Ok(())
    }

    pub(crate) async fn end(&self, db: &DatabaseConnection) -> Result<(), DbErr> {
        Pool::new(db.clone())
            .execute_raw(self.sql.finish(self.operation.id, None, None))
            .await?;
        Ok(())
    }
}
