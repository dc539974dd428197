//! The columns of a fetched row.
//!
//! Invariant: queries select the columns in the order of [`Column`]. Reading columns by name would
//! double the time.

use outbox_core::message::{KEY_CHARS_MAX, ROW_HEADERS_BYTES_MAX, ROW_PAYLOAD_BYTES_MAX};
use sea_orm::DbBackend;
#[cfg(feature = "testing")]
use sea_orm::Statement;

use crate::sql::Dialect;

const NAME_BYTES_MAX: usize = KEY_CHARS_MAX * 4;

macro_rules! columns {
    ($($column:ident = $name:literal,)*) => {
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum Column {
            $($column,)*
        }

        impl Column {
            const ALL: &[Self] = &[$(Self::$column,)*];

            pub(crate) fn name(self) -> &'static str {
                match self {
                    $(Self::$column => $name,)*
                }
            }
        }
    };
}

columns! {
    RowId = "row_id",
    Partition = "partition_no",
    AggregateType = "aggregate_type",
    AggregateId = "aggregate_id",
    Attempts = "attempts",
    Failures = "failures",
    Id = "id",
    EventId = "event_id",
    Sequence = "sequence",
    EventType = "event_type",
    EventVersion = "event_version",
    Subject = "subject",
    ContentType = "content_type",
    Payload = "payload",
    Headers = "headers",
    CreatedMicros = "created_micros",
    NowMicros = "now_micros",
    PayloadBytes = "payload_bytes",
    HeadersBytes = "headers_bytes",
}

/// The payload is empty if it is too large for the reader's memory.
pub(crate) fn payload(dialect: &Dialect) -> String {
    bounded("m.payload", &octets(dialect, "m.payload"), ROW_PAYLOAD_BYTES_MAX)
}

fn bounded(column: &str, octets: &str, bytes_max: usize) -> String {
    format!("CASE WHEN {octets} <= {bytes_max} THEN {column} ELSE '' END")
}

/// PostgreSQL must convert JSON to measure it, so up to 4,000 stored bytes count as 0. Headers of 1
/// MiB cannot be compressed so far.
fn headers_octets(dialect: &Dialect) -> String {
    let octets = octets(dialect, &headers_text(dialect));
    match dialect.backend {
        DbBackend::Postgres => {
            format!("(CASE WHEN pg_catalog.pg_column_size(m.headers) <= 4000 THEN 0 ELSE {octets} END)")
        }
        _ => octets,
    }
}

/// On PostgreSQL, the length of names is not limited by the column, because a constraint would slow
/// down writers.
fn bounded_name(dialect: &Dialect, column: &str) -> String {
    match dialect.backend {
        DbBackend::Postgres => format!(
            "(CASE WHEN octet_length({column}) <= {NAME_BYTES_MAX} THEN {column} \
             ELSE pg_catalog.\"left\"({column}, {NAME_BYTES_MAX} + 1) END)"
        ),
        _ => column.to_owned(),
    }
}

fn headers_text(dialect: &Dialect) -> String {
    match dialect.backend {
        DbBackend::Postgres => "m.headers::text".to_owned(),
        _ => "m.headers".to_owned(),
    }
}

/// PostgreSQL computes `octet_length` without reading the value. SQLite's `length` of a text counts
/// characters, up to NUL.
fn octets(dialect: &Dialect, column: &str) -> String {
    match dialect.backend {
        DbBackend::Sqlite => {
            format!("length(CASE typeof({column}) WHEN 'blob' THEN {column} ELSE CAST({column} AS BLOB) END)")
        }
        _ => format!("octet_length({column})"),
    }
}

/// `payload` is null if the row must wait.
pub(crate) fn columns(dialect: &Dialect, payload: &str) -> String {
    let is_postgres = dialect.backend == DbBackend::Postgres;
    let now = dialect.statement_now();
    let expression = |column: Column| {
        let own = format!("m.{}", column.name());
        match column {
            Column::Partition | Column::Attempts | Column::Failures => dialect.int(&own),
            Column::AggregateType | Column::AggregateId => dialect.bytes(&bounded_name(dialect, &own)),
            Column::EventType | Column::Subject | Column::ContentType => bounded_name(dialect, &own),
            Column::EventId => "COALESCE(m.event_id, m.id)".to_owned(),
            Column::Payload => payload.to_owned(),
            Column::Headers => bounded(
                &headers_text(dialect),
                &headers_octets(dialect),
                ROW_HEADERS_BYTES_MAX,
            ),
            // PostgreSQL's conversion to microseconds overflows for the latest timestamps. A time
            // in the year 20000 is in range, and the reader rejects it.
            Column::CreatedMicros if is_postgres => {
                dialect.micros("LEAST(m.created_at, timestamptz '20000-01-01 00:00:00+00')")
            }
            Column::CreatedMicros => dialect.micros("m.created_at"),
            Column::NowMicros if is_postgres => format!("(SELECT {})", dialect.micros(now)),
            Column::NowMicros => dialect.micros(now),
            Column::PayloadBytes => dialect.int(&octets(dialect, "m.payload")),
            Column::HeadersBytes => dialect.int(&headers_octets(dialect)),
            _ => own,
        }
    };
    let columns = Column::ALL.iter();
    let columns: Vec<String> = columns
        .map(|column| format!("{} AS {}", expression(*column), column.name()))
        .collect();
    columns.join(", ")
}

#[cfg(feature = "testing")]
pub(crate) fn recorded(dialect: &Dialect) -> Statement {
    let columns = columns(dialect, &payload(dialect));
    dialect.statement(
        &format!("SELECT {columns} FROM {} m ORDER BY m.row_id", dialect.messages),
        [],
    )
}
