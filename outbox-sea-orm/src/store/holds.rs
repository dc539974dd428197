//! Holds of aggregates, as settling and operators lock and change them.
//!
//! Invariant: whoever makes messages of an aggregate waiting, or ends its hold, has locked the hold before; so no message waits without a hold. Holds
//! are locked in the order of their keys.

use std::collections::BTreeMap;

use sea_orm::DbErr;

use super::held::read_key;
use super::session::Session;
use crate::dialect::Dialect;
use crate::dialect::key::Key;
use crate::dialect::settle::NewHold;

/// Aggregates per statement.
const KEYS_MAX: usize = 256;

/// A hold as it is, or is to be.
#[derive(Debug, Clone, Copy)]
pub(super) struct Hold {
    pub(super) partition: i64,
    /// In microseconds since 1970; `None` if it is halted.
    pub(super) due_micros: Option<i64>,
    pub(super) halted_by: Option<i64>,
    pub(super) is_changed: bool,
}

/// Locks the holds of these aggregates, as many as there are. `keys` are sorted.
pub(super) async fn lock(
    tx: &Session,
    dialect: &Dialect,
    keys: &[Key],
) -> Result<BTreeMap<Key, Hold>, DbErr> {
    let mut holds = BTreeMap::new();
    for keys in keys.chunks(KEYS_MAX) {
        for row in tx.query_all_raw(dialect.lock_holds(keys)).await? {
            let hold = Hold {
                partition: 0,
                due_micros: row.try_get("", "due_micros")?,
                halted_by: row.try_get("", "halted_by")?,
                is_changed: false,
            };
            holds.insert(read_key(&row)?, hold);
        }
    }
    Ok(holds)
}

/// Writes what was changed.
pub(super) async fn put(tx: &Session, dialect: &Dialect, holds: &BTreeMap<Key, Hold>) -> Result<(), DbErr> {
    let changed: Vec<NewHold> = holds
        .iter()
        .filter(|(_, hold)| hold.is_changed)
        .map(|(key, hold)| NewHold {
            key: key.clone(),
            partition: hold.partition,
            due_micros: hold.due_micros,
            halted_by: hold.halted_by,
        })
        .collect();
    for holds in changed.chunks(KEYS_MAX) {
        tx.execute_raw(dialect.put_holds(holds)).await?;
    }
    Ok(())
}

/// Ends those of these holds, which are locked, that nothing waits for and that are not halted.
pub(super) async fn end(tx: &Session, dialect: &Dialect, keys: &[Key]) -> Result<(), DbErr> {
    for keys in keys.chunks(KEYS_MAX) {
        tx.execute_raw(dialect.end_holds(keys)).await?;
    }
    Ok(())
}
