//! Fetches waiting messages that are due. Locks nothing.
//!
//! Invariant: a waiting message is not returned while an earlier message of its aggregate is
//! pending and not in flight (left by a crashed relay). All statements read one snapshot: no
//! message becomes waiting between them.

use std::collections::{BTreeMap, HashMap, HashSet};

use outbox_core::store::RowKey;
use outbox_core::{Fetched, StoreError};
use sea_orm::DbBackend;
use sea_orm::{DbErr, QueryResult};

use super::sql::{self, Scope};
use super::{Bounds, Fitting, partition};
use crate::sql::Key;
use crate::store::failed;
use crate::store::row::{ScannedRow, corrupt, read_all, read_key, row_key};
use crate::store::session::Session;

const CONTEXT: &str = "waiting messages could not be fetched";

const AGGREGATES_MAX: usize = 64;

/// If more messages are pending, the relay must publish them before waiting messages.
const PENDING_MAX: i64 = 5_000;

#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) partitions: Vec<i64>,
    pub(crate) in_flight: Vec<RowKey>,
    pub(crate) excluding: Vec<Key>,
    pub(crate) per_aggregate: i64,
    pub(crate) bounds: Bounds,
    pub(crate) fitting: Fitting,
}

const UNKNOWN_ROWS: usize = 64;

struct Group {
    due_micros: i64,
    rows: Vec<ScannedRow>,
}

pub(crate) async fn fetch(db: &Session, request: Request) -> Result<Fetched, StoreError> {
    let tx = db.snapshot().await.map_err(failed(CONTEXT))?;
    let mut groups = blocked_groups(&tx, &request).await?;
    if !groups.is_empty() {
        let barrier = Barrier::read(&tx, &request, &groups).await?;
        for group in &mut groups {
            let open = group.rows.iter().take_while(|scanned| !barrier.stops(scanned));
            group.rows.truncate(open.count());
        }
    }
    let (groups_of_one, more) = unsequenced(&tx, &request).await?;
    groups.extend(groups_of_one);
    tx.commit().await.map_err(failed(CONTEXT))?;
    groups.sort_by_key(|group| group.due_micros);
    let mut fetched = answer(groups, request.bounds);
    fetched.more |= more;
    Ok(fetched)
}

async fn blocked_groups(tx: &Session, request: &Request) -> Result<Vec<Group>, StoreError> {
    let rows_max = i64::try_from(request.bounds.rows).unwrap_or(i64::MAX);
    // If the first message of a block is in flight, the fetch returns nothing for this block.
    let in_flight = i64::try_from(request.in_flight.len()).unwrap_or(i64::MAX);
    let scope = Scope {
        partitions: &request.partitions,
        in_flight: &[],
        limit: rows_max.saturating_add(in_flight),
    };
    let statement = if scope.owns_all() {
        sql::ended_blocks(&tx.dialect, scope, &request.excluding)
    } else {
        // All rows in flight may be in one partition.
        let share = Scope {
            limit: rows_max,
            ..scope
        };
        let per_partition = share.share().saturating_add(in_flight);
        partition::sql::ended_blocks(&tx.dialect, scope, per_partition, &request.excluding)
    };
    let blocks = tx.all(statement).await.map_err(failed(CONTEXT))?;
    let block = |row| Ok((read_key(row)?, row.try_get::<i64>("", "due_micros")?));
    let blocks: Result<Vec<_>, DbErr> = blocks.iter().map(block).collect();
    let mut blocks = blocks.map_err(corrupt)?;
    blocks.sort_by_key(|(_, due_micros)| *due_micros);
    blocks.truncate(usize::try_from(scope.limit).unwrap_or(usize::MAX));
    let keys: Vec<Key> = blocks.iter().map(|(key, _)| key.clone()).collect();
    let (mut groups, mut left) = (HashMap::<Key, Vec<ScannedRow>>::new(), request.bounds);
    let (mut keys, mut unknown) = (keys.as_slice(), UNKNOWN_ROWS);
    while !keys.is_empty() && left.rows > 0 && left.bytes > 0 {
        let of_any_number = Bounds {
            rows: usize::MAX,
            ..left
        };
        let fitting = request.fitting.rows(of_any_number, unknown);
        unknown = unknown.saturating_mul(4);
        let per_aggregate = usize::try_from(request.per_aggregate).unwrap_or(usize::MAX);
        let per_aggregate = per_aggregate.min(fitting);
        let aggregates = (fitting / per_aggregate).min(AGGREGATES_MAX);
        let (next, later) = keys.split_at(aggregates.min(keys.len()));
        keys = later;
        let asked = Bounds {
            rows: per_aggregate,
            ..left
        };
        for (scanned, key) in oldest_waiting(tx, request, next, asked).await? {
            left.take(scanned.bytes());
            groups.entry(key).or_default().push(scanned);
        }
    }
    let groups = blocks.into_iter().filter_map(|(key, due_micros)| {
        let rows = groups.remove(&key)?;
        Some(Group { due_micros, rows })
    });
    Ok(groups.collect())
}

