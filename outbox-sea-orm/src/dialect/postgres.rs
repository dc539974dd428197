//! SQL for PostgreSQL 12 and later, where it differs in shape.
//!
//! Lists are bound as arrays, so that each operation has one statement text, however many rows it has. Arrays hold no nulls: an empty text or 0
//! stands for null, and the statement turns it into one.

use outbox_core::store::RowKey;
use outbox_core::{Aggregate, Lease, NewMessage};
use sea_orm::sea_query::ArrayType;
use sea_orm::{DbBackend, Statement};

use super::dedup::{dedup_keys, push_insert_keys};
use super::relays::Announced;
use super::{Dialect, delay_micros, headers_json};
use crate::grouped::Grouped;
use crate::sql::{Sql, array};

/// Takes free leases and returns them. The CTE is materialised, because a plain subquery may run twice and then take more than the limit. SKIP
/// LOCKED: a lease that another relay is taking, or settles under, is not free. Sorts 64 rows.
pub(crate) fn acquire(dialect: &Dialect, owner: uuid::Uuid, ttl_micros: i64, max: u16) -> Statement {
    debug_assert_eq!(dialect.backend, DbBackend::Postgres);
    let (leases, now) = (&dialect.leases, dialect.now());
    let mut sql = dialect.sql(format!(
        "WITH free AS MATERIALIZED (SELECT partition_no FROM {leases} WHERE owner IS NULL OR expires_at <= {now} \
         ORDER BY partition_no LIMIT "
    ));
    sql.bind(i64::from(max)).push(&format!(
        " FOR UPDATE SKIP LOCKED) UPDATE {leases} lease SET owner = "
    ));
    sql.bind(owner).push(", epoch = lease.epoch + 1, expires_at = ");
    let ttl = sql.placeholder(ttl_micros);
    sql.push(&dialect.now_plus(&ttl)).push(
        " FROM free WHERE lease.partition_no = free.partition_no \
         RETURNING lease.partition_no::int8 AS partition_no, lease.epoch",
    );
    sql.statement()
}

/// Extends and returns those of these leases that the owner still owns. One statement, which first locks the rows in the order of their primary
/// key, as settlements do.
pub(crate) fn renew(dialect: &Dialect, owner: uuid::Uuid, leases: &[Lease], ttl_micros: i64) -> Statement {
    let mut sql = dialect.sql("");
    let owner = sql.placeholder(owner);
    let condition = format!("lease.owner = {owner} AND lease.expires_at > {}", dialect.now());
    push_claimed(&mut sql, dialect, leases, &condition, "NO KEY UPDATE");
    sql.push(&format!(") UPDATE {} lease SET expires_at = ", dialect.leases));
    let ttl = sql.placeholder(ttl_micros);
    sql.push(&dialect.now_plus(&ttl)).push(
        " FROM owned WHERE lease.partition_no = owned.partition_no \
         RETURNING lease.partition_no::int8 AS partition_no, lease.epoch",
    );
    sql.statement()
}

/// As [`Dialect::release`], in the order of the primary key.
pub(crate) fn release(dialect: &Dialect, owner: uuid::Uuid, leases: &[Lease]) -> Statement {
    let mut sql = dialect.sql("");
    let owner = sql.placeholder(owner);
    push_claimed(
        &mut sql,
        dialect,
        leases,
        &format!("lease.owner = {owner}"),
        "NO KEY UPDATE",
    );
    sql.push(&format!(
        ") UPDATE {} lease SET owner = NULL, expires_at = {} FROM owned WHERE lease.partition_no = owned.partition_no",
        dialect.leases,
        dialect.now()
    ));
    sql.statement()
}

/// Settles pending rows as published in one statement, the usual case: one round trip. Returns the partitions that are still owned.
///
/// The lease rows are locked in share mode (primary key, in its order), so a takeover waits. If this statement waits for a takeover, it compares
/// the epoch again afterwards. The partitions are a scalar subquery, which is evaluated, with its locks, before the first row is read. Rows are
/// found through the pending index.
pub(crate) fn settle_published(
    dialect: &Dialect,
    leases: &[Lease],
    rows: &[RowKey],
    keep: bool,
) -> Statement {
    let mut sql = dialect.sql("");
    push_claimed(&mut sql, dialect, leases, "lease.owner IS NOT NULL", "SHARE");
    let (messages, now) = (&dialect.messages, dialect.now());
    sql.push(&if keep {
        format!("), done AS (UPDATE {messages} SET status = 1, published_at = {now}")
    } else {
        format!("), done AS (DELETE FROM {messages}")
    });
    sql.push(" WHERE status = 0 AND ");
    dialect.push_rows_of(&mut sql, rows);
    sql.push(
        " AND (((SELECT bit_or(1::int8 << owned.partition_no::int4) FROM owned) >> partition_no::int4) & 1::int8) <> 0) \
         SELECT partition_no::int8 AS partition_no FROM owned",
    );
    sql.statement()
}

