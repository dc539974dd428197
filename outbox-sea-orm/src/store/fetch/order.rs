//! Orders each aggregate by `sequence` on PostgreSQL, where row ids may have another order.
//!
//! A data-only restore, logical replication, a major upgrade or `ALTER SEQUENCE` can reset row ids;
//! with `CACHE`, sessions draw from ranges.
//!
//! Invariant: a message is not returned while its predecessor (`sequence - 1`) is pending, unless
//! the predecessor is in flight or was returned before it.
//!
//! One query finds predecessors beyond the scan that no fetch has returned ([`Returned`]). The
//! first pending messages of their aggregates replace the scanned rows, so the relay always
//! progresses.

use std::collections::{HashMap, HashSet};

use outbox_core::store::RowKey;
use outbox_core::{Aggregate, StoreError};

use super::returned::Returned;
use super::{Bounds, CONTEXT, Scan, ScannedRow, merge_copies, sql};
use crate::sql::{COPIES_FROM, Key};
use crate::store::failed;
use crate::store::row::{self, corrupt, read_key};
use crate::store::session::Session;

pub(super) async fn by_sequence(
    db: &Session,
    in_flight: &[RowKey],
    bounds: Bounds,
    scan: &mut Scan,
    returned: &Returned,
) -> Result<(), StoreError> {
    let missing = |rows: &[ScannedRow]| predecessors(rows).map(|rows| returned.missing(rows));
    let asked = missing(&scan.rows).unwrap_or_else(|| {
        sort(&mut scan.rows);
        missing(&scan.rows).unwrap_or_default()
    });
    if !scan.more || asked.is_empty() {
        return Ok(());
    }
    let rows = db.all(sql::pending_among(&db.dialect, &asked, in_flight)).await;
    let rows = rows.map_err(failed(CONTEXT))?;
    let behind = rows.iter().map(read_key).collect::<Result<HashSet<Key>, _>>();
    let behind = behind.map_err(corrupt)?;
    if behind.is_empty() {
        return Ok(());
    }
    tracing::debug!(
        aggregates = behind.len(),
        "row ids are not in the order of sequences"
    );
    let is_behind =
        |scanned: &ScannedRow| scanned.row.sequenced && behind.contains(&Key::from(&scanned.row.aggregate));
    let scanned = scan.rows.len();
    scan.rows.retain(|scanned| !is_behind(scanned));
    let each = (scanned - scan.rows.len()) / behind.len();
    let each = i64::try_from(each.max(1)).unwrap_or(i64::MAX);
    let behind: Vec<Key> = behind.into_iter().collect();
    let first = sql::pending_of(&db.dialect, &behind, in_flight, each);
    let mut first_of: HashMap<Aggregate, Vec<ScannedRow>> = HashMap::new();
    for (scanned, _) in row::read_all(db, first, false, bounds.bytes).await? {
        let rows = first_of.entry(scanned.row.aggregate.clone()).or_default();
        rows.push(scanned);
    }
    for mut rows in first_of.into_values() {
        merge_copies(&mut rows, usize::try_from(each).unwrap_or(usize::MAX));
        scan.rows.append(&mut rows);
    }
    Ok(())
}

fn sort(rows: &mut Vec<ScannedRow>) {
    let mut places: HashMap<Aggregate, Vec<usize>> = HashMap::new();
    for (place, scanned) in rows
        .iter()
        .enumerate()
        .filter(|(_, scanned)| is_original(scanned))
    {
        let places = places.entry(scanned.row.aggregate.clone()).or_default();
        places.push(place);
    }
    let mut order: Vec<usize> = (0..rows.len()).collect();
    for places in places.into_values() {
        let mut sorted = places.clone();
        sorted.sort_by_key(|place| rows[*place].place);
        for (place, from) in places.into_iter().zip(sorted) {
            order[place] = from;
        }
    }
    let mut unsorted: Vec<Option<ScannedRow>> = rows.drain(..).map(Some).collect();
    rows.extend(order.into_iter().filter_map(|from| unsorted[from].take()));
}

fn is_original(scanned: &ScannedRow) -> bool {
    scanned.row.sequenced && scanned.place < COPIES_FROM
}

/// Originals with an unscanned predecessor. `None` if an aggregate is unsorted.
fn predecessors(rows: &[ScannedRow]) -> Option<Vec<&ScannedRow>> {
    let mut last: HashMap<&Aggregate, i64> = HashMap::new();
    let mut asked = Vec::new();
    for scanned in rows.iter().filter(|scanned| is_original(scanned)) {
        let (aggregate, number) = (&scanned.row.aggregate, scanned.place);
        let before = last.insert(aggregate, number);
        if before.is_some_and(|before| before > number) {
            return None;
        }
        if number > 1 && before != Some(number - 1) {
            asked.push(scanned);
        }
    }
    Some(asked)
}