async fn oldest_waiting(
    tx: &Session,
    request: &Request,
    keys: &[Key],
    each: Bounds,
) -> Result<Vec<(ScannedRow, Key)>, StoreError> {
    let per_aggregate = i64::try_from(each.rows).unwrap_or(i64::MAX);
    let statement = match tx.dialect.backend {
        DbBackend::Postgres => sql::waiting_of(&tx.dialect, keys, &request.in_flight, per_aggregate),
        _ => {
            let in_flight: HashSet<i64> = request.in_flight.iter().map(|key| key.row_id).collect();
            let limit = per_aggregate.saturating_add(in_flight.len() as i64);
            let rows = tx.all(sql::waiting_row_ids_of(&tx.dialect, keys, limit)).await;
            let mut row_ids = vec![Vec::new(); keys.len()];
            for row in rows.map_err(failed(CONTEXT))? {
                let (row_id, key_no) = (int(&row, "row_id")?, int(&row, "key_no")?);
                if !in_flight.contains(&row_id)
                    && let Some(row_ids) = usize::try_from(key_no).ok().and_then(|n| row_ids.get_mut(n))
                {
                    row_ids.push(row_id);
                }
            }
            for row_ids in &mut row_ids {
                row_ids.sort_unstable();
                row_ids.truncate(each.rows);
            }
            let row_ids: Vec<i64> = row_ids.into_iter().flatten().collect();
            if row_ids.is_empty() {
                return Ok(Vec::new());
            }
            sql::waiting_rows(&tx.dialect, &row_ids)
        }
    };
    let rows = read_all(tx, statement, true, each.bytes).await?;
    learn(&request.fitting, each.rows.saturating_mul(keys.len()), &rows);
    rows.into_iter()
        .map(|(scanned, row)| Ok((scanned, read_key(&row).map_err(corrupt)?)))
        .collect()
}

fn learn(fitting: &Fitting, asked: usize, rows: &[(ScannedRow, QueryResult)]) {
    let payloads = rows.iter().filter(|(scanned, _)| !scanned.has_to_wait);
    let bytes = payloads.clone().map(|(scanned, _)| scanned.bytes()).sum();
    fitting.learn(asked, payloads.count(), bytes);
}

fn int(row: &QueryResult, column: &str) -> Result<i64, StoreError> {
    row.try_get("", column).map_err(corrupt)
}

