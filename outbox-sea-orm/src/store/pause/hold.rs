//! Finds messages held without a pause, and pauses of unused aggregate types. Locks nothing: a
//! pause that begins or ends during the queries counts as standing.

use std::collections::BTreeSet;

use outbox_core::{Pause, StoreError};
use sea_orm::{DbErr, QueryResult, Statement};

use super::sql::{self, HELD_BETWEEN, held_until};
use crate::store::session::Session;
use crate::store::{SqlStore, pause, run};

const LISTED_MAX: usize = 10;

const RECENT: i64 = 1_000;

/// Result of [`SqlStore::held`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Held {
    /// As in [`OutboxStore::pauses`](outbox_core::OutboxStore::pauses).
    pub pauses: Vec<Pause>,
    /// Aggregate types with held messages but no pause. At most ten.
    pub without_pause: Vec<String>,
    /// Paused aggregate types without an aggregate, and without a message among the last 1,000.
    pub unknown_types: Vec<String>,
}

impl SqlStore {
    /// Finds messages held without a pause, and pauses of unused aggregate types.
    ///
    /// Uses three index lookups per pause. The login needs SELECT on pauses, blocks, messages and
    /// aggregates. Cancel-safe.
    ///
    /// # Errors
    ///
    /// [`StoreError::Database`] if the database fails.
    pub async fn held(&self) -> Result<Held, StoreError> {
        run!(self, "held messages could not be read" => |db| read(&db))
    }

    /// Whether the type has an aggregate, or a message among the last 1,000.
    ///
    /// Uses two index lookups. The login needs SELECT on messages and aggregates. Cancel-safe.
    ///
    /// # Errors
    ///
    /// [`StoreError::Database`] if the database fails.
    pub async fn knows_type(&self, aggregate_type: &str) -> Result<bool, StoreError> {
        let aggregate_type = aggregate_type.to_owned();
        run!(self, "the aggregate type could not be looked up" => |db| is_known(&db, &aggregate_type))
    }
}

async fn read(db: &Session) -> Result<Held, DbErr> {
    let listed = pause::read(db).await?;
    let mut known: BTreeSet<String> = types(&listed).collect();
    let mut strangers = BTreeSet::new();
    let first = |between| sql::first_held_block(&db.dialect, between);
    search(db, &known, &mut strangers, first).await?;
    let first = |between| sql::first_held_rows(&db.dialect, between);
    search(db, &known, &mut strangers, first).await?;
    let again = pause::read(db).await?;
    known.extend(types(&again));
    let mut unknown_types = Vec::new();
    for pause in listed.iter().filter(|pause| pause.stands()) {
        if let Some(aggregate_type) = &pause.aggregate_type
            && !is_known(db, aggregate_type).await?
        {
            unknown_types.push(aggregate_type.clone());
        }
    }
    Ok(Held {
        without_pause: strangers.difference(&known).cloned().collect(),
        unknown_types,
        pauses: listed,
    })
}

async fn is_known(db: &Session, aggregate_type: &str) -> Result<bool, DbErr> {
    let known = sql::knows_type(&db.dialect, aggregate_type, RECENT);
    Ok(db.one(known).await?.is_some())
}

fn types(pauses: &[Pause]) -> impl Iterator<Item = String> + '_ {
    pauses.iter().filter_map(|pause| pause.aggregate_type.clone())
}

async fn search(
    db: &Session,
    known: &BTreeSet<String>,
    strangers: &mut BTreeSet<String>,
    first: impl Fn((i64, i64)) -> Statement,
) -> Result<(), DbErr> {
    let (mut after, end) = HELD_BETWEEN;
    let times: BTreeSet<i64> = known.iter().map(|name| held_until(name.as_bytes())).collect();
    for before in times.into_iter().chain([end]) {
        while let Some(row) = db.one(first((after, before))).await? {
            let (aggregate_type, time) = held(&row)?;
            strangers.insert(aggregate_type);
            after = time.max(after) + 500_000;
            if strangers.len() >= LISTED_MAX {
                return Ok(());
            }
        }
        after = before;
    }
    Ok(())
}

fn held(row: &QueryResult) -> Result<(String, i64), DbErr> {
    let aggregate_type: Vec<u8> = row.try_get("", "aggregate_type")?;
    let aggregate_type = String::from_utf8_lossy(&aggregate_type).into_owned();
    Ok((aggregate_type, row.try_get("", "held_micros")?))
}