/// Appends `WITH owned AS (…`: those of these leases that still have the given epochs, locked.
fn push_claimed(sql: &mut Sql, dialect: &Dialect, leases: &[Lease], condition: &str, lock: &str) {
    sql.push("WITH owned AS MATERIALIZED (SELECT lease.partition_no FROM ")
        .push(&dialect.leases)
        .push(" lease JOIN unnest(")
        .bind(array(
            ArrayType::BigInt,
            leases.iter().map(|lease| i64::from(lease.partition)),
        ))
        .push("::int8[], ")
        .bind(array(ArrayType::BigInt, leases.iter().map(|lease| lease.epoch)))
        .push("::int8[]) AS claimed (partition_no, epoch) ON lease.partition_no = claimed.partition_no ")
        .push("AND lease.epoch = claimed.epoch WHERE ")
        .push(condition)
        .push(" ORDER BY lease.partition_no FOR ")
        .push(lock)
        .push(" OF lease");
}

/// Deletes announcements that ran out, except those that another relay is deleting. Announces the owner, and counts the other relays by fitness.
/// One statement; its parts do not see each other's changes.
pub(crate) fn announce(dialect: &Dialect, announced: Announced<'_>) -> Statement {
    let relays = &dialect.relays;
    let mut sql = dialect.sql("");
    let owner = sql.placeholder(announced.owner);
    sql.push(&format!(
        "WITH gone AS (DELETE FROM {relays} WHERE owner IN (SELECT owner FROM {relays} \
         WHERE owner <> {owner} AND NOT ({alive}) FOR UPDATE SKIP LOCKED)), own AS (",
        alive = dialect.is_alive(),
    ));
    dialect.push_announce(&mut sql, announced, &owner);
    sql.push(") ");
    dialect.push_count_relays(&mut sql, announced, |_| owner);
    sql.statement()
}

/// Raises the head rows and returns them. Locks them exclusively, in the given order (primary key).
pub(crate) fn count_up(dialect: &Dialect, heads: &[(Aggregate, i64)]) -> Statement {
    let mut sql = dialect.sql("");
    push_count_up(&mut sql, dialect, heads);
    sql.statement()
}

fn push_count_up(sql: &mut Sql, dialect: &Dialect, heads: &[(Aggregate, i64)]) {
    sql.push(&format!(
        "INSERT INTO {} AS head (aggregate_type, aggregate_id, last_sequence) SELECT * FROM unnest(",
        dialect.aggregates
    ));
    sql.bind(array(
        ArrayType::String,
        heads.iter().map(|(a, _)| a.aggregate_type.as_str()),
    ))
    .push(", ");
    sql.bind(array(ArrayType::String, heads.iter().map(|(a, _)| a.id.as_str())))
        .push(", ");
    sql.bind(array(ArrayType::BigInt, heads.iter().map(|(_, count)| *count)))
        .push(")");
    sql.push(
        " ON CONFLICT (aggregate_type, aggregate_id) \
         DO UPDATE SET last_sequence = head.last_sequence + EXCLUDED.last_sequence, recorded_at = EXCLUDED.recorded_at \
         RETURNING aggregate_type, aggregate_id, last_sequence",
    );
}

const COLUMNS: &str = "id, partition_no, aggregate_type, aggregate_id, sequence, event_type, event_version, subject, \
     content_type, payload, headers, dedup_key, available_at";

/// Raises the head row and inserts its message in one statement, the usual case: one round trip. So is its deduplication key.
///
/// The message gets its `row_id` after the CTE has returned the head row, which is locked by then. So row ids are in the order of sequences.
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
    sql.push(&format!("INSERT INTO {} ({COLUMNS}) SELECT ", dialect.messages));
    sql.bind(message.id().as_uuid())
        .push(", ")
        .bind(partition(message));
    sql.push(&format!(", {aggregate_type}, {aggregate_id}, "));
    sql.push(if message.is_sequenced() {
        "head.last_sequence"
    } else {
        "NULL::int8"
    });
    sql.push(", ")
        .bind(message.event_type())
        .push(", ")
        .bind(version(message));
    sql.push(", ")
        .bind(message.subject().map(str::to_owned))
        .push(", ")
        .bind(message.content_type());
    sql.push(", ")
        .bind(message.payload().to_vec())
        .push(", ")
        .bind(headers_json(message))
        .push("::json, ");
    sql.bind(message.dedup_key().map(str::to_owned)).push(", ");
    let delay = sql.placeholder(delay_micros(message));
    sql.push(&dialect.time(&delay));
    if message.is_sequenced() {
        sql.push(" FROM head");
    }
    sql.statement()
}

/// Where the sequences of a batch come from.
pub(crate) enum Sequences<'a> {
    /// From the head rows, which the same statement raises. The numbers count back from the aggregate's last sequence.
    CountUp(&'a Grouped),
    /// The numbers are the sequences; the head rows were raised before.
    Given,
}

/// Inserts messages in their order. `numbers` has one entry per message, -1 for an unsequenced message.
///
/// The sequences of all head rows are one array, which the server makes before it numbers the first sequenced message. So messages get their row ids after
/// all head rows are locked. A join with the head rows would depend on the plan: the server does not know how many they are, and takes a nested loop
/// (measured: nine times the time for 1,000 messages).
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

