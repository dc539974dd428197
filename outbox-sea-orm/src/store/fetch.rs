//! Scans the pending messages.
//!
//! Invariants: a row that cannot be read is returned with the reason, and does not fail the batch: the relay halts its aggregate, and the others
//! go on. Rows are read one by one, so a batch takes no more memory than its bound. Nothing is locked or written: leases decide who may fetch,
//! settlements what is done.

#[cfg(feature = "postgres")]
mod order;
#[cfg(feature = "postgres")]
mod returned;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use outbox_core::{
    Aggregate, Fetched, FetchedRow, Headers, Lease, Message, MessageId, RowFault, Settlement, StoreError,
    Verdict,
};
#[cfg(feature = "postgres")]
use sea_orm::DbBackend;
use sea_orm::{DbErr, QueryResult, Statement, TryGetable};
use time::OffsetDateTime;
use uuid::Uuid;

use super::fitting::{self, Bounds, Fitting};
use super::session::Session;
use super::{failed, own};
use crate::dialect::columns::Column;
use crate::dialect::fetch::Scope;
use crate::dialect::{COPIES_FROM, Dialect};

const CONTEXT: &str = "messages could not be fetched";

/// A row of a scan.
#[derive(Debug)]
pub(super) struct ScannedRow {
    pub(super) row: FetchedRow,
    /// Its place in its aggregate (`Dialect::place`). The last one if its number is damaged.
    pub(super) place: i64,
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
        self.row.with_verdict(Verdict::Waits)
    }
}

/// What fetches of one store learn from earlier ones.
#[derive(Debug, Clone, Default)]
pub(super) struct Memory {
    pub(super) fitting: Fitting,
    #[cfg(feature = "postgres")]
    returned: returned::Returned,
}

#[cfg_attr(
    not(feature = "postgres"),
    expect(clippy::unused_self, reason = "only PostgreSQL needs it")
)]
impl Memory {
    /// Before a fetch under these leases.
    pub(super) fn begin(&self, leases: &[Lease]) {
        #[cfg(feature = "postgres")]
        self.returned.begin(leases);
        #[cfg(not(feature = "postgres"))]
        let _ = leases;
    }

    /// After a fetch that returns these messages.
    pub(super) fn end(&self, due: &[FetchedRow]) {
        #[cfg(feature = "postgres")]
        self.returned.add(due);
        #[cfg(not(feature = "postgres"))]
        let _ = due;
    }

    /// Before verdicts are stored.
    pub(super) fn settle(&self, settlements: &[Settlement]) {
        #[cfg(feature = "postgres")]
        self.returned.settle(settlements);
        #[cfg(not(feature = "postgres"))]
        let _ = settlements;
    }
}

/// Rows per statement that selects by row ids: MariaDB turns lists of 1,000 and more into a join.
const ROW_IDS_MAX: usize = 500;

/// The first pending rows of each of these partitions, in the order of their row ids. Asks for as many as `fitting` says.
pub(super) async fn fetch(
    db: &Session,
    dialect: &Dialect,
    scope: Scope<'_>,
    mut bounds: Bounds,
    memory: &Memory,
) -> Result<Fetched, StoreError> {
    let fitting = &memory.fitting;
    bounds.rows = fitting.rows(bounds, usize::MAX);
    let scope = Scope {
        limit: i64::try_from(bounds.rows).unwrap_or(i64::MAX),
        ..scope
    };
    #[cfg_attr(
        not(feature = "postgres"),
        expect(unused_mut, reason = "only PostgreSQL needs it")
    )]
    let mut scan = scan(db, dialect, scope, bounds).await?;
    fitting.learn(bounds.rows, scan.payloads, scan.bytes);
    #[cfg(feature = "postgres")]
    if dialect.backend == DbBackend::Postgres {
        order::by_sequence(db, dialect, scope.in_flight, bounds, &mut scan, &memory.returned).await?;
    }
    Ok(scan.fetched())
}

