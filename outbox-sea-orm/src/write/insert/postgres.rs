//! A single PostgreSQL statement increments the aggregates' sequences and inserts the messages.

use outbox_core::NewMessage;
use sea_orm::sea_query::ArrayType;
use sea_orm::{Statement, Value};

use super::grouping::Grouped;
use super::sql::dedup_keys;
use crate::sql::{Dialect, Sql, array, delay_micros, headers_json, integers, texts, uuids};

/// Row ids of an aggregate always increase. New row ids are drawn before the aggregate's row is
/// locked. If its last row id is already higher, because of another writer or a cached or reset
/// sequence, higher ones are assigned.
fn push_count_up(sql: &mut Sql, dialect: &Dialect, grouped: &Grouped, first: &str) {
    let heads = &grouped.heads;
    let text = format!(
        "INSERT INTO {} AS head (aggregate_type, aggregate_id, last_sequence, last_row_id) \
         SELECT h.aggregate_type, h.aggregate_id, h.count, {first} + h.last \
         FROM unnest(?::text[], ?::text[], ?::int8[], ?::int8[]) AS h (aggregate_type, aggregate_id, count, last) \
         ON CONFLICT (aggregate_type, aggregate_id) DO UPDATE SET last_sequence = head.last_sequence + EXCLUDED.last_sequence, recorded_at = EXCLUDED.recorded_at, \
         last_row_id = {} RETURNING aggregate_type, aggregate_id, last_sequence, last_row_id",
        dialect.aggregates,
        last_row_id(dialect, first)
    );
    let types = texts(
        heads
            .iter()
            .map(|(aggregate, _)| aggregate.aggregate_type.as_str()),
    );
    let ids = texts(heads.iter().map(|(aggregate, _)| aggregate.id.as_str()));
    let counts = integers(heads.iter().map(|(_, count)| *count));
    let lasts = integers(grouped.lasts.iter().copied());
    sql.push_with(&text, [types, ids, counts, lasts]);
}

fn last_row_id(dialect: &Dialect, first: &str) -> String {
    format!(
        "CASE WHEN {first} > head.last_row_id THEN EXCLUDED.last_row_id \
         ELSE GREATEST({} + EXCLUDED.last_sequence - 1, head.last_row_id + EXCLUDED.last_sequence, EXCLUDED.last_row_id + 1) END",
        dialect.draw_row_ids
    )
}

const COLUMNS: &str = "row_id, id, partition_no, aggregate_type, aggregate_id, sequence, event_type, event_version, subject, \
     content_type, payload, headers, dedup_key, available_at";