/// The first message, if the messages differ only in their ids, aggregate ids and payloads, as those of a save of many rows mostly do. Then the server is sent
/// each other value once, and not once for each message.
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

/// Appends the values of messages that are [`alike`]. Scalar subqueries are evaluated once.
fn push_alike(sql: &mut Sql, dialect: &Dialect, own: Own<'_>, sequence: &str, first: &NewMessage) {
    sql.push("m.id, m.partition_no, (SELECT ")
        .bind(first.aggregate().aggregate_type.as_str());
    sql.push("::text), m.aggregate_id, ")
        .push(sequence)
        .push(", (SELECT ");
    sql.bind(first.event_type())
        .push("::text), (SELECT ")
        .bind(version(first));
    sql.push("::int8), (SELECT ")
        .bind(first.subject().map(str::to_owned));
    sql.push("::text), (SELECT ").bind(first.content_type());
    sql.push("::text), m.payload, (SELECT ").bind(headers_json(first));
    let delay = sql
        .push("::json), NULL::text, (SELECT ")
        .placeholder(delay_micros(first));
    sql.push(&dialect.time(&format!("{delay}::int8")))
        .push(") FROM unnest(");
    own.push(sql);
    sql.push(") WITH ORDINALITY AS m (id, partition_no, aggregate_id, number, head, payload, ord)");
}

/// Appends the values of any messages.
fn push_all(sql: &mut Sql, dialect: &Dialect, own: Own<'_>, sequence: &str) {
    sql.push(&format!(
        "m.id, m.partition_no, m.aggregate_type, m.aggregate_id, {sequence}, m.event_type, m.event_version, \
         NULLIF(m.subject, ''), m.content_type, m.payload, m.headers::json, NULLIF(m.dedup_key, ''), {} FROM unnest(",
        dialect.time("m.delay"),
    ));
    own.push(sql);
    let messages = own.messages;
    let text = |text: fn(&NewMessage) -> String| array(ArrayType::String, messages.iter().map(text));
    sql.push(", ")
        .bind(text(|m| m.aggregate().aggregate_type.clone()));
    sql.push(", ").bind(text(NewMessage::event_type));
    sql.push(", ")
        .bind(array(ArrayType::BigInt, messages.iter().map(version)));
    sql.push(", ")
        .bind(text(|m| m.subject().unwrap_or_default().to_owned()));
    sql.push(", ").bind(text(|m| m.content_type().to_owned()));
    sql.push(", ").bind(text(headers_json));
    sql.push(", ")
        .bind(text(|m| m.dedup_key().unwrap_or_default().to_owned()));
    sql.push(", ")
        .bind(array(ArrayType::BigInt, messages.iter().map(delay_micros)))
        .push(
            ") WITH ORDINALITY AS m (id, partition_no, aggregate_id, number, head, payload, aggregate_type, event_type, event_version, \
             subject, content_type, headers, dedup_key, delay, ord)",
        );
}

/// What each message has of its own.
#[derive(Clone, Copy)]
struct Own<'a> {
    messages: &'a [NewMessage],
    numbers: &'a [i64],
    /// Where its head row is in the array that the statement makes of them. Empty if the numbers are the sequences.
    places: &'a [Option<(usize, i64)>],
}

impl Own<'_> {
    /// Appends arrays: id, partition, aggregate id, number, place of the head row, payload.
    fn push(self, sql: &mut Sql) {
        let ids = array(ArrayType::Uuid, self.messages.iter().map(|m| m.id().as_uuid()));
        let partitions = array(ArrayType::SmallInt, self.messages.iter().map(partition));
        let aggregates = self.messages.iter().map(|m| m.aggregate().id.clone());
        let payloads = self.messages.iter().map(|m| m.payload().to_vec());
        // Counted from 1.
        let head = |n: usize| {
            self.places
                .get(n)
                .copied()
                .flatten()
                .map_or(0, |(head, _)| head as i64 + 1)
        };
        sql.bind(ids).push(", ").bind(partitions).push(", ");
        sql.bind(array(ArrayType::String, aggregates)).push(", ");
        sql.bind(array(ArrayType::BigInt, self.numbers.iter().copied()))
            .push(", ");
        sql.bind(array(ArrayType::BigInt, (0..self.messages.len()).map(head)))
            .push(", ");
        sql.bind(array(ArrayType::Bytes, payloads));
    }
}

fn partition(message: &NewMessage) -> i16 {
    i16::try_from(message.aggregate().partition()).unwrap_or_default()
}

fn version(message: &NewMessage) -> i64 {
    i64::from(message.event_version())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::TableNames;

    #[test]
    fn leases_are_picked_in_a_materialised_cte() {
        let dialect = Dialect::new(DbBackend::Postgres, &TableNames::new());
        let sql = acquire(&dialect, uuid::Uuid::nil(), 5, 3).sql;
        assert!(sql.starts_with("WITH free AS MATERIALIZED (SELECT"), "{sql}");
        assert!(sql.contains("LIMIT $1 FOR UPDATE SKIP LOCKED"), "{sql}");
    }
}
