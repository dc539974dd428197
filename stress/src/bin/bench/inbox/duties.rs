//! The measured handlers.
//!
//! Invariant: each effect adds one to a balance, so that effects can be counted.

use outbox_inbox::{Event, HandlerError, Tx, idempotent_handler};
use sea_orm::sea_query::ArrayType;
use sea_orm::{ConnectionTrait, DbBackend, DbErr, Statement, Value};

use crate::load::Moved;

/// Free space in the pages keeps an updated row on its page.
pub(super) const ACCOUNTS: &str =
    "CREATE TABLE accounts (id bigint PRIMARY KEY, balance bigint NOT NULL) WITH (fillfactor = 50)";

pub(super) const FILL_ACCOUNTS: &str =
    "INSERT INTO accounts SELECT 1000000 + n, 0 FROM generate_series(0, 999) n";

pub(super) async fn credit<C: ConnectionTrait>(db: &C, account_id: i64) -> Result<(), DbErr> {
    let sql = "UPDATE accounts SET balance = balance + 1 WHERE id = $1";
    db.execute_raw(Statement::from_sql_and_values(
        DbBackend::Postgres,
        sql,
        [account_id.into()],
    ))
    .await?;
    Ok(())
}

#[idempotent_handler(consumer = "one")]
pub(super) async fn one(event: Event<Moved>, tx: Tx<'_>) -> Result<(), HandlerError> {
    credit(&tx, event.account_id).await?;
    Ok(())
}

#[idempotent_handler(consumer = "several", batch = 100)]
pub(super) async fn several(events: Vec<Event<Moved>>, tx: Tx<'_>) -> Result<(), HandlerError> {
    let ids = events.iter().map(|event| Value::from(event.account_id)).collect();
    let ids = Value::Array(ArrayType::BigInt, Some(Box::new(ids)));
    // `UPDATE` changes each row once, but a batch may repeat an account.
    let sql = "UPDATE accounts SET balance = balance + n \
               FROM (SELECT id AS account, count(*) AS n FROM unnest($1) AS id GROUP BY id) moved WHERE id = account";
    tx.execute_raw(Statement::from_sql_and_values(DbBackend::Postgres, sql, [ids]))
        .await?;
    Ok(())
}

#[idempotent_handler(consumer = "together", batch = 100)]
pub(super) async fn together(event: Event<Moved>, tx: Tx<'_>) -> Result<(), HandlerError> {
    credit(&tx, event.account_id).await?;
    Ok(())
}

#[idempotent_handler(consumer = "natural", strategy = natural)]
pub(super) async fn natural(event: Event<Moved>, tx: Tx<'_>) -> Result<(), HandlerError> {
    credit(&tx, event.account_id).await?;
    Ok(())
}

#[idempotent_handler(consumer = "sequence", strategy = sequence)]
pub(super) async fn sequence(event: Event<Moved>, tx: Tx<'_>) -> Result<(), HandlerError> {
    credit(&tx, event.account_id).await?;
    Ok(())
}
