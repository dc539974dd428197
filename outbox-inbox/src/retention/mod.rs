//! Deletes expired inbox rows.
//!
//! Invariants: a row is deleted only after its `expires_at`, by the database's clock, and only
//! while no transaction locks the row. The row of a dead-lettered message stays as long as its dead
//! letter. Sequences are never deleted.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use sea_orm::{ConnectionTrait, DatabaseConnection, DatabaseTransaction, DbBackend, DbErr, Statement, Value};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::columns::{plus_micros, read_consumer};
use crate::database::Database;
use crate::dead_letter::{LIST_MAX, id_of_message};
use crate::dedup::sql::{DEAD, InboxSql};
use crate::handler::describe;
use crate::operate::interval::Rounds;

pub(crate) const BATCH: u32 = 1_000;

/// Microseconds by which a dead row with a dead letter is put off. Otherwise the row would stay
/// first among the expired rows.
const PUT_OFF_MICROS: &str = "86400000000";

pub(crate) async fn purge_batch(
    db: &DatabaseConnection,
    sql: &InboxSql,
    batch: u32,
) -> Result<(u64, bool), DbErr> {
    let (db, sql) = (db.clone(), sql.clone());
    outbox_sea_orm::detached(async move {
        let tx = Database::inspect(db).await?.begin().await?;
        let (messages, expired) = purge_messages(&tx, &sql, batch).await?;
        tx.commit().await?;
        Ok((messages, expired >= batch as usize))
    })
    .await
}

async fn purge_messages(tx: &DatabaseTransaction, sql: &InboxSql, batch: u32) -> Result<(u64, usize), DbErr> {
    let rows = tx.query_all_raw(expired(sql, batch)).await?;
    let (mut doomed, mut dead): (Groups, BTreeMap<Uuid, (Value, Uuid)>) = Default::default();
    for row in &rows {
        let id: Uuid = row.try_get("", "id")?;
        let name = read_consumer(row, sql.backend())?;
        if row.try_get::<i16>("", "status")? == DEAD {
            dead.insert(id_of_message(&name, id), (sql.key(&name), id));
        }
        doomed.entry(name).or_default().push(id);
    }
    let kept = with_letters(tx, sql, dead).await?;
    for (name, id) in &kept {
        let mut put_off = sql.sql(format!(
            "UPDATE {} SET expires_at = {}",
            sql.messages(),
            plus_micros(sql.backend(), sql.now(), PUT_OFF_MICROS)
        ));
        put_off
            .push(" WHERE consumer = ")
            .bind(name.clone())
            .push(" AND id = ")
            .bind(*id);
        tx.execute_raw(put_off.statement()).await?;
    }
    let mut deleted = 0;
    for (name, ids) in doomed {
        let name = sql.key(&name);
        let ids: Vec<Uuid> = ids
            .into_iter()
            .filter(|id| !kept.contains(&(name.clone(), *id)))
            .collect();
        for ids in ids.chunks(LIST_MAX) {
            let mut delete = sql.sql(format!("DELETE FROM {} WHERE consumer = ", sql.messages()));
            delete.bind(name.clone()).push(" AND id IN ");
            delete.bind_rows([ids.iter().copied().map(Value::from)]);
            deleted += tx.execute_raw(delete.statement()).await?.rows_affected();
        }
    }
    Ok((deleted, rows.len()))
}

/// Selects expired rows by the index on `expires_at`. Locked rows are skipped, because a claim
/// extends the expiry. On SQLite the transaction has the only write lock.
pub(crate) fn expired(sql: &InboxSql, batch: u32) -> Statement {
    let mut expired = sql.sql(format!(
        "SELECT consumer, id, status FROM {}{} WHERE expires_at < {} ORDER BY expires_at LIMIT {batch}",
        sql.messages(),
        // Without the index hint, MySQL would lock every row that it sorts.
        if sql.backend() == DbBackend::MySql {
            " FORCE INDEX (inbox_messages_expires_at)"
        } else {
            ""
        },
        sql.statement_now()
    ));
    if sql.backend() != DbBackend::Sqlite {
        expired.push(" FOR UPDATE SKIP LOCKED");
    }
    expired.statement()
}

type Groups = BTreeMap<String, Vec<Uuid>>;

/// Returns the rows that have dead letters. The dead letters need no lock: a transaction that
/// changes the row with its dead letter must lock the row.
async fn with_letters(
    tx: &DatabaseTransaction,
    sql: &InboxSql,
    mut dead: BTreeMap<Uuid, (Value, Uuid)>,
) -> Result<Vec<(Value, Uuid)>, DbErr> {
    let letters: Vec<Uuid> = dead.keys().copied().collect();
    let mut kept = Vec::new();
    for letters in letters.chunks(LIST_MAX) {
        let mut select = sql.sql(format!("SELECT id FROM {} WHERE id IN ", sql.dead_letters()));
        select.bind_rows([letters.iter().copied().map(Value::from)]);
        for row in tx.query_all_raw(select.statement()).await? {
            kept.extend(dead.remove(&row.try_get("", "id")?));
        }
    }
    Ok(kept)
}

pub(crate) async fn run<F: Future<Output = bool>>(
    db: DatabaseConnection,
    sql: InboxSql,
    every: Duration,
    may_forget: impl Fn() -> F,
    stop: CancellationToken,
) {
    let batch = || async {
        if !may_forget().await {
            return Ok((0, false));
        }
        purge_batch(&db, &sql, BATCH).await
    };
    repeat("inbox_messages", batch, every, stop).await;
}

/// After a full batch, the purge pauses as long as the batch took. After the last batch, it pauses
/// for 0.5 to 1.5 times `every`, so that processes started together do not purge together.
pub(crate) async fn repeat<F>(
    table: &'static str,
    batch: impl Fn() -> F,
    every: Duration,
    stop: CancellationToken,
) where
    F: Future<Output = Result<(u64, bool), DbErr>>,
{
    let rounds = Rounds { every, stop };
    while rounds.pause(0.5..1.5).await {
        let mut rows = 0;
        loop {
            let started = Instant::now();
            match batch().await {
                Ok((deleted, more)) => {
                    rows += deleted;
                    if !more {
                        break;
                    }
                }
                Err(error) => {
                    tracing::warn!(table, error = %describe(&error), "expired rows could not be deleted, retried later");
                    break;
                }
            }
            if rounds
                .answer(tokio::time::sleep(started.elapsed()))
                .await
                .is_none()
            {
                return;
            }
        }
        if rows > 0 {
            tracing::debug!(table, rows, "expired rows deleted");
        }
    }
}

#[cfg(test)]
mod tests;
