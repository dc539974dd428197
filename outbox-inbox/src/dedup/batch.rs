//! Statements for the messages of a batch.

use std::collections::HashSet;

use sea_orm::{ConnectionTrait, DbBackend, DbErr};
use uuid::Uuid;

use super::sql::{FAILED, HANDLED, InboxSql, Key, Status};

/// Inserts rows, locks them in the order of `ids`, and returns the inserted ids.
pub(crate) async fn insert_all<C: ConnectionTrait>(
    inbox: &InboxSql,
    db: &C,
    consumer: &str,
    ids: &[Uuid],
) -> Result<HashSet<Uuid>, DbErr> {
    if inbox.backend() != DbBackend::Postgres {
        let mut inserted = HashSet::with_capacity(ids.len());
        for &id in ids {
            if inbox
                .insert(db, Key { consumer, id }, Status::Handled, 0, None)
                .await?
            {
                inserted.insert(id);
            }
        }
        return Ok(inserted);
    }
    let mut sql = inbox.sql("INSERT INTO ");
    sql.push(inbox.messages())
        .push(" (consumer, id, status, attempts, processed_at, expires_at) ");
    let texts: Vec<String> = ids.iter().map(Uuid::to_string).collect();
    sql.push("SELECT ").bind(inbox.key(consumer));
    let now = inbox.lock_limit.set_in(inbox.now());
    sql.push(&format!(", id::uuid, {HANDLED}, 0, {now}, "));
    inbox.push_expiry(&mut sql);
    sql.push(" FROM pg_catalog.unnest(pg_catalog.string_to_array(")
        .bind(texts.join(","))
        .push(", ',')) AS id");
    sql.push(" ON CONFLICT DO NOTHING RETURNING id");
    inbox.lock_limit.push_restored(&mut sql, ", ");
    db.query_all_raw(sql.statement())
        .await?
        .iter()
        .map(|row| row.try_get("", "id"))
        .collect()
}

pub(crate) async fn any_failed<C: ConnectionTrait>(
    inbox: &InboxSql,
    db: &C,
    consumer: &str,
    ids: &[Uuid],
) -> Result<bool, DbErr> {
    let mut sql = inbox.sql("SELECT status FROM ");
    sql.push(inbox.messages())
        .push(" WHERE consumer = ")
        .bind(inbox.key(consumer));
    sql.push(" AND id IN (");
    for (index, id) in ids.iter().enumerate() {
        sql.push(if index == 0 { "" } else { ", " }).bind(*id);
    }
    sql.push(")");
    let rows = db.query_all_raw(sql.statement()).await?;
    let mut done = 0;
    for row in &rows {
        done += usize::from(row.try_get::<i16>("", "status")? != FAILED);
    }
    Ok(done < ids.len())
}