pub(crate) fn insert_one(dialect: &Dialect, message: &NewMessage) -> Statement {
    let mut sql = dialect.sql("");
    let aggregate_type = sql.placeholder(message.aggregate().aggregate_type.as_str());
    let aggregate_id = sql.placeholder(message.aggregate().id.as_str());
    let draw = dialect.draw_row_ids.as_str();
    let mut with = "WITH ";
    if message.is_sequenced() {
        sql.push(&format!(
            "WITH head AS (INSERT INTO {} AS head (aggregate_type, aggregate_id, last_sequence, last_row_id) \
             VALUES ({aggregate_type}, {aggregate_id}, 1, {draw}) ON CONFLICT (aggregate_type, aggregate_id) \
             DO UPDATE SET last_sequence = head.last_sequence + 1, recorded_at = EXCLUDED.recorded_at, \
             last_row_id = {} RETURNING last_sequence, last_row_id) ",
            dialect.aggregates,
            last_row_id(dialect, "EXCLUDED.last_row_id")
        ));
        with = ", ";
    }
    if let Some(key) = message.dedup_key() {
        sql.push(with).push("key AS (");
        push_insert_keys(&mut sql, dialect, &[key]);
        sql.push(") ");
    }
    let (row_id, sequence, from) = match message.is_sequenced() {
        true => ("head.last_row_id", "head.last_sequence", " FROM head"),
        false => (draw, "NULL::int8", ""),
    };
    let text = format!(
        "INSERT INTO {} ({COLUMNS}) OVERRIDING SYSTEM VALUE SELECT {row_id}, ?, ?, {aggregate_type}, {aggregate_id}, {sequence}, ?, ?, ?, ?, ?, ?::json, ?, {}{from}",
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

/// Row ids have the order of the messages, unless an aggregate's last row id is already higher. The
/// aggregates are two arrays, because a join could use a slow nested loop.
pub(crate) fn insert_many(dialect: &Dialect, messages: &[NewMessage]) -> Statement {
    let grouped = Grouped::new(messages);
    // Counts back from the sequence of the head row; -1 if unsequenced.
    let numbers = grouped.numbers(|head, position| grouped.heads[head].1 - position);
    let mut sql = dialect.sql("");
    let number = element(&mut sql, "int8", integers(numbers));
    sql.push(&format!(
        "WITH drawn AS (SELECT {} AS row_id), head AS (",
        dialect.draw_row_ids
    ));
    let first = "(SELECT row_id FROM drawn)";
    push_count_up(&mut sql, dialect, &grouped, first);
    sql.push(
        "), heads AS (SELECT pg_catalog.array_agg(last_sequence) AS sequences, \
         pg_catalog.array_agg(last_row_id) AS row_ids FROM (SELECT last_sequence, last_row_id FROM head \
         ORDER BY aggregate_type COLLATE \"C\", aggregate_id COLLATE \"C\") head) ",
    );
    let keys = dedup_keys(messages);
    if !keys.is_empty() {
        sql.push(", key AS (");
        push_insert_keys(&mut sql, dialect, &keys);
        sql.push(") ");
    }
    let places = grouped.places.iter();
    let places = places.map(|place| place.map_or(0, |(head, _)| head as i64 + 1));
    let head = element(&mut sql, "int8", integers(places));
    let lasts = grouped.places.iter();
    let lasts = lasts.map(|place| place.map_or(0, |(head, _)| grouped.lasts[head]));
    let last = element(&mut sql, "int8", integers(lasts));
    let of_head = |column| format!("(SELECT {column} FROM heads)[{head}]");
    let last_row_id = of_head("row_ids");
    let row_id = format!(
        "CASE WHEN {number} < 0 OR {last_row_id} = {first} + {last} THEN {first} + (m.ord - 1) ELSE {last_row_id} - {number} END"
    );
    let sequence = format!(
        "CASE WHEN {number} >= 0 THEN {} - {number} END",
        of_head("sequences")
    );
    let id = element(&mut sql, "uuid", uuids(messages.iter().map(|m| m.id().as_uuid())));
    let partitions = array(ArrayType::SmallInt, messages.iter().map(partition));
    let partition = element(&mut sql, "int2", partitions);
    sql.push(&format!(
        "INSERT INTO {} ({COLUMNS}) OVERRIDING SYSTEM VALUE SELECT {row_id}, {id}, {partition}, ",
        dialect.messages
    ));
    match alike(messages) {
        Some(first) => push_alike(&mut sql, dialect, messages, &sequence, first),
        None => push_all(&mut sql, dialect, messages, &sequence),
    }
    sql.push(" ORDER BY m.ord");
    sql.statement()
}

/// For values of fixed length, an array index is cheaper than `unnest`.
fn element(sql: &mut Sql, kind: &str, values: Value) -> String {
    format!("({}::{kind}[])[m.ord]", sql.placeholder(values))
}

fn push_texts(sql: &mut Sql, messages: &[NewMessage]) {
    let payloads = messages.iter().map(|m| m.payload().to_vec());
    let values = [
        texts(messages.iter().map(|m| m.aggregate().id.clone())),
        array(ArrayType::Bytes, payloads),
    ];
    sql.push_with("?, ?", values);
}

/// Returns the first message if all messages differ from it only in ids, aggregate ids and
/// payloads.
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

/// PostgreSQL evaluates scalar subqueries once.
fn push_alike(sql: &mut Sql, dialect: &Dialect, messages: &[NewMessage], sequence: &str, first: &NewMessage) {
    let text = format!(
        "(SELECT ?::text), m.aggregate_id, {sequence}, (SELECT ?::text), (SELECT ?::int8), \
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
    push_texts(sql.push_with(&text, values), messages);
    sql.push(") WITH ORDINALITY AS m (aggregate_id, payload, ord)");
}

fn push_all(sql: &mut Sql, dialect: &Dialect, messages: &[NewMessage], sequence: &str) {
    sql.push(&format!(
        "m.aggregate_type, m.aggregate_id, {sequence}, m.event_type, m.event_version, \
         NULLIF(m.subject, ''), m.content_type, m.payload, m.headers::json, NULLIF(m.dedup_key, ''), {} FROM unnest(",
        dialect.time("m.delay"),
    ));
    push_texts(sql, messages);
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
        ", ?, ?, ?, ?, ?, ?, ?, ?) WITH ORDINALITY AS m (aggregate_id, payload, \
         aggregate_type, event_type, event_version, subject, content_type, headers, dedup_key, delay, ord)",
        values,
    );
}

fn partition(message: &NewMessage) -> i16 {
    i16::try_from(message.aggregate().partition()).unwrap_or_default()
}

fn version(message: &NewMessage) -> i64 {
    i64::from(message.event_version())
}

fn push_insert_keys(sql: &mut Sql, dialect: &Dialect, keys: &[&str]) {
    let text = format!(
        "INSERT INTO {} (dedup_key) SELECT key FROM pg_catalog.unnest(?::text[]) AS key",
        dialect.dedup_keys
    );
    sql.push_with(&text, [texts(keys.iter().copied())]);
}
