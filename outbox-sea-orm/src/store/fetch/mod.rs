//! Fetches pending messages. Locks and writes nothing.
//!
//! Invariants: a damaged row halts only its aggregate, not the batch. Memory stays within the batch
//! limit.

mod budget;
pub(super) mod durability;
pub(super) mod partition;
pub(super) mod sql;
pub(super) mod waiting;

use std::collections::HashSet;

use outbox_core::message::PARTITIONS;
use outbox_core::{Aggregate, Fetched, StoreError};
use sea_orm::DbBackend;
use sea_orm::{QueryResult, Statement};

pub(super) use self::budget::{Bounds, Fitting};
use self::sql::Scope;
use super::failed;
use super::row::{self, ScannedRow};
use super::session::Session;

const CONTEXT: &str = "messages could not be fetched";

/// MariaDB turns a list of 1,000 row ids into a join.
const ROW_IDS_MAX: usize = 500;

pub(super) async fn fetch(
    db: &Session,
    scope: Scope<'_>,
    mut bounds: Bounds,
    fitting: &Fitting,
) -> Result<Fetched, StoreError> {
    bounds.rows = fitting.rows(bounds, usize::MAX);
    let scope = Scope {
        limit: i64::try_from(bounds.rows).unwrap_or(i64::MAX),
        ..scope
    };
    let scan = scan(db, scope, bounds).await?;
    fitting.learn(bounds.rows, scan.payloads, scan.bytes);
    Ok(scan.fetched)
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
        // A partition that returned its maximum number of rows may have more pending rows.
        scan.fetched.more |= scan.most_of_one_partition() >= scope.share();
        return Ok(scan);
    }
    let first = |partitions: &[i64], limit| partition::sql::first_pending(&db.dialect, partitions, limit);
    let (row_ids, more) = partition::first(db, scope, first)
        .await
        .map_err(failed(CONTEXT))?;
    // Rows may be settled before the next statement reads them. New rows have later row ids, so the
    // next fetch returns them.
    for row_ids in row_ids.chunks(ROW_IDS_MAX) {
        if !scan.fetched.more {
            scan.read(db, sql::scan_rows(&db.dialect, row_ids), row_ids.len())
                .await?;
        }
    }
    scan.fetched.more |= more;
    Ok(scan)
}

struct Scan {
    fetched: Fetched,
    bounds: Bounds,
    /// Aggregates with a waiting message. Later messages of these aggregates must wait.
    waiting: HashSet<Aggregate>,
    rows_by_partition: [i64; PARTITIONS as usize],
    payloads: usize,
    bytes: usize,
}

impl Scan {
    fn new(bounds: Bounds) -> Self {
        Self {
            fetched: Fetched::default(),
            bounds,
            waiting: HashSet::new(),
            rows_by_partition: [0; PARTITIONS as usize],
            payloads: 0,
            bytes: 0,
        }
    }

    async fn read(&mut self, db: &Session, statement: Statement, asked: usize) -> Result<(), StoreError> {
        let mut rows = 0;
        let take = |row: QueryResult| {
            let scanned = row::read(&row, false)?;
            rows += 1;
            let bytes = scanned.bytes();
            self.payloads += usize::from(!scanned.has_to_wait);
            self.bytes = self.bytes.saturating_add(bytes);
            if let Some(rows) = self.rows_by_partition.get_mut(usize::from(scanned.row.partition)) {
                *rows += 1;
            }
            self.fetched.more = !self.bounds.take(bytes);
            self.add(scanned);
            if self.fetched.more {
                budget::leave(db, asked, rows);
            }
            Ok(!self.fetched.more)
        };
        db.each_row(statement, |error| failed(CONTEXT)(error), take).await
    }

    fn add(&mut self, scanned: ScannedRow) {
        let is_behind = scanned.row.sequenced && self.waiting.contains(&scanned.row.aggregate);
        if !scanned.has_to_wait && !is_behind {
            self.fetched.due.push(scanned.row);
            return;
        }
        self.fetched.waits.push(scanned.waits());
        // Later messages of a blocked aggregate wait, because the block may end before the fetch's
        // next statement.
        if scanned.row.sequenced {
            self.waiting.insert(scanned.row.aggregate);
        }
    }

    fn most_of_one_partition(&self) -> i64 {
        self.rows_by_partition.iter().copied().max().unwrap_or_default()
    }
}
