//! Rows of operations. A transaction that inserts or claims an operation locks its row until the
//! transaction ends.

use outbox_core::{Operation, OperationId};
use sea_orm::DbErr;

use super::sql::{self, OperationsSql};
use crate::store::has_code;
use crate::store::row::time;
use crate::store::session::Session;

/// Returns false if the operation exists. Waits for a concurrent insert of the same id.
pub(crate) async fn insert(
    db: &Session,
    operation: &Operation,
    position: Option<i64>,
) -> Result<bool, DbErr> {
    let operations = sql::operations(&db.dialect);
    match db.execute(operations.insert(operation, position)).await {
        Ok(done) => Ok(done.rows_affected() > 0),
        Err(error) if has_code(&error, &["23000"]) => Ok(false),
        Err(error) => Err(error),
    }
}

pub(crate) async fn note(tx: &Session, operation: &Operation, changed: u64) -> Result<(), DbErr> {
    insert(tx, operation, None).await?;
    finish(tx, operation.id, changed).await
}

pub(crate) async fn finish(tx: &Session, id: OperationId, changed: u64) -> Result<(), DbErr> {
    let finish = sql::operations(&tx.dialect).finish(id, Some(changed), None);
    tx.execute(finish).await.map(drop)
}

/// Returns false if another process has advanced the operation.
pub(super) async fn claim(tx: &Session, operation: &Operation, to: i64) -> Result<bool, DbErr> {
    if operation.started_at.is_none() {
        return insert(tx, operation, Some(to)).await;
    }
    let claim = sql::operations(&tx.dialect).claim(operation, to);
    Ok(tx.execute(claim).await?.rows_affected() > 0)
}

pub(super) async fn find(db: &Session, id: OperationId) -> Result<Option<Operation>, DbErr> {
    let row = db.one(sql::operations(&db.dialect).find(id)).await?;
    row.as_ref().map(OperationsSql::read).transpose()
}

pub(super) async fn end(db: &Session, mut operation: Operation) -> Result<Operation, DbErr> {
    if operation.started_at.is_none() {
        let clock = db.only(db.dialect.clock()).await?;
        operation.finished_at = Some(time(&clock, "now_micros", "the database's time")?);
        return Ok(operation);
    }
    let finish = sql::operations(&db.dialect).finish(operation.id, None, operation.position);
    db.execute(finish).await?;
    Ok(find(db, operation.id).await?.unwrap_or(operation))
}
