//! Deletes the state of aggregates, for operators. No unpublished message is deleted.
//!
//! Lock order: aggregate rows, blocks, messages. Until the transaction ends, no sequenced message
//! of the aggregates is recorded or becomes pending.

mod sql;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use outbox_core::{Aggregate, Forgotten, Operation};
use sea_orm::{DbErr, QueryResult, Value};
use uuid::Uuid;

use super::audit::record::note;
use super::row::read_key;
use super::session::Session;
use super::{block, repeat_deadlocks};
use crate::sql::Key;

const AGGREGATES_MAX: usize = 1_000;

const VALUES_MAX: usize = 256;

pub(super) async fn forget(
    db: &Session,
    aggregates: &[Aggregate],
    operation: &Operation,
) -> Result<Forgotten, DbErr> {
    if aggregates.len() > AGGREGATES_MAX {
        let count = aggregates.len();
        return Err(DbErr::Custom(format!(
            "{count} aggregates are too many; forget at most {AGGREGATES_MAX} at a time"
        )));
    }
    let keys: BTreeSet<Key> = aggregates.iter().map(Key::from).collect();
    let keys: Vec<Key> = keys.into_iter().collect();
    let (messages, left) = repeat_deadlocks!(forget_keys(db, &keys, operation))?;
    let left = aggregates
        .iter()
        .filter(|aggregate| left.contains(&Key::from(*aggregate)));
    Ok(Forgotten {
        messages,
        left: left.cloned().collect(),
    })
}

async fn forget_keys(
    db: &Session,
    keys: &[Key],
    operation: &Operation,
) -> Result<(u64, BTreeSet<Key>), DbErr> {
    let tx = db.begin().await?;
    for keys in keys.chunks(VALUES_MAX) {
        tx.all(sql::lock_heads(&db.dialect, keys, None)).await?;
    }
    let mut left: BTreeSet<Key> = block::lock(&tx, keys).await?.into_keys().collect();
    let mut rows: BTreeMap<Key, Vec<Row>> = BTreeMap::new();
    for keys in keys.chunks(VALUES_MAX) {
        let id = |row: &QueryResult| row.try_get::<Uuid>("", "id");
        let ids = tx.read(sql::messages_of(&db.dialect, keys), id).await?;
        for ids in ids.chunks(VALUES_MAX) {
            for row in tx.all(sql::lock_messages_by_id(&db.dialect, ids)).await? {
                let key = read_key(&row)?;
                let row = Row::read(&row)?;
                if row.is_unpublished {
                    left.insert(key.clone());
                }
                rows.entry(key).or_default().push(row);
            }
        }
    }
    rows.retain(|key, _| !left.contains(key));
    let rows: Vec<Row> = rows.into_values().flatten().collect();
    for rows in rows.chunks(VALUES_MAX) {
        let ids: Vec<Uuid> = rows.iter().map(|row| row.id).collect();
        tx.execute(sql::delete_messages(&db.dialect, &ids)).await?;
        let keys: Vec<Value> = rows.iter().filter_map(|row| row.dedup_key.clone()).collect();
        if !keys.is_empty() {
            tx.execute(sql::delete_keys(&db.dialect, &keys)).await?;
        }
    }
    let forgotten: Vec<Key> = keys.iter().filter(|key| !left.contains(key)).cloned().collect();
    delete_heads(&tx, &forgotten).await?;
    if !forgotten.is_empty() {
        note(&tx, operation, rows.len() as u64).await?;
    }
    tx.commit().await?;
    Ok((rows.len() as u64, left))
}

struct Row {
    id: Uuid,
    is_unpublished: bool,
    dedup_key: Option<Value>,
}

impl Row {
    fn read(row: &QueryResult) -> Result<Self, DbErr> {
        let dedup_key = match row.try_get::<Option<String>>("", "dedup_key") {
            Ok(key) => key.map(Value::from),
            Err(_) => row.try_get::<Option<Vec<u8>>>("", "dedup_key")?.map(Value::from),
        };
        Ok(Self {
            id: row.try_get("", "id")?,
            // Unpublished: pending, waiting, or in the log and possibly not yet published by a log
            // relay.
            is_unpublished: matches!(row.try_get::<i64>("", "status")?, 0 | 3 | 4),
            dedup_key,
        })
    }
}

pub(super) async fn forget_idle(
    db: &Session,
    aggregate_type: &str,
    idle_for: Duration,
) -> Result<u64, DbErr> {
    let (mut forgotten, mut after) = (0, None);
    loop {
        let page = sql::idle_heads(
            &db.dialect,
            aggregate_type,
            idle_for,
            after.as_ref(),
            AGGREGATES_MAX as i64,
        );
        let page = db.read(page, read_key).await?;
        forgotten += repeat_deadlocks!(forget_page(db, &page, idle_for))?;
        if page.len() < AGGREGATES_MAX {
            return Ok(forgotten);
        }
        after = page.into_iter().next_back();
    }
}

async fn forget_page(db: &Session, page: &[Key], idle_for: Duration) -> Result<u64, DbErr> {
    let tx = db.begin().await?;
    let mut forgotten = 0;
    for keys in page.chunks(VALUES_MAX) {
        let mut idle = tx
            .read(sql::lock_heads(&db.dialect, keys, Some(idle_for)), read_key)
            .await?;
        if idle.is_empty() {
            continue;
        }
        let unpublished = tx.read(sql::unpublished_of(&db.dialect, &idle), read_key).await?;
        idle.retain(|key| !unpublished.contains(key));
        delete_heads(&tx, &idle).await?;
        forgotten += idle.len() as u64;
    }
    tx.commit().await?;
    Ok(forgotten)
}

async fn delete_heads(tx: &Session, keys: &[Key]) -> Result<(), DbErr> {
    for keys in keys.chunks(VALUES_MAX) {
        tx.execute(sql::delete_heads(&tx.dialect, keys)).await?;
    }
    Ok(())
}
