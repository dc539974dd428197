//! What a fetched row is read from.
//!
//! Invariant: a column stands in the answer at its place in [`Column`], because rows are read by place: looking eighteen names up for each row takes as long
//! as reading it. Absent here: reading (`store::fetch`), and which rows.

use sea_orm::DbBackend;

use super::Dialect;

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
}

impl Column {
    const ALL: [Self; 18] = [
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
    ];

    /// Its name, in the statement and for people.
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
        }
    }
}

impl Dialect {
    /// What a row of a table `m` is read from. `payload` is an expression: null where the row has to wait.
    pub(crate) fn columns(&self, payload: &str) -> String {
        let is_postgres = self.backend == DbBackend::Postgres;
        let now = self.statement_now();
        let expression = |column: Column| {
            let own = format!("m.{}", column.name());
            match column {
                Column::Partition | Column::Attempts | Column::Failures => self.int(&own),
                Column::AggregateType | Column::AggregateId => self.bytes(&own),
                // A null takes longer to read than a value.
                Column::EventId => "COALESCE(m.event_id, m.id)".to_owned(),
                Column::Payload => payload.to_owned(),
                Column::Headers if is_postgres => format!("{own}::text"),
                Column::CreatedMicros => self.micros("m.created_at"),
                // A scalar subquery is computed once; else each row would pay for it with a third of what scanning it costs (measured).
                Column::NowMicros if is_postgres => format!("(SELECT {})", self.micros(now)),
                Column::NowMicros => self.micros(now),
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
