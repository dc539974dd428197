//! Decodes rows from PostgreSQL's plugin `pgoutput`, in its binary format (PostgreSQL's
//! documentation, "Logical Replication Message Formats").
//!
//! Invariant: columns are found by name, so more columns or another order change nothing. A message
//! with a readable id and aggregate never fails the reading: any other error becomes the reason why
//! the message cannot be published.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, Bytes};
use outbox_core::log::{LoggedMessage, Position};
use outbox_core::{Aggregate, FetchedRow, Headers, Message, MessageId, RowFault, StoreError};
use time::OffsetDateTime;
use uuid::Uuid;

use super::sql::LOGGED;

const EPOCH_MICROS: i64 = 946_684_800_000_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Column {
    RowId,
    Id,
    EventId,
    PartitionNo,
    AggregateType,
    AggregateId,
    Sequence,
    EventType,
    EventVersion,
    Subject,
    ContentType,
    Payload,
    Headers,
    CreatedAt,
    AvailableAt,
    Status,
}

/// In the order of [`Column`].
const COLUMNS: [&str; 16] = [
    "row_id",
    "id",
    "event_id",
    "partition_no",
    "aggregate_type",
    "aggregate_id",
    "sequence",
    "event_type",
    "event_version",
    "subject",
    "content_type",
    "payload",
    "headers",
    "created_at",
    "available_at",
    "status",
];

impl Column {
    fn name(self) -> &'static str {
        COLUMNS[self as usize]
    }
}

#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Transaction {
    pub(crate) xid: u32,
    /// Position after the transaction's commit.
    pub(crate) passed_from: Position,
}

/// Indexes into [`COLUMNS`]; other columns are skipped.
type Columns = Vec<Option<usize>>;

/// Decodes rows. Column names are looked up once per table, because a backlog has many rows.
#[derive(Debug, Default)]
pub(crate) struct Decoder {
    tables: HashMap<u32, Columns>,
    pub(crate) has_described: bool,
}

impl Decoder {
    /// Returns the row if its status is `logged`. Pending rows are published by the table relay.
    pub(crate) fn take(
        &mut self,
        transaction: Transaction,
        mut data: Bytes,
    ) -> Result<Option<LoggedMessage>, StoreError> {
        match data.try_get_u8().map_err(truncated)? {
            b'R' => {
                let (oid, columns) = table(&mut data)?;
                self.tables.insert(oid, columns);
                self.has_described = true;
                Ok(None)
            }
            b'I' => {
                let oid = data.try_get_u32().map_err(truncated)?;
                let Some(columns) = self.tables.get(&oid) else {
                    return Err(corrupt("a row of a table that was not described"));
                };
                data.try_get_u8().map_err(truncated)?;
                let row = Row::read(columns, data)?;
                match row.int(Column::Status).map_err(|reason| corrupt(&reason))? == i64::from(LOGGED) {
                    true => row.message(transaction).map(Some),
                    false => Ok(None),
                }
            }
            _ => Ok(None),
        }
    }
}

fn table(data: &mut Bytes) -> Result<(u32, Columns), StoreError> {
    let oid = data.try_get_u32().map_err(truncated)?;
    text_to_zero(data)?;
    text_to_zero(data)?;
    data.try_get_u8().map_err(truncated)?;
    let count = data.try_get_u16().map_err(truncated)?;
    let mut columns = Vec::with_capacity(count.into());
    for _ in 0..count {
        data.try_get_u8().map_err(truncated)?;
        let name = text_to_zero(data)?;
        columns.push(COLUMNS.iter().position(|known| *known == name));
        data.try_get_u64().map_err(truncated)?;
    }
    Ok((oid, columns))
}

fn text_to_zero(data: &mut Bytes) -> Result<String, StoreError> {
    let end = data.iter().position(|byte| *byte == 0);
    let text = data.split_to(end.ok_or_else(|| corrupt("a name without an end"))?);
    data.advance(1);
    Ok(String::from_utf8_lossy(&text).into_owned())
}

struct Row {
    values: [Option<Bytes>; COLUMNS.len()],
}

impl Row {
    fn read(columns: &[Option<usize>], mut data: Bytes) -> Result<Self, StoreError> {
        let count = data.try_get_u16().map_err(truncated)?;
        let mut values = [const { None }; COLUMNS.len()];
        for column in columns.iter().take(count.into()) {
            match data.try_get_u8().map_err(truncated)? {
                // `u` (unchanged) never occurs in an insert.
                b'n' | b'u' => {}
                b'b' => {
                    let length = data.try_get_u32().map_err(truncated)? as usize;
                    if data.remaining() < length {
                        return Err(corrupt("a row that ends in the middle"));
                    }
                    let value = data.split_to(length);
                    if let Some(column) = column {
                        values[*column] = Some(value);
                    }
                }
                // No used column has a type without a binary format.
                b't' => {
                    let length = data.try_get_u32().map_err(truncated)? as usize;
                    if data.remaining() < length {
                        return Err(corrupt("a row that ends in the middle"));
                    }
                    data.advance(length);
                }
                other => return Err(corrupt(&format!("a value of unknown kind {other}"))),
            }
        }
        Ok(Self { values })
    }

