//! Scans the pending messages.
//!
//! Invariants: a row that cannot be read is returned with the reason, and does not fail the batch: the relay halts its aggregate, and the others
//! go on. Rows are read one by one, so a batch takes no more memory than its bound. Nothing is locked or written: leases decide who may fetch,
//! settlements what is done.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use outbox_core::{
    Aggregate, Fetched, FetchedRow, Headers, Message, MessageId, Settlement, StoreError, Verdict,
};
#[cfg(feature = "postgres")]
use sea_orm::DbBackend;
use sea_orm::{DbErr, QueryResult, Statement, TryGetable};
use time::OffsetDateTime;
use uuid::Uuid;

use super::session::Session;
use super::{failed, own};
use crate::dialect::Dialect;
use crate::dialect::columns::Column;
use crate::dialect::fetch::Scope;

const CONTEXT: &str = "messages could not be fetched";

/// Bounds of a batch, in rows and payload bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    pub(super) rows: usize,
    pub(super) bytes: usize,
}

impl Bounds {
    /// Counts a row. Returns whether another one fits.
    pub(super) fn take(&mut self, bytes: usize) -> bool {
        self.rows = self.rows.saturating_sub(1);
        let fits = bytes <= self.bytes;
        self.bytes = self.bytes.saturating_sub(bytes);
        fits && self.rows > 0
    }
}

/// A row of a scan.
#[derive(Debug)]
pub(super) struct ScannedRow {
    pub(super) row: FetchedRow,
    /// Whether the message is delayed or its aggregate blocked.
    pub(super) has_to_wait: bool,
}

impl ScannedRow {
    pub(super) fn bytes(&self) -> usize {
        self.row
            .message
            .as_ref()
            .map_or(0, |message| message.payload.len())
    }

    pub(super) fn waits(&self) -> Settlement {
        Settlement {
            row_id: self.row.row_id,
            partition: self.row.partition,
            waited: self.row.waited,
            verdict: Verdict::Waits,
        }
    }
}

/// Rows per statement that selects by row ids: MariaDB turns lists of 1,000 and more into a join.
const ROW_IDS_MAX: usize = 500;

/// The first pending rows of each of these partitions, in the order of their row ids.
pub(super) async fn fetch(
    db: &Session,
    dialect: &Dialect,
    scope: Scope<'_>,
    bounds: Bounds,
) -> Result<Fetched, StoreError> {
    let mut scan = Scan::new(bounds);
    if scope.owns_all() {
        scan.read(db, dialect.scan(scope)).await?;
        return Ok(scan.fetched);
    }
    #[cfg(feature = "postgres")]
    if dialect.backend == DbBackend::Postgres {
        scan.read(db, dialect.scan_own(scope)).await?;
        // A partition that filled its share may have more.
        scan.fetched.more |= scan.most_of_one_partition() >= scope.share();
        return Ok(scan.fetched);
    }
    let first = |partitions: &[i64], limit| dialect.first_pending(partitions, limit);
    let (row_ids, more) = own::first(db, scope, first).await.map_err(failed(CONTEXT))?;
    // Rows may leave between these statements. New rows of these partitions have later row ids, and are left to the next fetch.
    for row_ids in row_ids.chunks(ROW_IDS_MAX) {
        if !scan.fetched.more {
            scan.read(db, dialect.scan_rows(row_ids)).await?;
        }
    }
    scan.fetched.more |= more;
    Ok(scan.fetched)
}

/// A scan over pending rows.
struct Scan {
    fetched: Fetched,
    bounds: Bounds,
    /// Aggregates with a message that has to wait: their later messages wait as well.
    waiting: HashSet<Aggregate>,
    /// Number of rows by partition.
    met: HashMap<u16, i64>,
}

impl Scan {
    fn new(bounds: Bounds) -> Self {
        Self {
            fetched: Fetched::default(),
            bounds,
            waiting: HashSet::new(),
            met: HashMap::new(),
        }
    }

    /// Reads rows, until there are none left or the bounds are reached.
    async fn read(&mut self, db: &Session, statement: Statement) -> Result<(), StoreError> {
        let take = |row: QueryResult| {
            let scanned = read(&row, false)?;
            *self.met.entry(scanned.row.partition).or_default() += 1;
            self.fetched.more = !self.bounds.take(scanned.bytes());
            let is_behind = scanned.row.sequenced && self.waiting.contains(&scanned.row.aggregate);
            if scanned.has_to_wait || is_behind {
                self.fetched.waits.push(scanned.waits());
                // Also if it is only blocked: its block may end before the next statement of this fetch.
                if scanned.row.sequenced {
                    self.waiting.insert(scanned.row.aggregate);
                }
            } else {
                self.fetched.due.push(scanned.row);
            }
            Ok(!self.fetched.more)
        };
        db.each_row(statement, |error| failed(CONTEXT)(error), take).await
    }

    #[cfg(feature = "postgres")]
    fn most_of_one_partition(&self) -> i64 {
        self.met.values().copied().max().unwrap_or_default()
    }
}

