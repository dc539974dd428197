//! Fetches pending messages. Locks and writes nothing.
//!
//! Invariants: a damaged row halts only its aggregate, not the batch. Memory stays within the batch
//! limit.

mod budget;
pub(super) mod durability;
mod order;
pub(super) mod partition;
pub(super) mod returned;
pub(super) mod sql;
pub(super) mod waiting;

use std::collections::{HashMap, HashSet};

use outbox_core::{Aggregate, Fetched, StoreError};
use sea_orm::DbBackend;
use sea_orm::{QueryResult, Statement};

pub(super) use self::budget::{Bounds, Fitting};
use self::returned::Returned;
use self::sql::Scope;
use super::failed;
use super::row::{self, ScannedRow};
use super::session::Session;
use crate::sql::COPIES_FROM;

const CONTEXT: &str = "messages could not be fetched";

/// MariaDB turns a list of 1,000 into a join.
const ROW_IDS_MAX: usize = 500;

pub(super) async fn fetch(
    db: &Session,
    scope: Scope<'_>,
    mut bounds: Bounds,
    fitting: &Fitting,
    returned: &Returned,
) -> Result<Fetched, StoreError> {
    bounds.rows = fitting.rows(bounds, usize::MAX);
    let scope = Scope {
        limit: i64::try_from(bounds.rows).unwrap_or(i64::MAX),
        ..scope
    };
    let mut scan = scan(db, scope, bounds).await?;
    fitting.learn(bounds.rows, scan.payloads, scan.bytes);
    if db.dialect.backend == DbBackend::Postgres {
        order::by_sequence(db, scope.in_flight, bounds, &mut scan, returned).await?;
    }
    Ok(scan.fetched())
}

async fn scan(db: &Session, scope: Scope<'_>, bounds: Bounds) -> Result<Scan, StoreError> {
    let mut scan = Scan::new(bounds);
    if scope.owns_all() {
        scan.read(db, sql::scan(&db.dialect, scope), bounds.rows).await?;
        return Ok(scan);
    }
    if db.dialect.backend == DbBackend::Postgres {
        scan.read(db, partition::sql::scan(&db.dialect, scope), bounds.rows)
            .await?;
        // A partition with a full share may have more.
        scan.more |= scan.most_of_one_partition() >= scope.share();
        return Ok(scan);
    }
    let first = |partitions: &[i64], limit| partition::sql::first_pending(&db.dialect, partitions, limit);
    let (row_ids, more) = partition::first(db, scope, first)
        .await
        .map_err(failed(CONTEXT))?;
    // Rows may leave meanwhile. New rows have later row ids, for the next fetch.
    for row_ids in row_ids.chunks(ROW_IDS_MAX) {
        if !scan.more {
            scan.read(db, sql::scan_rows(&db.dialect, row_ids), row_ids.len())
                .await?;
        }
    }
    scan.more |= more;
    Ok(scan)
}

struct Scan {
    rows: Vec<ScannedRow>,
    more: bool,
    bounds: Bounds,
    met: HashMap<u16, i64>,
    payloads: usize,
    bytes: usize,
}

impl Scan {
    fn new(bounds: Bounds) -> Self {
        Self {
            rows: Vec::new(),
            more: false,
            bounds,
            met: HashMap::new(),
            payloads: 0,
            bytes: 0,
        }
    }

    async fn read(&mut self, db: &Session, statement: Statement, asked: usize) -> Result<(), StoreError> {
        let mut rows = 0;
        let take = |row: QueryResult| {
            let scanned = row::read(&row, false)?;
            rows += 1;
            self.payloads += usize::from(!scanned.has_to_wait);
            self.bytes = self.bytes.saturating_add(scanned.bytes());
            *self.met.entry(scanned.row.partition).or_default() += 1;
            self.more = !self.bounds.take(scanned.bytes());
            self.rows.push(scanned);
            if self.more {
                budget::leave(db, asked, rows);
            }
            Ok(!self.more)
        };
        db.each_row(statement, |error| failed(CONTEXT)(error), take).await
    }

    fn fetched(self) -> Fetched {
        let mut fetched = Fetched {
            more: self.more,
            ..Fetched::default()
        };
        let mut waiting: HashSet<Aggregate> = HashSet::new();
        for scanned in self.rows {
            let is_behind = scanned.row.sequenced && waiting.contains(&scanned.row.aggregate);
            if scanned.has_to_wait || is_behind {
                fetched.waits.push(scanned.waits());
                // Also if blocked: the block may end before the next statement of this fetch.
                if scanned.row.sequenced {
                    waiting.insert(scanned.row.aggregate);
                }
            } else {
                fetched.due.push(scanned.row);
            }
        }
        fetched
    }

    fn most_of_one_partition(&self) -> i64 {
        self.met.values().copied().max().unwrap_or_default()
    }
}

/// A copy precedes the first original with a larger row id. Rows beyond `limit` are dropped: an
/// unread row may precede them.
pub(super) fn merge_copies(rows: &mut Vec<ScannedRow>, limit: usize) {
    let (copies, originals): (Vec<_>, Vec<_>) =
        rows.drain(..).partition(|scanned| scanned.place >= COPIES_FROM);
    let mut copies = copies.into_iter().peekable();
    for original in originals {
        while let Some(copy) = copies.next_if(|copy| copy.row.row_id < original.row.row_id) {
            rows.push(copy);
        }
        rows.push(original);
    }
    rows.extend(copies);
    rows.truncate(limit);
}
