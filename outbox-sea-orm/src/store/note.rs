//! Writes operations down in open transactions.
//!
//! Invariant: whoever writes an operation down has its row locked until the end of the transaction.

use outbox_core::Operation;
use sea_orm::DbErr;

use super::has_code;
use super::session::Session;
use crate::dialect::Dialect;

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
