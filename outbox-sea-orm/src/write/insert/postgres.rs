//! PostgreSQL: updates head rows and inserts messages in one statement.

use outbox_core::{Aggregate, NewMessage};
use sea_orm::Statement;
use sea_orm::sea_query::ArrayType;

use super::grouping::Grouped;
use super::sql::{dedup_keys, push_insert_keys};
use crate::sql::{Dialect, Sql, array, delay_micros, headers_json, integers, texts, uuids};

/// Locks head rows in the given order, and returns them.
pub(crate) fn count_up(dialect: &Dialect, heads: &[(Aggregate, i64)]) -> Statement {
    let mut sql = dialect.sql("");
    push_count_up(&mut sql, dialect, heads);
    sql.statement()
}

fn push_count_up(sql: &mut Sql, dialect: &Dialect, heads: &[(Aggregate, i64)]) {
    let text = format!(
        "INSERT INTO {} AS head (aggregate_type, aggregate_id, last_sequence) SELECT * FROM unnest(?, ?, ?) \
         ON CONFLICT (aggregate_type, aggregate_id) \
         DO UPDATE SET last_sequence = head.last_sequence + EXCLUDED.last_sequence, recorded_at = EXCLUDED.recorded_at \
         RETURNING aggregate_type, aggregate_id, last_sequence",
        dialect.aggregates
    );
    let types = texts(
        heads
            .iter()
            .map(|(aggregate, _)| aggregate.aggregate_type.as_str()),
    );
    let ids = texts(heads.iter().map(|(aggregate, _)| aggregate.id.as_str()));
    sql.push_with(
        &text,
        [types, ids, integers(heads.iter().map(|(_, count)| *count))],
    );
}

const COLUMNS: &str = "id, partition_no, aggregate_type, aggregate_id, sequence, event_type, event_version, subject, \
     content_type, payload, headers, dedup_key, available_at";

/// The usual case, in one round trip.
///
/// The CTE returns the locked head row before the message gets its `row_id`, so row ids are in the
/// order of sequences.
pub(crate) fn insert_one(dialect: &Dialect, message: &NewMessage) -> Statement {
    let mut sql = dialect.sql("");
    let aggregate_type = sql.placeholder(message.aggregate().aggregate_type.as_str());
    let aggregate_id = sql.placeholder(message.aggregate().id.as_str());
    let mut with = "WITH ";
    if message.is_sequenced() {
        sql.push(&format!(
            "WITH head AS (INSERT INTO {} AS head (aggregate_type, aggregate_id, last_sequence) \
             VALUES ({aggregate_type}, {aggregate_id}, 1) ON CONFLICT (aggregate_type, aggregate_id) \
             DO UPDATE SET last_sequence = head.last_sequence + 1, recorded_at = EXCLUDED.recorded_at \
             RETURNING last_sequence) ",
            dialect.aggregates
        ));
        with = ", ";
    }
    if let Some(key) = message.dedup_key() {
        sql.push(with).push("key AS (");
        push_insert_keys(&mut sql, dialect, &[key]);
        sql.push(") ");
    }
    let (sequence, from) = match message.is_sequenced() {
        true => ("head.last_sequence", " FROM head"),
        false => ("NULL::int8", ""),
    };
    let text = format!(
        "INSERT INTO {} ({COLUMNS}) SELECT ?, ?, {aggregate_type}, {aggregate_id}, {sequence}, ?, ?, ?, ?, ?, ?::json, ?, {}{from}",
        dialect.messages,
        dialect.time("?")
    );
    let values = [
        message.id().as_uuid().into(),
        partition(message).into(),
        message.event_type().into(),
        version(message).into(),
        message.subject().map(str::to_owned).into(),
        message.content_type().into(),
        message.payload().to_vec().into(),
        headers_json(message).into(),
        message.dedup_key().map(str::to_owned).into(),
        delay_micros(message).into(),
    ];
    sql.push_with(&text, values).statement()
}

pub(crate) enum Sequences<'a> {
    /// From head rows that the same statement updates. `numbers` count back from the last sequence.
    CountUp(&'a Grouped),
    /// `numbers` are the sequences.
    Given,
}

/// `numbers` has one entry per message, -1 if unsequenced.
///
/// The array of all sequences is evaluated before the first sequenced message is numbered, so head
/// rows are locked before row ids are assigned. A join could be a nested loop, because the server
/// cannot estimate the number of head rows.
pub(crate) fn insert_many(
    dialect: &Dialect,
    messages: &[NewMessage],
    numbers: &[i64],
    sequences: Sequences<'_>,
) -> Statement {
    let mut sql = dialect.sql("");
    let (sequence, places) = match sequences {
        Sequences::CountUp(grouped) => {
            sql.push("WITH head AS (");
            push_count_up(&mut sql, dialect, &grouped.heads);
            sql.push(") ");
            let keys = dedup_keys(messages);
            if !keys.is_empty() {
                sql.push(", key AS (");
                push_insert_keys(&mut sql, dialect, &keys);
                sql.push(") ");
            }
            let sequence = "CASE WHEN m.number >= 0 THEN (SELECT pg_catalog.array_agg(last_sequence \
                 ORDER BY aggregate_type COLLATE \"C\", aggregate_id COLLATE \"C\") FROM head)[m.head] - m.number END";
            (sequence, grouped.places.as_slice())
        }
        Sequences::Given => ("NULLIF(m.number, -1)", [].as_slice()),
    };
    let own = Own {
        messages,
        numbers,
        places,
    };
    sql.push(&format!("INSERT INTO {} ({COLUMNS}) SELECT ", dialect.messages));
    match alike(messages) {
        Some(first) => push_alike(&mut sql, dialect, own, sequence, first),
        None => push_all(&mut sql, dialect, own, sequence),
    }
    sql.push(" ORDER BY m.ord");
    sql.statement()
}

