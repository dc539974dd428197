//! Writes operations down in open transactions, reads them, and ends them.
//!
//! Invariant: whoever writes an operation down has its row locked until the end of the transaction.

use outbox_core::{Operation, OperationId};
use sea_orm::{DbErr, Statement};

use super::has_code;
use super::session::Session;
use crate::dialect::Dialect;
use crate::dialect::operations::OperationsSql;

/// Writes an operation down unless it is there; returns whether it was not. Waits for a transaction that has inserted the same id (primary key).
pub(super) async fn insert(
    db: &Session,
    dialect: &Dialect,
    operation: &Operation,
    position: Option<i64>,
) -> Result<bool, DbErr> {
    let operations = dialect.operations();
    match db.execute_raw(operations.insert(operation, position)).await {
        Ok(done) => Ok(done.rows_affected() > 0),
        // MySQL only: see the statement.
        Err(error) if has_code(&error, &["23000"]) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Writes down in an open transaction an operation that is done in it.
pub(super) async fn note(
    tx: &Session,
    dialect: &Dialect,
    operation: &Operation,
    changed: u64,
) -> Result<(), DbErr> {
    insert(tx, dialect, operation, None).await?;
    tx.execute_raw(dialect.operations().finish(operation.id, Some(changed), None))
        .await?;
    Ok(())
}

/// Why an operation failed.
pub(super) enum Failed {
    Setup(String),
    Database(DbErr),
}

impl From<DbErr> for Failed {
    fn from(error: DbErr) -> Self {
        Self::Database(error)
    }
}

/// An operation as it is written down.
pub(super) async fn find(
    db: &Session,
    dialect: &Dialect,
    id: OperationId,
) -> Result<Option<Operation>, Failed> {
    let row = db.query_one_raw(dialect.operations().find(id)).await?;
    Ok(row.as_ref().map(OperationsSql::read).transpose()?)
}

/// Ends an operation that has found nothing more. If it has changed nothing at all, it is not written down.
pub(super) async fn end(
    db: &Session,
    dialect: &Dialect,
    mut operation: Operation,
) -> Result<Operation, Failed> {
    if operation.started_at.is_none() {
        let row = db.query_one_raw(dialect.clock()).await?;
        let row = row.ok_or_else(|| DbErr::RecordNotFound("clock".to_owned()))?;
        let now = super::fetch::time_of(row.try_get("", "now_micros")?);
        operation.finished_at = Some(now.map_err(|error| DbErr::Type(error.to_string()))?);
        return Ok(operation);
    }
    let finish: Statement = dialect
        .operations()
        .finish(operation.id, None, operation.position);
    db.execute_raw(finish).await?;
    Ok(find(db, dialect, operation.id).await?.unwrap_or(operation))
}