/// All rows of a query, up to a bound on their payload bytes.
pub(super) async fn read_all(
    db: &Session,
    statement: Statement,
    waited: bool,
    bytes_max: usize,
) -> Result<Vec<(ScannedRow, QueryResult)>, StoreError> {
    let (mut scanned, mut bytes) = (Vec::new(), 0_usize);
    let take = |row: QueryResult| {
        let read = read(&row, waited)?;
        bytes = bytes.saturating_add(read.bytes());
        scanned.push((read, row));
        Ok(bytes <= bytes_max)
    };
    db.each_row(statement, |error| failed(CONTEXT)(error), take)
        .await?;
    Ok(scanned)
}

pub(super) fn read(row: &QueryResult, waited: bool) -> Result<ScannedRow, StoreError> {
    let int = |column| get::<i64>(row, column).map_err(corrupt);
    let (row_id, partition) = (int(Column::RowId)?, int(Column::Partition)?);
    let key = |column| get(row, column).map(|bytes| text(column.name(), bytes));
    let (aggregate_type, type_damage) = key(Column::AggregateType).map_err(corrupt)?;
    let (aggregate_id, id_damage) = key(Column::AggregateId).map_err(corrupt)?;
    let aggregate = Aggregate::new(aggregate_type, aggregate_id);
    let payload: Option<Vec<u8>> = get(row, Column::Payload).map_err(corrupt)?;
    let sequence: Option<i64> = get(row, Column::Sequence).map_err(corrupt)?;
    let created_micros = int(Column::CreatedMicros)?;
    let age = int(Column::NowMicros)?.saturating_sub(created_micros);
    // The SQL hands out no payload for a message that has to wait (`Dialect::columns`).
    let has_to_wait = payload.is_none();
    Ok(ScannedRow {
        has_to_wait,
        row: FetchedRow {
            row_id,
            partition: u16::try_from(partition).map_err(|_| StoreError::Corrupt {
                context: format!("partition {partition} of row {row_id}"),
            })?,
            sequenced: sequence.is_some(),
            attempts: u32::try_from(int(Column::Attempts)?).unwrap_or_default(),
            failures: u32::try_from(int(Column::Failures)?).unwrap_or_default(),
            waited,
            age: Duration::from_micros(u64::try_from(age).unwrap_or_default()),
            message: match (type_damage.or(id_damage), payload) {
                (Some(damage), _) => Err(damage),
                (None, payload) => {
                    let payload = payload.unwrap_or_default();
                    read_message(row, &aggregate, sequence, created_micros, payload)
                }
            },
            aggregate,
        },
    })
}

pub(super) fn corrupt(error: DbErr) -> StoreError {
    StoreError::Corrupt {
        context: format!("a row of the outbox cannot be read: {error}"),
    }
}

/// A key column as far as it is UTF-8, and what is wrong with it. Every dialect selects it as bytes.
pub(super) fn key(row: &QueryResult, column: &str) -> Result<(String, Option<String>), DbErr> {
    Ok(text(column, row.try_get("", column)?))
}

fn text(column: &str, bytes: Vec<u8>) -> (String, Option<String>) {
    match String::from_utf8(bytes) {
        Ok(text) => (text, None),
        Err(error) => {
            let readable = String::from_utf8_lossy(error.as_bytes()).into_owned();
            (readable, Some(format!("{column} is not UTF-8")))
        }
    }
}

fn read_message(
    row: &QueryResult,
    aggregate: &Aggregate,
    sequence: Option<i64>,
    created_micros: i64,
    payload: Vec<u8>,
) -> Result<Message, String> {
    let id: Uuid = column(row, Column::Id)?;
    let event_id: Uuid = column(row, Column::EventId)?;
    let headers: Headers = serde_json::from_str(&column::<String>(row, Column::Headers)?)
        .map_err(|error| format!("headers are not a JSON object of texts: {error}"))?;
    Ok(Message {
        id: MessageId::from(id),
        event_id: event_id.into(),
        aggregate: aggregate.clone(),
        sequence: unsigned(sequence, Column::Sequence)?,
        event_type: column(row, Column::EventType)?,
        event_version: unsigned(
            Some(column::<i64>(row, Column::EventVersion)?),
            Column::EventVersion,
        )?
        .unwrap_or_default(),
        subject: column(row, Column::Subject)?,
        content_type: column(row, Column::ContentType)?,
        payload: payload.into(),
        headers,
        created_at: time_of(created_micros)
            .map_err(|error| format!("created_at is out of range: {error}"))?,
    })
}

/// A time from microseconds since 1970.
pub(super) fn time_of(micros: i64) -> Result<OffsetDateTime, time::error::ComponentRange> {
    OffsetDateTime::from_unix_timestamp_nanos(i128::from(micros) * 1000)
}

fn get<T: TryGetable>(row: &QueryResult, column: Column) -> Result<T, DbErr> {
    row.try_get_by_index(column as usize)
}

fn column<T: TryGetable>(row: &QueryResult, column: Column) -> Result<T, String> {
    get(row, column).map_err(|error| format!("{} cannot be read: {error}", column.name()))
}

fn unsigned<T: TryFrom<i64>>(value: Option<i64>, column: Column) -> Result<Option<T>, String> {
    value
        .map(|value| T::try_from(value).map_err(|_| format!("{} is {value}", column.name())))
        .transpose()
}
