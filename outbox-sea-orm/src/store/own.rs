//! Finds the first rows of partitions by their row ids, where one statement cannot give the rows themselves (MariaDB, SQLite).
//!
//! Invariant: of each partition the keys are the first ones that are not in flight, with none left out between them. Each statement has a snapshot of its own,
//! which is enough, because order matters within a partition only. Absent here: PostgreSQL, which needs one statement for both.

use std::collections::{BTreeMap, HashSet};

use sea_orm::{DbErr, QueryResult, Statement};

use super::session::Session;
use crate::dialect::fetch::Scope;

/// What a partition gave: places and row ids of rows, and how many rows were read.
#[derive(Default)]
struct Found {
    own: Vec<(i64, i64)>,
    read: i64,
}

/// Row ids of the first rows of each partition, at most its share and together at most the limit, in the order of their places; and whether there may be
/// more. `look_up` asks for the first so many rows of some partitions, as (`partition_no`, `place`, `row_id`).
pub(super) async fn first(
    db: &Session,
    scope: Scope<'_>,
    look_up: impl Fn(&[i64], i64) -> Statement,
) -> Result<(Vec<i64>, bool), DbErr> {
    let in_flight: HashSet<i64> = scope.in_flight.iter().copied().collect();
    let (share, in_flight_rows) = (scope.share(), in_flight.len() as i64);
    let (mut firsts, mut more) = (Vec::new(), false);
    let mut open = scope.partitions.to_vec();
    // What is in flight is mostly spread over the partitions. One that has more of it than twice its part is asked again, for four times as much. The fewer
    // have that much, so however it is spread, no more is read than the limit and a few times what is in flight.
    let mut beside = 2 * in_flight_rows / (open.len().max(1) as i64) + 1;
    while !open.is_empty() {
        let limit = share + beside.min(in_flight_rows);
        let is_enough = beside >= in_flight_rows;
        beside *= 4;
        let rows = db.query_all_raw(look_up(&open, limit)).await?;
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
