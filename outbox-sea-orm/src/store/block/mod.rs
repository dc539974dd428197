//! Blocks of aggregates. Lock order: by key.
//!
//! Invariant: a block is locked before messages start to wait and before its removal, so each
//! waiting message has a block.

pub(super) mod sql;

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use outbox_core::{Aggregate, BlockedAggregate};
use sea_orm::{DbErr, QueryResult};

use super::row::{read_aggregate, read_key, since};
use super::session::Session;
use crate::sql::Key;

const KEYS_MAX: usize = 256;

#[derive(Debug, Clone, Copy)]
pub(super) struct Block {
    pub(super) partition: i64,
    /// End of the block in microseconds since 1970; `None` if halted.
    pub(super) due_micros: Option<i64>,
    pub(super) halted_by: Option<i64>,
    pub(super) is_changed: bool,
}

pub(super) async fn lock(tx: &Session, keys: &[Key]) -> Result<BTreeMap<Key, Block>, DbErr> {
    let mut blocks = BTreeMap::new();
    for keys in keys.chunks(KEYS_MAX) {
        for row in tx.all(sql::lock(&tx.dialect, keys)).await? {
            let block = Block {
                partition: 0,
                due_micros: row.try_get("", "due_micros")?,
                halted_by: row.try_get("", "halted_by")?,
                is_changed: false,
            };
            blocks.insert(read_key(&row)?, block);
        }
    }
    Ok(blocks)
}

pub(super) async fn put(tx: &Session, blocks: &BTreeMap<Key, Block>) -> Result<(), DbErr> {
    let changed: Vec<(&Key, &Block)> = blocks.iter().filter(|(_, block)| block.is_changed).collect();
    for blocks in changed.chunks(KEYS_MAX) {
        tx.execute(sql::put(&tx.dialect, blocks)).await?;
    }
    Ok(())
}

/// Deletes blocks without a halt and without waiting messages. The caller must hold their locks.
pub(super) async fn end(tx: &Session, keys: &[Key]) -> Result<(), DbErr> {
    for keys in keys.chunks(KEYS_MAX) {
        tx.execute(sql::end(&tx.dialect, keys)).await?;
    }
    Ok(())
}

pub(super) async fn blocked(db: &Session, limit: NonZeroU32) -> Result<Vec<BlockedAggregate>, DbErr> {
    db.read(sql::blocked(&db.dialect, i64::from(limit.get())), read)
        .await
}

pub(super) async fn of(db: &Session, aggregate: &Aggregate) -> Result<Option<BlockedAggregate>, DbErr> {
    let row = db.one(sql::block(&db.dialect, aggregate)).await?;
    row.as_ref().map(read).transpose()
}

fn read(row: &QueryResult) -> Result<BlockedAggregate, DbErr> {
    let now: i64 = row.try_get("", "now_micros")?;
    let due: Option<i64> = row.try_get("", "due_micros")?;
    Ok(BlockedAggregate {
        aggregate: read_aggregate(row)?,
        halted_by: row.try_get("", "halted_by")?,
        blocked_for: due.map(|due| since(now, due)),
    })
}
