//! Blocks of aggregates, as settling and operators lock and change them.
//!
//! Invariant: whoever makes messages of an aggregate waiting, or removes its block, has locked the block before; so no message waits without a block. Blocks
//! are locked in the order of their keys.

use std::collections::BTreeMap;

use sea_orm::DbErr;

use super::session::Session;
use super::waiting::read_key;
use crate::dialect::Dialect;
use crate::dialect::key::Key;
use crate::dialect::settle::NewBlock;

/// Aggregates per statement.
const KEYS_MAX: usize = 256;

/// A block as it is, or is to be.
#[derive(Debug, Clone, Copy)]
pub(super) struct Block {
    pub(super) partition: i64,
    /// In microseconds since 1970; `None` if it is halted.
    pub(super) due_micros: Option<i64>,
    pub(super) halted_by: Option<i64>,
    pub(super) is_changed: bool,
}

/// Locks the blocks of these aggregates, as many as there are. `keys` are sorted.
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

/// Writes what was changed.
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

/// Removes those of these blocks, which are locked, that nothing waits for and that are not halted.
pub(super) async fn end(tx: &Session, dialect: &Dialect, keys: &[Key]) -> Result<(), DbErr> {
    for keys in keys.chunks(KEYS_MAX) {
        tx.execute_raw(dialect.end_blocks(keys)).await?;
    }
    Ok(())
}
