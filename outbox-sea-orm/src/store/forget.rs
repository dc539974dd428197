//! Forgets aggregates, for operators.
//!
//! Invariants: head rows are locked first, then blocks, then messages, so nothing sequenced is recorded meanwhile, and no relay or operator can make a
//! message pending again. Nothing unpublished is deleted. A crash leaves all of a transaction or nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use outbox_core::{Aggregate, Forgotten, Operation};
use sea_orm::{DbErr, QueryResult, Value};
use uuid::Uuid;

use super::note::note;
use super::session::Session;
use super::waiting::read_key;
use super::{blocks, repeat_deadlocks};
use crate::dialect::Dialect;
use crate::dialect::key::Key;

/// Aggregates per call, and per transaction of those that are idle.
const AGGREGATES_MAX: usize = 1_000;

/// Aggregates, or rows, per statement. Each binds two values at most.
const VALUES_MAX: usize = 256;

pub(super) async fn forget(
    db: &Session,
    dialect: &Dialect,
    aggregates: &[Aggregate],
    operation: Option<&Operation>,
) -> Result<Forgotten, DbErr> {
    if aggregates.len() > AGGREGATES_MAX {
        let count = aggregates.len();
        return Err(DbErr::Custom(format!(
            "{count} aggregates are too many; forget at most {AGGREGATES_MAX} at a time"
        )));
    }
    let keys: BTreeSet<Key> = aggregates.iter().map(Key::from).collect();
    let keys: Vec<Key> = keys.into_iter().collect();
    let (messages, left) = repeat_deadlocks!(forget_keys(db, dialect, &keys, operation))?;
    let left = aggregates
        .iter()
        .filter(|aggregate| left.contains(&Key::from(*aggregate)));
    Ok(Forgotten {
        messages,
        left: left.cloned().collect(),
    })
}

/// Returns the number of messages deleted, and the aggregates that were left.
async fn forget_keys(
    db: &Session,
    dialect: &Dialect,
    keys: &[Key],
    operation: Option<&Operation>,
) -> Result<(u64, BTreeSet<Key>), DbErr> {
    let tx = db.begin().await?;
    for keys in keys.chunks(VALUES_MAX) {
        tx.query_all_raw(dialect.lock_heads(keys)).await?;
    }
    let mut left: BTreeSet<Key> = blocks::lock(&tx, dialect, keys).await?.into_keys().collect();
    let mut rows: BTreeMap<Key, Vec<Row>> = BTreeMap::new();
    for keys in keys.chunks(VALUES_MAX) {
        let ids = tx.query_all_raw(dialect.messages_of(keys)).await?;
        let ids = ids
            .iter()
            .map(|row| row.try_get("", "id"))
            .collect::<Result<Vec<Uuid>, _>>()?;
        for ids in ids.chunks(VALUES_MAX) {
            for row in tx.query_all_raw(dialect.lock_messages_by_id(ids)).await? {
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
        tx.execute_raw(dialect.delete_messages(&ids)).await?;
        let keys: Vec<Value> = rows.iter().filter_map(|row| row.dedup_key.clone()).collect();
        if !keys.is_empty() {
            tx.execute_raw(dialect.delete_keys(&keys)).await?;
        }
    }
    let forgotten: Vec<Key> = keys.iter().filter(|key| !left.contains(key)).cloned().collect();
    delete_heads(&tx, dialect, &forgotten).await?;
    if let Some(operation) = operation.filter(|_| !forgotten.is_empty()) {
        note(&tx, dialect, operation, rows.len() as u64).await?;
    }
    tx.commit().await?;
    Ok((rows.len() as u64, left))
}

/// A message of an aggregate that may be forgotten. Locked.
struct Row {
    id: Uuid,
    is_unpublished: bool,
    dedup_key: Option<Value>,
}

impl Row {
    fn read(row: &QueryResult) -> Result<Self, DbErr> {
        let dedup_key = match row.try_get::<Option<String>>("", "dedup_key") {
            Ok(key) => key.map(Value::from),
            // Bytes on MySQL.
            Err(_) => row.try_get::<Option<Vec<u8>>>("", "dedup_key")?.map(Value::from),
        };
        Ok(Self {
            id: row.try_get("", "id")?,
            // Pending, waiting, or logged: then it is not known here whether the log relay has published it.
            is_unpublished: matches!(row.try_get::<i64>("", "status")?, 0 | 3 | 4),
            dedup_key,
        })
    }
}

pub(super) async fn forget_idle(
    db: &Session,
    dialect: &Dialect,
    aggregate_type: &str,
    idle_for: Duration,
) -> Result<u64, DbErr> {
    let (mut forgotten, mut after) = (0, None);
    loop {
        let page = dialect.idle_heads(aggregate_type, idle_for, after.as_ref(), AGGREGATES_MAX as i64);
        let page = read_keys(&db.query_all_raw(page).await?)?;
        forgotten += repeat_deadlocks!(forget_page(db, dialect, &page, idle_for))?;
        if page.len() < AGGREGATES_MAX {
            return Ok(forgotten);
        }
        after = page.into_iter().next_back();
    }
}

async fn forget_page(
    db: &Session,
    dialect: &Dialect,
    page: &[Key],
    idle_for: Duration,
) -> Result<u64, DbErr> {
    let tx = db.begin().await?;
    let mut forgotten = 0;
    for keys in page.chunks(VALUES_MAX) {
        let idle = read_keys(&tx.query_all_raw(dialect.lock_idle_heads(keys, idle_for)).await?)?;
        if idle.is_empty() {
            continue;
        }
        let unpublished = read_keys(&tx.query_all_raw(dialect.unpublished_of(&idle)).await?)?;
        let idle: Vec<Key> = idle
            .into_iter()
            .filter(|key| !unpublished.contains(key))
            .collect();
        delete_heads(&tx, dialect, &idle).await?;
        forgotten += idle.len() as u64;
    }
    tx.commit().await?;
    Ok(forgotten)
}

async fn delete_heads(tx: &Session, dialect: &Dialect, keys: &[Key]) -> Result<(), DbErr> {
    for keys in keys.chunks(VALUES_MAX) {
        tx.execute_raw(dialect.delete_heads(keys)).await?;
    }
    Ok(())
}

fn read_keys(rows: &[QueryResult]) -> Result<Vec<Key>, DbErr> {
    rows.iter().map(read_key).collect()
}