/// The first message, if all others differ only in id, aggregate id and payload. Common values are
/// sent once.
fn alike(messages: &[NewMessage]) -> Option<&NewMessage> {
    let first = messages.first()?;
    let event_type = first.event_type();
    let is_alike = |message: &NewMessage| {
        message.event_type() == event_type
            && message.event_version() == first.event_version()
            && message.aggregate().aggregate_type == first.aggregate().aggregate_type
            && message.subject() == first.subject()
            && message.content_type() == first.content_type()
            && message.headers() == first.headers()
            && message.dedup_key().is_none()
            && message.delayed_until() == first.delayed_until()
    };
    messages.iter().all(is_alike).then_some(first)
}

fn push_alike(sql: &mut Sql, dialect: &Dialect, own: Own<'_>, sequence: &str, first: &NewMessage) {
    let text = format!(
        "m.id, m.partition_no, (SELECT ?::text), m.aggregate_id, {sequence}, (SELECT ?::text), (SELECT ?::int8), \
         (SELECT ?::text), (SELECT ?::text), m.payload, (SELECT ?::json), NULL::text, (SELECT {}) FROM unnest(",
        dialect.time("?::int8")
    );
    let values = [
        first.aggregate().aggregate_type.as_str().into(),
        first.event_type().into(),
        version(first).into(),
        first.subject().map(str::to_owned).into(),
        first.content_type().into(),
        headers_json(first).into(),
        delay_micros(first).into(),
    ];
    own.push(sql.push_with(&text, values));
    sql.push(") WITH ORDINALITY AS m (id, partition_no, aggregate_id, number, head, payload, ord)");
}

fn push_all(sql: &mut Sql, dialect: &Dialect, own: Own<'_>, sequence: &str) {
    sql.push(&format!(
        "m.id, m.partition_no, m.aggregate_type, m.aggregate_id, {sequence}, m.event_type, m.event_version, \
         NULLIF(m.subject, ''), m.content_type, m.payload, m.headers::json, NULLIF(m.dedup_key, ''), {} FROM unnest(",
        dialect.time("m.delay"),
    ));
    own.push(sql);
    let messages = own.messages;
    let text = |text: fn(&NewMessage) -> String| texts(messages.iter().map(text));
    let values = [
        text(|m| m.aggregate().aggregate_type.clone()),
        text(NewMessage::event_type),
        integers(messages.iter().map(version)),
        text(|m| m.subject().unwrap_or_default().to_owned()),
        text(|m| m.content_type().to_owned()),
        text(headers_json),
        text(|m| m.dedup_key().unwrap_or_default().to_owned()),
        integers(messages.iter().map(delay_micros)),
    ];
    sql.push_with(
        ", ?, ?, ?, ?, ?, ?, ?, ?) WITH ORDINALITY AS m (id, partition_no, aggregate_id, number, head, payload, \
         aggregate_type, event_type, event_version, subject, content_type, headers, dedup_key, delay, ord)",
        values,
    );
}

#[derive(Clone, Copy)]
struct Own<'a> {
    messages: &'a [NewMessage],
    numbers: &'a [i64],
    /// Index of the head row in the array. Empty if `numbers` are the sequences.
    places: &'a [Option<(usize, i64)>],
}

impl Own<'_> {
    fn push(self, sql: &mut Sql) {
        // SQL arrays start at 1.
        let place = |n: usize| self.places.get(n).copied().flatten();
        let head = |n: usize| place(n).map_or(0, |(head, _)| head as i64 + 1);
        let values = [
            uuids(self.messages.iter().map(|m| m.id().as_uuid())),
            array(ArrayType::SmallInt, self.messages.iter().map(partition)),
            texts(self.messages.iter().map(|m| m.aggregate().id.clone())),
            integers(self.numbers.iter().copied()),
            integers((0..self.messages.len()).map(head)),
            array(
                ArrayType::Bytes,
                self.messages.iter().map(|m| m.payload().to_vec()),
            ),
        ];
        sql.push_with("?, ?, ?, ?, ?, ?", values);
    }
}

fn partition(message: &NewMessage) -> i16 {
    i16::try_from(message.aggregate().partition()).unwrap_or_default()
}

fn version(message: &NewMessage) -> i64 {
    i64::from(message.event_version())
}
