//! The handlers that are measured: each executes one small statement per message.
//!
//! Invariant: each effect adds one to a balance, so that effects can be counted.

use std::time::Duration;

use outbox_inbox::{Event, HandlerError, Metadata, Tx, idempotent_handler};
use sea_orm::sea_query::ArrayType;
use sea_orm::{ConnectionTrait, DbBackend, DbErr, Statement, Value};

use crate::load::{AGGREGATES, Moved, Stuck, account_id};

/// The table of accounts. Free room in its pages keeps an updated row on its page.
pub(super) const ACCOUNTS: &str =
    "CREATE TABLE accounts (id bigint PRIMARY KEY, balance bigint NOT NULL) WITH (fillfactor = 50)";

/// Inserts an account for each aggregate.
pub(super) const FILL_ACCOUNTS: &str =
    "INSERT INTO accounts SELECT 1000000 + n, 0 FROM generate_series(0, 999) n";

/// The time that another service takes to answer.
const ANSWER: Duration = Duration::from_millis(5);

/// The effect of one message.
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

/// The effect of one message, provided that exactly the messages before it in its aggregate took effect.
async fn credit_in_turn<C: ConnectionTrait>(
    db: &C,
    event: &Moved,
    about: &Metadata,
) -> Result<(), HandlerError> {
    let number = i64::try_from(about.sequence().unwrap_or_default()).map_err(HandlerError::fatal)?;
    let sql = "UPDATE accounts SET balance = $2 WHERE id = $1 AND balance = $2 - 1";
    let values = [event.account_id.into(), number.into()];
    let statement = Statement::from_sql_and_values(DbBackend::Postgres, sql, values);
    if db.execute_raw(statement).await?.rows_affected() == 1 {
        return Ok(());
    }
    Err(HandlerError::fatal("the message is out of turn"))
}

/// One message per transaction.
#[idempotent_handler(consumer = "one")]
pub(super) async fn one(event: Event<Moved>, tx: Tx<'_>) -> Result<(), HandlerError> {
    credit(&tx, event.account_id).await?;
    Ok(())
}

/// A hundred messages per transaction, with one statement for all of them.
#[idempotent_handler(consumer = "several", batch = 100)]
pub(super) async fn several(events: Vec<Event<Moved>>, tx: Tx<'_>) -> Result<(), HandlerError> {
    let ids = events.iter().map(|event| Value::from(event.account_id)).collect();
    let ids = Value::Array(ArrayType::BigInt, Some(Box::new(ids)));
    // A batch may hold several messages of an account, and an update changes a row once.
    let sql = "UPDATE accounts SET balance = balance + n \
               FROM (SELECT id AS account, count(*) AS n FROM unnest($1) AS id GROUP BY id) moved WHERE id = account";
    tx.execute_raw(Statement::from_sql_and_values(DbBackend::Postgres, sql, [ids]))
        .await?;
    Ok(())
}

/// A hundred messages per transaction, handled one after the other.
#[idempotent_handler(consumer = "together", batch = 100)]
pub(super) async fn together(event: Event<Moved>, tx: Tx<'_>) -> Result<(), HandlerError> {
    credit(&tx, event.account_id).await?;
    Ok(())
}

/// Without a record of handled messages. The effect must not happen twice, but nothing in the benchmark repeats it.
#[idempotent_handler(consumer = "natural", strategy = natural)]
pub(super) async fn natural(event: Event<Moved>, tx: Tx<'_>) -> Result<(), HandlerError> {
    credit(&tx, event.account_id).await?;
    Ok(())
}

/// One row per aggregate instead of one per message.
#[idempotent_handler(consumer = "sequence", strategy = sequence)]
pub(super) async fn sequence(event: Event<Moved>, tx: Tx<'_>) -> Result<(), HandlerError> {
    credit(&tx, event.account_id).await?;
    Ok(())
}

/// One message per transaction. Messages of aggregates other than the usual ones always fail.
#[idempotent_handler(consumer = "picky")]
pub(super) async fn picky(event: Event<Moved>, tx: Tx<'_>) -> Result<(), HandlerError> {
    if event.account_id >= account_id(AGGREGATES) {
        return Err(HandlerError::retry("no such account"));
    }
    credit(&tx, event.account_id).await?;
    Ok(())
}

/// One message per transaction, beside [`wait_for_ever`].
#[idempotent_handler(consumer = "mixed")]
pub(super) async fn mixed(event: Event<Moved>, tx: Tx<'_>) -> Result<(), HandlerError> {
    credit(&tx, event.account_id).await?;
    Ok(())
}

/// Waits for an external system that never answers.
#[idempotent_handler(consumer = "mixed", timeout = "500ms")]
pub(super) async fn wait_for_ever(_event: Event<Stuck>, _tx: Tx<'_>) -> Result<(), HandlerError> {
    std::future::pending().await
}

/// One message per transaction, in order.
#[idempotent_handler(consumer = "in_turn")]
pub(super) async fn in_turn(event: Event<Moved>, about: Metadata, tx: Tx<'_>) -> Result<(), HandlerError> {
    credit_in_turn(&tx, &event, &about).await
}

/// As [`in_turn`], but some messages fail at their first attempt.
#[idempotent_handler(consumer = "stumbling")]
pub(super) async fn stumbling(event: Event<Moved>, about: Metadata, tx: Tx<'_>) -> Result<(), HandlerError> {
    if about.attempt() == 1 && stumbles(event.account_id, about.sequence().unwrap_or_default()) {
        return Err(HandlerError::retry("not now"));
    }
    credit_in_turn(&tx, &event, &about).await
}

/// Selects one message in a hundred, at different places in each aggregate.
pub(super) fn stumbles(account_id: i64, number: u64) -> bool {
    (account_id.unsigned_abs() * 7 + number).is_multiple_of(100)
}

/// One message per transaction, in order, even across processes.
#[idempotent_handler(consumer = "sequence_in_turn", strategy = sequence)]
pub(super) async fn sequence_in_turn(
    event: Event<Moved>,
    about: Metadata,
    tx: Tx<'_>,
) -> Result<(), HandlerError> {
    credit_in_turn(&tx, &event, &about).await
}

/// As [`sequence_in_turn`], and waits in each transaction, as for the answer of another service.
#[idempotent_handler(consumer = "sequence_waiting", strategy = sequence)]
pub(super) async fn sequence_waiting(
    event: Event<Moved>,
    about: Metadata,
    tx: Tx<'_>,
) -> Result<(), HandlerError> {
    tokio::time::sleep(ANSWER).await;
    credit_in_turn(&tx, &event, &about).await
}

/// As [`sequence_in_turn`], but some messages fail at their first attempt.
#[idempotent_handler(consumer = "sequence_stumbling", strategy = sequence)]
pub(super) async fn sequence_stumbling(
    event: Event<Moved>,
    about: Metadata,
    tx: Tx<'_>,
) -> Result<(), HandlerError> {
    if about.attempt() == 1 && stumbles(event.account_id, about.sequence().unwrap_or_default()) {
        return Err(HandlerError::retry("not now"));
    }
    credit_in_turn(&tx, &event, &about).await
}
