//! Scans the pending messages.
//!
//! Invariants: a row that cannot be read is returned with the reason, and does not fail the batch: the relay halts its aggregate, and the others
//! go on. Rows are read one by one, so a batch takes no more memory than its bound. Nothing is locked or written: leases decide who may fetch,
//! settlements what is done.

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

/// Rows per statement that selects by row ids: MariaDB turns lists of 1,000 and more into a join.
const ROW_IDS_MAX: usize = 500;

/// The first pending rows of each of these partitions, in the order of their row ids. Asks for as many as fitted into earlier fetches.
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
        // A partition that filled its share may have more.
        scan.more |= scan.most_of_one_partition() >= scope.share();
        return Ok(scan);
    }
    let first = |partitions: &[i64], limit| partition::sql::first_pending(&db.dialect, partitions, limit);
    let (row_ids, more) = partition::first(db, scope, first)
        .await
        .map_err(failed(CONTEXT))?;
    // Rows may leave between these statements. New rows of these partitions have later row ids, and are left to the next fetch.
    for row_ids in row_ids.chunks(ROW_IDS_MAX) {
        if !scan.more {
            scan.read(db, sql::scan_rows(&db.dialect, row_ids), row_ids.len())
                .await?;
        }
    }
    scan.more |= more;
    Ok(scan)
}

/// A scan over pending rows.
struct Scan {
    rows: Vec<ScannedRow>,
    /// A bound ended the scan.
    more: bool,
    bounds: Bounds,
    /// Number of rows by partition.
    met: HashMap<u16, i64>,
    /// Number of payloads, and their bytes. Rows that have to wait come without.
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

    /// Reads rows, until there are none left or the bounds are reached. The statement asks for `asked` rows.
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

    /// Sorts out what has to wait.
    fn fetched(self) -> Fetched {
        let mut fetched = Fetched {
            more: self.more,
            ..Fetched::default()
        };
        // Aggregates with a message that has to wait: their later messages wait as well.
        let mut waiting: HashSet<Aggregate> = HashSet::new();
        for scanned in self.rows {
            let is_behind = scanned.row.sequenced && waiting.contains(&scanned.row.aggregate);
            if scanned.has_to_wait || is_behind {
                fetched.waits.push(scanned.waits());
                // Also if it is only blocked: its block may end before the next statement of this fetch.
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

/// Brings the first originals and the first replayed copies of an aggregate, each in their order,
/// into one order: a copy comes before the first original with a larger row id. What is beyond
/// `limit` is left out, because a row that was not read may come before it.
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