async fn unsequenced(tx: &Session, request: &Request) -> Result<(Vec<Group>, bool), StoreError> {
    let asked = request.fitting.rows(request.bounds, UNKNOWN_ROWS);
    let scope = Scope {
        partitions: &request.partitions,
        in_flight: &request.in_flight,
        limit: i64::try_from(asked).unwrap_or(i64::MAX),
    };
    let statement = match tx.dialect.backend {
        DbBackend::Postgres => partition::sql::unsequenced(&tx.dialect, scope, &request.excluding),
        _ => {
            let first = |partitions: &[i64], limit| {
                partition::sql::first_unsequenced(&tx.dialect, partitions, limit, &request.excluding)
            };
            let (row_ids, _) = partition::first(tx, scope, first)
                .await
                .map_err(failed(CONTEXT))?;
            if row_ids.is_empty() {
                return Ok((Vec::new(), false));
            }
            sql::unsequenced_rows(&tx.dialect, &row_ids)
        }
    };
    let rows = read_all(tx, statement, true, request.bounds.bytes).await?;
    learn(&request.fitting, asked, &rows);
    let share = usize::try_from(scope.share()).unwrap_or(usize::MAX);
    let more = asked < request.bounds.rows && rows.len() >= share;
    let groups = rows.into_iter().map(|(scanned, row)| {
        Ok(Group {
            due_micros: row.try_get("", "due_micros").map_err(corrupt)?,
            rows: vec![scanned],
        })
    });
    Ok((groups.collect::<Result<_, StoreError>>()?, more))
}

fn answer(groups: Vec<Group>, mut bounds: Bounds) -> Fetched {
    let mut fetched = Fetched::default();
    for Group { rows, .. } in groups {
        for (n, scanned) in rows.into_iter().enumerate() {
            if fetched.more {
                return fetched;
            }
            if scanned.has_to_wait {
                // Only an aggregate's first waiting row prolongs its block.
                if n == 0 {
                    fetched.waits.push(scanned.waits());
                    fetched.more = !bounds.take(0);
                }
                break;
            }
            fetched.more = !bounds.take(scanned.bytes());
            fetched.due.push(scanned.row);
        }
    }
    fetched
}

#[derive(Default)]
struct Barrier {
    /// Lowest pending row id per aggregate.
    pending: HashMap<Key, i64>,
    /// Last row id read per partition, if the partition has more pending rows.
    known_until: HashMap<i64, i64>,
}

impl Barrier {
    async fn read(tx: &Session, request: &Request, groups: &[Group]) -> Result<Self, StoreError> {
        let mut highest: BTreeMap<i64, i64> = BTreeMap::new();
        for last in groups.iter().filter_map(|group| group.rows.last()) {
            let row_id = highest.entry(i64::from(last.row.partition)).or_default();
            *row_id = last.row.row_id.max(*row_id);
        }
        let in_flight: HashSet<RowKey> = request.in_flight.iter().copied().collect();
        let bounds: Vec<(i64, i64)> = highest.into_iter().collect();
        let limit = PENDING_MAX / (bounds.len().max(1) as i64) + in_flight.len() as i64;
        let rows = tx
            .all(partition::sql::pending_below(&tx.dialect, &bounds, limit))
            .await;
        let mut barrier = Self::default();
        let mut read: HashMap<i64, (i64, i64)> = HashMap::new();
        for row in rows.map_err(failed(CONTEXT))? {
            let (partition, found) = (int(&row, "partition_no")?, row_key(&row).map_err(corrupt)?);
            let (count, last) = read.entry(partition).or_default();
            (*count, *last) = (*count + 1, found.row_id.max(*last));
            if !in_flight.contains(&found) {
                let key = read_key(&row).map_err(corrupt)?;
                let lowest = barrier.pending.entry(key).or_insert(found.row_id);
                *lowest = found.row_id.min(*lowest);
            }
        }
        let cut = read.into_iter().filter(|(_, (count, _))| *count >= limit);
        barrier.known_until = cut.map(|(partition, (_, last))| (partition, last)).collect();
        Ok(barrier)
    }

    fn stops(&self, scanned: &ScannedRow) -> bool {
        let row_id = scanned.row.row_id;
        let known_until = self.known_until.get(&i64::from(scanned.row.partition));
        let pending = self.pending.get(&Key::from(&scanned.row.aggregate));
        known_until.is_some_and(|known| *known < row_id) || pending.is_some_and(|pending| *pending < row_id)
    }
}