    fn message(&self, transaction: Transaction) -> Result<LoggedMessage, StoreError> {
        let must = |read: Result<i64, String>| read.map_err(|reason| corrupt(&reason));
        let id = MessageId::from(self.uuid(Column::Id).map_err(|reason| corrupt(&reason))?);
        let aggregate = Aggregate::new(
            self.text(Column::AggregateType)
                .map_err(|reason| corrupt(&reason))?,
            self.text(Column::AggregateId)
                .map_err(|reason| corrupt(&reason))?,
        );
        let partition = must(self.int(Column::PartitionNo))?;
        let created_at = self.time(Column::CreatedAt);
        Ok(LoggedMessage {
            id,
            transaction: transaction.xid.into(),
            passed_from: transaction.passed_from,
            created_at: created_at.clone().unwrap_or(OffsetDateTime::UNIX_EPOCH),
            // If the due time in the log is unreadable, the message becomes pending, and the table
            // relay reads the time from its row.
            available_at: match self.has(Column::AvailableAt) {
                true => Some(self.time(Column::AvailableAt).unwrap_or(far_away())),
                false => None,
            },
            row: FetchedRow {
                row_id: must(self.int(Column::RowId))?,
                id: Some(id),
                partition: u16::try_from(partition)
                    .map_err(|_| corrupt("a partition that does not exist"))?,
                sequenced: self.has(Column::Sequence),
                attempts: 0,
                failures: 0,
                waited: false,
                age: Duration::ZERO,
                message: created_at
                    .map_err(RowFault::from)
                    .and_then(|created_at| self.envelope(id, &aggregate, created_at))
                    .map(Arc::new),
                aggregate,
            },
        })
    }

    fn envelope(
        &self,
        id: MessageId,
        aggregate: &Aggregate,
        created_at: OffsetDateTime,
    ) -> Result<Message, RowFault> {
        let (payload, headers) = (self.value(Column::Payload)?, self.value(Column::Headers)?);
        RowFault::check_sizes(payload.len() as u64, headers.len() as u64)?;
        let headers = Headers::from_stored(headers)?;
        let optional = |column| match self.has(column) {
            true => self.text(column).map(Some),
            false => Ok(None),
        };
        let event_id = match self.has(Column::EventId) {
            true => self.uuid(Column::EventId)?,
            false => id.as_uuid(),
        };
        let sequence = match self.has(Column::Sequence) {
            true => {
                let sequence = self.int(Column::Sequence)?;
                Some(u64::try_from(sequence).map_err(|_| format!("sequence is {sequence}"))?)
            }
            false => None,
        };
        let event_version = self.int(Column::EventVersion)?;
        let message = Message {
            id,
            event_id: event_id.into(),
            aggregate: aggregate.clone(),
            sequence,
            event_type: self.text(Column::EventType)?,
            event_version: event_version
                .try_into()
                .map_err(|_| format!("event_version is {event_version}"))?,
            subject: optional(Column::Subject)?,
            content_type: self.text(Column::ContentType)?,
            payload: payload.clone(),
            headers,
            created_at,
        };
        RowFault::check_names(&message)?;
        Ok(message)
    }

    fn has(&self, column: Column) -> bool {
        self.values[column as usize].is_some()
    }

    fn value(&self, column: Column) -> Result<&Bytes, String> {
        let value = self.values[column as usize].as_ref();
        value.ok_or_else(|| format!("{} is missing", column.name()))
    }

    fn text(&self, column: Column) -> Result<String, String> {
        let bytes = self.value(column)?.to_vec();
        String::from_utf8(bytes).map_err(|_| format!("{} is not UTF-8", column.name()))
    }

    fn int(&self, column: Column) -> Result<i64, String> {
        let mut value = &**self.value(column)?;
        match value.len() {
            2 => Ok(value.get_i16().into()),
            4 => Ok(value.get_i32().into()),
            8 => Ok(value.get_i64()),
            length => Err(format!(
                "{} has {length} bytes, and is not an integer",
                column.name()
            )),
        }
    }

    fn uuid(&self, column: Column) -> Result<Uuid, String> {
        let value = self.value(column)?;
        Uuid::from_slice(value).map_err(|error| format!("{} cannot be read: {error}", column.name()))
    }

    fn time(&self, column: Column) -> Result<OffsetDateTime, String> {
        let micros = i128::from(self.int(column)?) + i128::from(EPOCH_MICROS);
        OffsetDateTime::from_unix_timestamp_nanos(micros * 1000)
            .map_err(|error| format!("{} is out of range: {error}", column.name()))
    }
}

fn far_away() -> OffsetDateTime {
    time::PrimitiveDateTime::MAX.assume_utc()
}

fn truncated(_: bytes::TryGetError) -> StoreError {
    corrupt("a change that ends in the middle")
}

fn corrupt(what: &str) -> StoreError {
    StoreError::Corrupt {
        context: format!("the log returned {what}"),
    }
}

#[cfg(test)]
mod tests {
    use bytes::BufMut as _;

    use super::*;

    const TABLE: u32 = 7;

