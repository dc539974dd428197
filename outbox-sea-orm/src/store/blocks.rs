//! Locks, writes and removes the blocks of aggregates, for settling and for operators.
//!
//! Invariant: before messages of an aggregate become waiting, and before its block is removed, the block is locked. So no message waits without
//! a block. Blocks are locked in the order of their keys.

use std::collections::BTreeMap;

use sea_orm::DbErr;

use super::session::Session;
use super::waiting::read_key;
use crate::dialect::Dialect;
use crate::dialect::key::Key;
use crate::dialect::settle::NewBlock;

/// Aggregates per statement.
const KEYS_MAX: usize = 256;

/// A block as it was read, or as it will be written.
#[derive(Debug, Clone, Copy)]
pub(super) struct Block {
    pub(super) partition: i64,
    /// When the block ends, in microseconds since 1970; `None` if the aggregate is halted.
    pub(super) due_micros: Option<i64>,
    pub(super) halted_by: Option<i64>,
    pub(super) is_changed: bool,
}

/// Locks and reads those of these aggregates' blocks that exist. `keys` must be sorted.
pub(super) async fn lock(
    tx: &Session,
    dialect: &Dialect,
    keys: &[Key],
) -> Result<BTreeMap<Key, Block>, DbErr> {
    let mut blocks = BTreeMap::new();
    for keys in keys.chunks(KEYS_MAX) {
        for row in tx.query_all_raw(dialect.lock_blocks(keys)).await? {
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

/// Writes the changed blocks.
pub(super) async fn put(tx: &Session, dialect: &Dialect, blocks: &BTreeMap<Key, Block>) -> Result<(), DbErr> {
    let changed: Vec<NewBlock> = blocks
        .iter()
        .filter(|(_, block)| block.is_changed)
        .map(|(key, block)| NewBlock {
            key: key.clone(),
            partition: block.partition,
            due_micros: block.due_micros,
            halted_by: block.halted_by,
        })
        .collect();
    for blocks in changed.chunks(KEYS_MAX) {
        tx.execute_raw(dialect.put_blocks(blocks)).await?;
    }
    Ok(())
}

/// Removes the blocks of these aggregates, except where a message waits or the aggregate is halted. The blocks must be locked.
pub(super) async fn end(tx: &Session, dialect: &Dialect, keys: &[Key]) -> Result<(), DbErr> {
    for keys in keys.chunks(KEYS_MAX) {
        tx.execute_raw(dialect.end_blocks(keys)).await?;
    }
    Ok(())
}
