//! Finds the first row ids of each partition on MariaDB and SQLite.
//!
//! Invariant: per partition, the result is a gapless prefix of the rows not in flight, although
//! snapshots differ between statements.

pub(crate) mod sql;

use std::collections::{BTreeMap, HashSet};

use sea_orm::{DbErr, QueryResult, Statement};

use crate::store::fetch::sql::Scope;
use crate::store::session::Session;

#[derive(Default)]
struct Found {
    own: Vec<(i64, i64)>,
    read: i64,
}

/// Returns row ids, and whether there may be more. `look_up(partitions, n)` selects the first `n`
/// rows of each partition as (`partition_no`, `place`, `row_id`).
pub(crate) async fn first(
    db: &Session,
    scope: Scope<'_>,
    look_up: impl Fn(&[i64], i64) -> Statement,
) -> Result<(Vec<i64>, bool), DbErr> {
    let in_flight: HashSet<i64> = scope.in_flight.iter().map(|key| key.row_id).collect();
    let (share, in_flight_rows) = (scope.share(), in_flight.len() as i64);
    let (mut firsts, mut more) = (Vec::new(), false);
    let mut open = scope.partitions.to_vec();
    // A partition with more than twice the average number of rows in flight is queried again, for
    // four times as many rows.
    let mut beside = 2 * in_flight_rows / (open.len().max(1) as i64) + 1;
    while !open.is_empty() {
        let limit = share + beside.min(in_flight_rows);
        let is_enough = beside >= in_flight_rows;
        beside *= 4;
        let rows = db.all(look_up(&open, limit)).await?;
        open.clear();
        for (partition, mut found) in by_partition(&rows, &in_flight)? {
            if found.read == limit && (found.own.len() as i64) < share && !is_enough {
                open.push(partition);
                continue;
            }
            more |= found.read == limit || found.own.len() as i64 > share;
            found.own.sort_unstable();
            found.own.truncate(usize::try_from(share).unwrap_or(usize::MAX));
            firsts.append(&mut found.own);
        }
    }
    firsts.sort_unstable();
    let limit = usize::try_from(scope.limit).unwrap_or(usize::MAX);
    more |= firsts.len() > limit;
    firsts.truncate(limit);
    Ok((firsts.into_iter().map(|(_, row_id)| row_id).collect(), more))
}

fn by_partition(rows: &[QueryResult], in_flight: &HashSet<i64>) -> Result<BTreeMap<i64, Found>, DbErr> {
    let mut partitions: BTreeMap<i64, Found> = BTreeMap::new();
    for row in rows {
        let found = partitions.entry(row.try_get("", "partition_no")?).or_default();
        found.read += 1;
        let row_id = row.try_get("", "row_id")?;
        if !in_flight.contains(&row_id) {
            found.own.push((row.try_get("", "place")?, row_id));
        }
    }
    Ok(partitions)
}