async fn scan(db: &Session, dialect: &Dialect, scope: Scope<'_>, bounds: Bounds) -> Result<Scan, StoreError> {
    let mut scan = Scan::new(bounds);
    if scope.owns_all() {
        scan.read(db, dialect.scan(scope), bounds.rows).await?;
        return Ok(scan);
    }
    #[cfg(feature = "postgres")]
    if dialect.backend == DbBackend::Postgres {
        scan.read(db, dialect.scan_own(scope), bounds.rows).await?;
        // A partition that filled its share may have more.
        scan.more |= scan.most_of_one_partition() >= scope.share();
        return Ok(scan);
    }
    let first = |partitions: &[i64], limit| dialect.first_pending(partitions, limit);
    let (row_ids, more) = own::first(db, scope, first).await.map_err(failed(CONTEXT))?;
    // Rows may leave between these statements. New rows of these partitions have later row ids, and are left to the next fetch.
    for row_ids in row_ids.chunks(ROW_IDS_MAX) {
        if !scan.more {
            scan.read(db, dialect.scan_rows(row_ids), row_ids.len()).await?;
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
            let scanned = read(&row, false)?;
            rows += 1;
            self.payloads += usize::from(!scanned.has_to_wait);
            self.bytes = self.bytes.saturating_add(scanned.bytes());
            *self.met.entry(scanned.row.partition).or_default() += 1;
            self.more = !self.bounds.take(scanned.bytes());
            self.rows.push(scanned);
            if self.more {
                fitting::leave(db, asked, rows);
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

/// Reads a row. Fails only if it is not even known which one it is: any other damage is the reason why its message cannot be read.
pub(super) fn read(row: &QueryResult, waited: bool) -> Result<ScannedRow, StoreError> {
    let mut damage: Option<String> = None;
    let row_id: i64 = get(row, Column::RowId).map_err(corrupt)?;
    let id: Option<Uuid> = or_damage(column(row, Column::Id), &mut damage);
    // SQLite keeps any type in any column. No lease has such a partition, so the row stays where it is.
    let partition = or_damage(int(row, Column::Partition), &mut damage).unwrap_or_default();
    let mut key = |column: Column| {
        let (text, unreadable) = readable(column.name(), get(row, column).map_err(corrupt)?);
        damage = damage.take().or(unreadable);
        Ok::<_, StoreError>(text)
    };
    let aggregate = Aggregate::new(key(Column::AggregateType)?, key(Column::AggregateId)?);
    let payload: Option<Option<Vec<u8>>> = or_damage(column(row, Column::Payload), &mut damage);
    let sequence: Option<Option<i64>> = or_damage(column(row, Column::Sequence), &mut damage);
    let event_id: Option<Uuid> = or_damage(column(row, Column::EventId), &mut damage);
    let place = match sequence.flatten() {
        Some(_) if id != event_id => row_id.saturating_add(COPIES_FROM),
        number => number.unwrap_or(i64::MAX),
    };
    let created_micros: Option<i64> = or_damage(column(row, Column::CreatedMicros), &mut damage);
    let now: i64 = get(row, Column::NowMicros).map_err(corrupt)?;
    let age = created_micros.map_or(0, |created| now.saturating_sub(created));
    Ok(ScannedRow {
        // The SQL hands out no payload for a message that has to wait (`Dialect::columns`).
        has_to_wait: payload == Some(None),
        place,
        row: FetchedRow {
            row_id,
            id: id.map(MessageId::from),
            partition,
            // A sequence that cannot be read is one.
            sequenced: sequence != Some(None),
            attempts: counter(row, Column::Attempts),
            failures: counter(row, Column::Failures),
            waited,
            age: Duration::from_micros(u64::try_from(age).unwrap_or_default()),
            message: match damage {
                Some(damage) => Err(damage.into()),
                None => {
                    let (payload, created) = (payload.flatten(), created_micros.unwrap_or_default());
                    read_message(
                        row,
                        &aggregate,
                        sequence.flatten(),
                        created,
                        payload.unwrap_or_default(),
                    )
                    .map(Arc::new)
                }
            },
            aggregate,
        },
    })
}

/// The value; or else what is wrong, unless something else is wrong already.
fn or_damage<T>(read: Result<T, String>, damage: &mut Option<String>) -> Option<T> {
    read.map_err(|unreadable| damage.get_or_insert(unreadable)).ok()
}

/// A counter of attempts or failures. A damaged one is no reason not to publish the message; it counts as used up, so that it cannot make a failing
/// message be tried for ever.
fn counter(row: &QueryResult, column: Column) -> u32 {
    int(row, column).unwrap_or(u32::MAX)
}

fn int<T: TryFrom<i64>>(row: &QueryResult, name: Column) -> Result<T, String> {
    let value: i64 = column(row, name)?;
    T::try_from(value).map_err(|_| format!("{} is {value}", name.name()))
}

pub(super) fn corrupt(error: DbErr) -> StoreError {
    StoreError::Corrupt {
        context: format!("a row of the outbox cannot be read: {error}"),
    }
}

/// A key column as far as it is UTF-8, and what is wrong with it. Every dialect selects it as bytes.
pub(super) fn key(row: &QueryResult, column: &str) -> Result<(String, Option<String>), DbErr> {
    Ok(readable(column, row.try_get("", column)?))
}

fn readable(column: &str, bytes: Vec<u8>) -> (String, Option<String>) {
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
) -> Result<Message, RowFault> {
    RowFault::check_sizes(int(row, Column::PayloadBytes)?, int(row, Column::HeadersBytes)?)?;
    let id: Uuid = column(row, Column::Id)?;
    let event_id: Uuid = column(row, Column::EventId)?;
    let headers = Headers::from_stored(column::<String>(row, Column::Headers)?.as_bytes())?;
    let message = Message {
        id: MessageId::from(id),
        event_id: event_id.into(),
        aggregate: aggregate.clone(),
        sequence: unsigned(sequence, Column::Sequence)?,
        event_type: column(row, Column::EventType)?,
        event_version: int(row, Column::EventVersion)?,
        subject: column(row, Column::Subject)?,
        content_type: column(row, Column::ContentType)?,
        payload: payload.into(),
        headers,
        created_at: time_of(created_micros)
            .map_err(|error| format!("created_at is out of range: {error}"))?,
    };
    RowFault::check_names(&message)?;
    Ok(message)
}

/// A time from microseconds since 1970.
pub(super) fn time_of(micros: i64) -> Result<OffsetDateTime, time::error::ComponentRange> {
    OffsetDateTime::from_unix_timestamp_nanos(i128::from(micros) * 1000)
}

fn get<T: TryGetable>(row: &QueryResult, column: Column) -> Result<T, DbErr> {
    row.try_get_by_index(column as usize)
}

fn column<T: TryGetable>(row: &QueryResult, column: Column) -> Result<T, String> {
    get(row, column).map_err(|error| {
        format!(
            "{} cannot be read: {error}",
            column.name().replace("_micros", "_at")
        )
    })
}

fn unsigned<T: TryFrom<i64>>(value: Option<i64>, column: Column) -> Result<Option<T>, String> {
    value
        .map(|value| T::try_from(value).map_err(|_| format!("{} is {value}", column.name())))
        .transpose()
}