    const FIRST: Transaction = Transaction {
        xid: 1,
        passed_from: Position(8),
    };

    fn described(columns: &[&str]) -> Bytes {
        let mut data = vec![b'R'];
        data.put_u32(TABLE);
        data.put_slice(b"public\0outbox_messages\0d");
        data.put_u16(columns.len() as u16);
        for name in columns {
            data.put_u8(0);
            data.put_slice(name.as_bytes());
            data.put_u8(0);
            data.put_u64(0);
        }
        data.into()
    }

    fn inserted(values: &[Option<&[u8]>]) -> Bytes {
        let mut data = vec![b'I'];
        data.put_u32(TABLE);
        data.put_u8(b'N');
        data.put_u16(values.len() as u16);
        for value in values {
            match value {
                Some(value) => {
                    data.put_u8(b'b');
                    data.put_u32(value.len() as u32);
                    data.put_slice(value);
                }
                None => data.put_u8(b'n'),
            }
        }
        data.into()
    }

    const SENT: [&str; 14] = [
        "payload",
        "a column of the future",
        "id",
        "row_id",
        "partition_no",
        "aggregate_type",
        "aggregate_id",
        "sequence",
        "event_type",
        "event_version",
        "content_type",
        "headers",
        "created_at",
        "status",
    ];

    fn values<'a>(id: &'a Uuid, headers: &'a [u8]) -> [Option<&'a [u8]>; 14] {
        [
            Some(b"{\"n\":1}"),
            None,
            Some(id.as_bytes()),
            Some(&[0, 0, 0, 0, 0, 0, 0, 9]),
            Some(&[0, 3]),
            Some(b"order"),
            Some(b"\xc3\xa4"),
            Some(&[0, 0, 0, 0, 0, 0, 0, 4]),
            Some(b"order.placed"),
            Some(&[0, 0, 0, 0, 0, 0, 0, 1]),
            Some(b"application/json"),
            Some(headers),
            Some(&[0, 0, 0, 0, 0, 0, 0x03, 0xe8]),
            Some(&[0, 4]),
        ]
    }

    #[test]
    fn a_row_is_read_by_the_names_of_its_columns() {
        let id = Uuid::from_u128(5);
        let mut decoder = Decoder::default();
        assert_eq!(decoder.take(FIRST, described(&SENT)).unwrap(), None);
        let row = inserted(&values(&id, b"{\"a\":\"b\"}"));
        let logged = decoder.take(FIRST, row).unwrap().unwrap();
        assert_eq!(
            (logged.id, logged.row.row_id, logged.row.partition),
            (id.into(), 9, 3)
        );
        assert_eq!((logged.available_at, logged.row.sequenced), (None, true));
        assert_eq!((logged.transaction, logged.passed_from), (1, Position(8)));
        let message = logged.row.message.unwrap();
        assert_eq!(message.aggregate, Aggregate::new("order", "ä"));
        assert_eq!((message.sequence, message.event_version), (Some(4), 1));
        assert_eq!(
            (&*message.payload, message.headers.get("a")),
            (&b"{\"n\":1}"[..], Some("b"))
        );
        assert_eq!(
            message.created_at,
            time::macros::datetime!(2000-01-01 00:00:00.001 UTC)
        );
        assert_eq!(
            decoder.take(FIRST, Bytes::from_static(b"Ywhatever")).unwrap(),
            None
        );
    }

    #[test]
    fn pending_row_is_no_message_of_the_log() {
        let (id, mut decoder) = (Uuid::from_u128(5), Decoder::default());
        decoder.take(FIRST, described(&SENT)).unwrap();
        for status in [0_u8, 1, 2, 3] {
            let status = [0, status];
            let mut values = values(&id, b"{}");
            values[13] = Some(&status);
            assert_eq!(decoder.take(FIRST, inserted(&values)).unwrap(), None);
        }
        let mut decoder = Decoder::default();
        decoder.take(FIRST, described(&SENT[..13])).unwrap();
        let row = inserted(&values(&id, b"{}")[..13]);
        assert!(decoder.take(FIRST, row).is_err());
    }

    #[test]
    fn row_with_unreadable_headers_is_unpublishable() {
        let id = Uuid::from_u128(5);
        let mut decoder = Decoder::default();
        decoder.take(FIRST, described(&SENT)).unwrap();
        let logged = decoder
            .take(FIRST, inserted(&values(&id, b"[]")))
            .unwrap()
            .unwrap();
        assert!(matches!(logged.row.message, Err(RowFault::Damaged(_))));
    }

    #[test]
    fn a_damaged_change_is_an_error_and_no_panic() {
        let id = Uuid::from_u128(5);
        for change in [described(&SENT), inserted(&values(&id, b"{}"))] {
            for length in 0..change.len() {
                let mut decoder = Decoder::default();
                if change[0] == b'I' {
                    decoder.take(FIRST, described(&SENT)).unwrap();
                }
                assert!(decoder.take(FIRST, change.slice(..length)).is_err(), "{length}");
            }
        }
        let row = inserted(&values(&id, b"{}"));
        assert!(Decoder::default().take(FIRST, row).is_err());
    }
}
