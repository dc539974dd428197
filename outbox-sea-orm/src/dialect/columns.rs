//! The columns of a fetched row.
//!
//! Invariant: each column has the place in the result that it has in [`Column`]. `store::fetch` reads rows by place, because looking up twenty
//! names takes as long as reading the row.

use outbox_core::message::{KEY_CHARS_MAX, ROW_HEADERS_BYTES_MAX, ROW_PAYLOAD_BYTES_MAX};
use sea_orm::DbBackend;

use super::Dialect;

/// Most bytes of a name: 255 characters.
const NAME_BYTES_MAX: usize = KEY_CHARS_MAX * 4;

/// The columns, in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Column {
    RowId,
    Partition,
    AggregateType,
    AggregateId,
    Attempts,
    Failures,
    Id,
    EventId,
    Sequence,
    EventType,
    EventVersion,
    Subject,
    ContentType,
    Payload,
    Headers,
    CreatedMicros,
    NowMicros,
    IsDelayed,
    PayloadBytes,
    HeadersBytes,
}

impl Column {
    const ALL: [Self; 20] = [
        Self::RowId,
        Self::Partition,
        Self::AggregateType,
        Self::AggregateId,
        Self::Attempts,
        Self::Failures,
        Self::Id,
        Self::EventId,
        Self::Sequence,
        Self::EventType,
        Self::EventVersion,
        Self::Subject,
        Self::ContentType,
        Self::Payload,
        Self::Headers,
        Self::CreatedMicros,
        Self::NowMicros,
        Self::IsDelayed,
        Self::PayloadBytes,
        Self::HeadersBytes,
    ];

    /// Its name in the statement and in errors.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::RowId => "row_id",
            Self::Partition => "partition_no",
            Self::AggregateType => "aggregate_type",
            Self::AggregateId => "aggregate_id",
            Self::Attempts => "attempts",
            Self::Failures => "failures",
            Self::Id => "id",
            Self::EventId => "event_id",
            Self::Sequence => "sequence",
            Self::EventType => "event_type",
            Self::EventVersion => "event_version",
            Self::Subject => "subject",
            Self::ContentType => "content_type",
            Self::Payload => "payload",
            Self::Headers => "headers",
            Self::CreatedMicros => "created_micros",
            Self::NowMicros => "now_micros",
            Self::IsDelayed => "is_delayed",
            Self::PayloadBytes => "payload_bytes",
            Self::HeadersBytes => "headers_bytes",
        }
    }
}

impl Dialect {
    /// The payload of a table `m`, or an empty value in place of one that the reader has no memory
    /// for.
    pub(crate) fn payload(&self) -> String {
        format!(
            "CASE WHEN {} <= {ROW_PAYLOAD_BYTES_MAX} THEN m.payload ELSE '' END",
            self.octets("m.payload")
        )
    }

    /// The size of the headers in bytes, 0 if they are known to be small. PostgreSQL converts a JSON
    /// value to measure it. It stores no more than 4,000 bytes of a value of more than 1 MiB only if the
    /// value repeats itself more than 255 times, which no compression method of the server can use.
    fn headers_octets(&self) -> String {
        let octets = self.octets(&self.headers_text());
        match self.backend {
            DbBackend::Postgres => {
                format!("(CASE WHEN pg_catalog.pg_column_size(m.headers) <= 4000 THEN 0 ELSE {octets} END)")
            }
            _ => octets,
        }
    }

    /// A name, or its beginning if it is longer than any recorded name. The columns of MySQL and
    /// SQLite bound their names themselves. On PostgreSQL a constraint would cost each writer more
    /// than this costs the relay.
    fn bounded_name(&self, column: &str) -> String {
        match self.backend {
            DbBackend::Postgres => format!(
                "(CASE WHEN octet_length({column}) <= {NAME_BYTES_MAX} THEN {column} \
                 ELSE pg_catalog.\"left\"({column}, {NAME_BYTES_MAX} + 1) END)"
            ),
            _ => column.to_owned(),
        }
    }

    fn headers_text(&self) -> String {
        match self.backend {
            DbBackend::Postgres => "m.headers::text".to_owned(),
            _ => "m.headers".to_owned(),
        }
    }

    /// The size of a column in bytes. PostgreSQL reads it without the value. SQLite's `length` of a text counts characters and ends at NUL.
    fn octets(&self, column: &str) -> String {
        match self.backend {
            DbBackend::Sqlite => format!(
                "length(CASE typeof({column}) WHEN 'blob' THEN {column} ELSE CAST({column} AS BLOB) END)"
            ),
            _ => format!("octet_length({column})"),
        }
    }

    /// The selected columns of a table `m`. `payload` is an expression, null if the row has to wait.
    pub(crate) fn columns(&self, payload: &str) -> String {
        let is_postgres = self.backend == DbBackend::Postgres;
        let now = self.statement_now();
        let expression = |column: Column| {
            let own = format!("m.{}", column.name());
            match column {
                Column::Partition | Column::Attempts | Column::Failures => self.int(&own),
                Column::AggregateType | Column::AggregateId => self.bytes(&self.bounded_name(&own)),
                Column::EventType | Column::Subject | Column::ContentType => self.bounded_name(&own),
                // A null takes longer to read than a value.
                Column::EventId => "COALESCE(m.event_id, m.id)".to_owned(),
                Column::Payload => payload.to_owned(),
                Column::Headers => format!(
                    "CASE WHEN {} <= {ROW_HEADERS_BYTES_MAX} THEN {} ELSE '' END",
                    self.headers_octets(),
                    self.headers_text()
                ),
                // The server counts no microseconds of the last of its years. No message is from the year 20000, so the reader finds it damaged.
                Column::CreatedMicros if is_postgres => {
                    self.micros("LEAST(m.created_at, timestamptz '20000-01-01 00:00:00+00')")
                }
                Column::CreatedMicros => self.micros("m.created_at"),
                // A scalar subquery is computed once. Computed for each row, it would take a third of the scan's time (measured).
                Column::NowMicros if is_postgres => format!("(SELECT {})", self.micros(now)),
                Column::NowMicros => self.micros(now),
                Column::PayloadBytes => self.int(&self.octets("m.payload")),
                Column::HeadersBytes => self.int(&self.headers_octets()),
                Column::IsDelayed => self.flag(&format!("m.available_at > {now}")),
                _ => own,
            }
        };
        Column::ALL
            .map(|column| format!("{} AS {}", expression(column), column.name()))
            .join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_stand_at_their_places() {
        for (place, column) in Column::ALL.into_iter().enumerate() {
            assert_eq!(column as usize, place, "{column:?}");
        }
    }
}
