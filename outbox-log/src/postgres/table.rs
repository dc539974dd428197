//! Queries and writes of the log relay on the table.
//!
//! Only `adopt` and `purge` lock rows, and only the rows that they change. Rows are found by the
//! primary key, pending rows by the index `outbox_messages_pending`.

use std::collections::HashSet;
use std::time::Duration;

use outbox_core::log::{Logged, Look, LookRequest, PENDING_MAX, Position};
use outbox_core::{Aggregate, MessageId, PurgeRequest, Purged, StoreError};
use sea_orm::{
    ConnectionTrait, DatabaseConnection, DatabaseTransaction, DbErr, IsolationLevel, QueryResult, Statement,
    TransactionTrait, TryGetable,
};
use time::OffsetDateTime;
use uuid::Uuid;

use super::failure::trouble;
use super::sql::{LOGGED, Names, statement};

/// Maximum clock difference between writers, which create the ids, and the database.
const CLOCKS_APART: Duration = Duration::from_secs(24 * 3600);

/// Writes a marker into the WAL, so that a reading reaches the marker's position without other
/// writes.
pub(crate) async fn written(db: &DatabaseConnection) -> Result<Position, StoreError> {
    let sql = "SELECT (pg_logical_emit_message(true, 'outbox', '') - '0/0')::bigint AS position";
    let row = write(db, statement(sql, [])).await;
    row.and_then(|row| position(&found(row)?, "position"))
        .map_err(trouble("the end of the log could not be read"))
}

/// Queries the table with one statement, so the results are consistent. Reads at most
/// [`PENDING_MAX`] plus one pending messages. The ids are a subselect: with missing statistics,
/// PostgreSQL may scan the table, and would evaluate a list of thousands for each row.
pub(crate) async fn look(
    db: &DatabaseConnection,
    names: &Names,
    request: LookRequest<'_>,
) -> Result<Look, StoreError> {
    let (messages, blocks, flood) = (&names.messages, &names.blocks, PENDING_MAX + 1);
    let sql = format!(
        "WITH asked AS (SELECT t COLLATE \"C\" AS t, i COLLATE \"C\" AS i FROM json_to_recordset($1::json) AS a(t text, i text)), \
         pending AS MATERIALIZED (SELECT aggregate_type, aggregate_id FROM {messages} WHERE status = 0 LIMIT {flood}) \
         SELECT a.t AS aggregate_type, a.i AS aggregate_id, NULL::uuid AS id, 0::bigint AS status, 0::bigint AS now_micros, NULL::text AS ended \
         FROM asked a WHERE EXISTS (SELECT FROM {blocks} b WHERE b.aggregate_type = a.t AND b.aggregate_id = a.i) \
         OR (a.t, a.i) IN (SELECT aggregate_type, aggregate_id FROM pending) \
         UNION ALL \
         SELECT NULL, NULL, m.id, m.status::bigint, 0, NULL FROM {messages} m WHERE m.id IN (SELECT pg_catalog.unnest($2::text::uuid[])) \
         UNION ALL \
         SELECT NULL, NULL, NULL, (SELECT count(*) FROM pending) + (EXISTS (SELECT FROM {blocks}))::int, \
         (extract(epoch FROM clock_timestamp()) OPERATOR(pg_catalog.*) 1000000)::bigint, pg_snapshot_xmin(pg_current_snapshot())::text"
    );
    let aggregates: Vec<_> = request
        .aggregates
        .iter()
        .map(|aggregate| serde_json::json!({"t": aggregate.aggregate_type, "i": aggregate.id}))
        .collect();
    let aggregates = serde_json::Value::from(aggregates).to_string();
    let asked = [aggregates.into(), ids(request.messages).into()];
    let rows = db.query_all_raw(statement(sql, asked)).await;
    rows.and_then(|rows| read_look(&rows, request.messages))
        .map_err(trouble("the table could not be queried"))
}

fn read_look(rows: &[QueryResult], asked: &[Logged]) -> Result<Look, DbErr> {
    let mut look = Look {
        first: Vec::new(),
        any: false,
        is_flooded: false,
        logged: Vec::new(),
        unseen: Vec::new(),
        now: OffsetDateTime::UNIX_EPOCH,
    };
    let (mut held, mut ended) = (HashSet::new(), 0);
    for row in rows {
        let status: i64 = row.try_get("", "status")?;
        if let Some(aggregate_type) = row.try_get::<Option<String>>("", "aggregate_type")? {
            let id: String = row.try_get("", "aggregate_id")?;
            look.first.push(Aggregate::new(aggregate_type, id));
        } else if let Some(id) = row.try_get::<Option<Uuid>>("", "id")? {
            held.insert(MessageId::from(id));
            if status == i64::from(LOGGED) {
                look.logged.push(id.into());
            }
        } else {
            let micros: i64 = row.try_get("", "now_micros")?;
            look.any = status > 0;
            look.is_flooded = status > PENDING_MAX as i64;
            look.now = OffsetDateTime::from_unix_timestamp_nanos(i128::from(micros) * 1000)
                .map_err(|error| DbErr::Custom(format!("the server's time is out of range: {error}")))?;
            ended = transaction(&row.try_get::<String>("", "ended")?);
        }
    }
    let unseen = asked
        .iter()
        .filter(|asked| !held.contains(&asked.id) && !has_ended(asked.transaction, ended));
    look.unseen = unseen.map(|asked| asked.id).collect();
    Ok(look)
}

/// Begins a READ COMMITTED transaction, independent of the default of role or database: each
/// statement sees earlier commits, also after a lock wait.
///
/// The transaction begins in its own task: if the caller is dropped, sqlx 0.9.0 would return the
/// connection to its pool inside the open transaction.
pub(crate) async fn begin(db: &DatabaseConnection) -> Result<DatabaseTransaction, DbErr> {
    let db = db.clone();
    let begun = tokio::spawn(async move {
        db.begin_with_config(Some(IsolationLevel::ReadCommitted), None)
            .await
    });
    begun
        .await
        .unwrap_or_else(|panic| Err(DbErr::Custom(panic.to_string())))
}

/// Runs one statement in its own transaction. If a service left a transaction open on the
/// connection, a plain statement would be committed with that transaction, or never.
pub(crate) async fn write_all(
    db: &DatabaseConnection,
    statement: Statement,
) -> Result<Vec<QueryResult>, DbErr> {
    let tx = begin(db).await?;
    let rows = tx.query_all_raw(statement).await?;
    tx.commit().await?;
    Ok(rows)
}

pub(crate) async fn write(
    db: &DatabaseConnection,
    statement: Statement,
) -> Result<Option<QueryResult>, DbErr> {
    let rows = write_all(db, statement).await?;
    Ok(rows.into_iter().next())
}

/// A condition on a row of `outbox_log`: the position belongs to this server.
pub(crate) const IS_HERE: &str = "system_id = (SELECT system_identifier FROM pg_control_system())";

const AGE_MAX: i32 = i32::MAX;

/// An SQL expression for a position after every commit visible to the statement.
pub(crate) const END: &str = "(pg_current_wal_insert_lsn() - '0/0')::bigint";

/// Stores `adopted_to`, then makes logged rows pending. Idempotent. Both parts of the `UNION ALL`
/// read one snapshot.
///
/// Messages before the stored position stay unchanged: their request comes from a replaced reader
/// or a cancelled call. Only a position of this server is comparable.
///
/// `adopted_to` is stored in its own transaction: the second transaction may wait for row locks,
/// and must not block the reader's checkpoint. After a crash between both transactions, a reading
/// only checks more messages.
pub(crate) async fn adopt(
    db: &DatabaseConnection,
    names: &Names,
    messages: &[Logged],
) -> Result<Vec<MessageId>, StoreError> {
    let failed = || trouble("messages could not be adopted by the table");
    let sql = format!("UPDATE {} SET adopted_to = {END} WHERE name = $1", names.log);
    let note = statement(sql, [names.slot.clone().into()]);
    write(db, note).await.map_err(failed())?;
    let (messages_table, log, slot) = (&names.messages, &names.log, &names.slot);
    let sql = format!(
        "WITH adopted AS (UPDATE {messages_table} SET status = 0 WHERE status = {LOGGED} AND id = ANY(ARRAY( \
         SELECT asked.id FROM unnest($1::text::uuid[], $2::text::bigint[]) asked (id, passed_from) \
         WHERE asked.passed_from > COALESCE((SELECT position FROM {log} WHERE name = '{slot}' AND {IS_HERE}), -1)))) \
         SELECT id, NULL::text AS ended FROM {messages_table} WHERE id IN (SELECT pg_catalog.unnest($1::text::uuid[])) \
         UNION ALL SELECT NULL, pg_snapshot_xmin(pg_current_snapshot())::text"
    );
    let passed_from = messages
        .iter()
        .map(|asked| i64::try_from(asked.passed_from.0).unwrap_or(i64::MAX));
    let asked = [ids(messages).into(), array(passed_from).into()];
    let rows = write_all(db, statement(sql, asked)).await;
    let read = |rows: Vec<QueryResult>| {
        let (mut held, mut ended) = (HashSet::new(), 0);
        for row in rows {
            match row.try_get::<Option<Uuid>>("", "id")? {
                Some(id) => drop(held.insert(MessageId::from(id))),
                None => ended = transaction(&row.try_get::<String>("", "ended")?),
            }
        }
        let seen = messages
            .iter()
            .filter(|asked| held.contains(&asked.id) || has_ended(asked.transaction, ended));
        Ok(seen.map(|asked| asked.id).collect())
    };
    rows.and_then(read).map_err(failed())
}

fn transaction(text: &str) -> u64 {
    text.parse().unwrap_or_default()
}

/// Whether a transaction has ended for every session. A message of an ended transaction without a
/// row was deleted. `transaction`: the low 32 bits of the id, from the log. `ended`: every
/// transaction with a smaller id has ended.
fn has_ended(transaction: u64, ended: u64) -> bool {
    let behind = (ended as u32).wrapping_sub(transaction as u32);
    behind != 0 && behind < 1 << 31
}

/// Reads a page of ids, roughly by time, and deletes logged rows that are old enough and before the
/// stored position. An id without a time between 2024 and tomorrow comes from another program. If
/// such an id exists, all ids are read.
pub(crate) async fn purge(
    db: &DatabaseConnection,
    names: &Names,
    request: PurgeRequest,
) -> Result<Purged, StoreError> {
    let Some(older_than) = request.older_than else {
        return Ok(Purged {
            deleted: 0,
            next: None,
        });
    };
    let (messages, is_passed) = (&names.messages, is_passed(names, "m"));
    let sql = format!(
        "WITH page AS MATERIALIZED (SELECT id FROM {messages} WHERE id > $1 AND id < CASE \
         WHEN EXISTS (SELECT FROM {messages} WHERE id > $5 OR id < '018cc251-f400-0000-0000-000000000000') \
         THEN 'ffffffff-ffff-ffff-ffff-ffffffffffff'::uuid ELSE $2 END ORDER BY id LIMIT $3), \
         gone AS (DELETE FROM {messages} m USING page p WHERE m.id = p.id AND m.status = {LOGGED} \
         AND m.created_at < clock_timestamp() - ($4 OPERATOR(pg_catalog.*) interval '1 microsecond') AND {is_passed} RETURNING m.id) \
         SELECT (SELECT count(*) FROM gone) AS deleted, (SELECT count(*) FROM page) AS met, \
         (SELECT id FROM page ORDER BY id DESC LIMIT 1) AS last"
    );
    let oldest = OffsetDateTime::now_utc() - older_than + CLOCKS_APART;
    let micros = i64::try_from(older_than.as_micros()).unwrap_or(i64::MAX);
    let limit = i64::from(request.limit.get());
    let values = [
        request.after.map_or(Uuid::nil(), |id| id.as_uuid()).into(),
        first_id_of(oldest).into(),
        limit.into(),
        micros.into(),
        first_id_of(OffsetDateTime::now_utc() + CLOCKS_APART).into(),
    ];
    let read = |row: QueryResult| {
        let (deleted, met): (i64, i64) = (row.try_get("", "deleted")?, row.try_get("", "met")?);
        let last: Option<Uuid> = row.try_get("", "last")?;
        Ok(Purged {
            deleted: u64::try_from(deleted).unwrap_or_default(),
            next: last.filter(|_| met == limit).map(MessageId::from),
        })
    };
    let row = write(db, statement(sql, values)).await;
    row.and_then(|row| read(found(row)?))
        .map_err(trouble("logged messages could not be purged"))
}

/// Whether the transaction that wrote a row is before the stored position. Transaction ids wrap
/// after four billion, so they are compared by age. False if more than two billion transactions lie
/// between, without a `passed_xid`, or on another server.
pub(crate) fn is_passed(names: &Names, table: &str) -> String {
    let (log, slot) = (&names.log, &names.slot);
    format!(
        "COALESCE(age({table}.xmin) > (SELECT age(l.passed_xid::xid) FROM {log} l WHERE l.name = '{slot}' AND l.{IS_HERE} \
         AND pg_snapshot_xmax(pg_current_snapshot())::text::bigint - l.passed_xid::text::bigint BETWEEN 0 AND {AGE_MAX}), false)"
    )
}

/// A condition for replay and reconcile: the row is before the position of an active log.
/// `outbox-sea-orm` has the same condition, for a log of any name.
pub(crate) fn is_passed_while_on(names: &Names, table: &str) -> String {
    let (log, slot, is_passed) = (&names.log, &names.slot, is_passed(names, table));
    format!("({is_passed} AND EXISTS (SELECT FROM {log} l WHERE l.name = '{slot}' AND l.is_on))")
}

pub(crate) fn first_id_of(time: OffsetDateTime) -> Uuid {
    let millis = u128::try_from(time.unix_timestamp_nanos() / 1_000_000).unwrap_or_default();
    Uuid::from_u128(millis << 80)
}

pub(crate) fn found(row: Option<QueryResult>) -> Result<QueryResult, DbErr> {
    row.ok_or_else(|| DbErr::RecordNotFound("the server returned no row".to_owned()))
}

pub(crate) async fn value<T: TryGetable>(db: &DatabaseConnection, statement: Statement) -> Result<T, DbErr> {
    found(db.query_one_raw(statement).await?)?.try_get("", "value")
}

pub(crate) fn position(row: &QueryResult, column: &str) -> Result<Position, DbErr> {
    let position: i64 = row.try_get("", column)?;
    Ok(Position(u64::try_from(position).unwrap_or_default()))
}

fn ids(messages: &[Logged]) -> String {
    array(messages.iter().map(|message| message.id.as_uuid()))
}

fn array(values: impl Iterator<Item = impl ToString>) -> String {
    let values: Vec<String> = values.map(|value| value.to_string()).collect();
    format!("{{{}}}", values.join(","))
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::pin::pin;
    use std::task::Poll;

    use outbox_testing::backend_url;
    use sea_orm::{ConnectOptions, Database};

    use super::*;

    #[tokio::test]
    async fn dropped_begin_leaves_no_transaction_in_the_pool() {
        let Some(url) = backend_url("OUTBOX_TEST_POSTGRES_URL") else {
            return;
        };
        let mut options = ConnectOptions::new(url);
        options.max_connections(1).sqlx_logging(false);
        let db = Database::connect(options).await.unwrap();
        for polls in 1..20 {
            {
                let mut begin = pin!(begin(&db));
                let mut left = polls;
                poll_fn(|cx| {
                    left -= 1;
                    match begin.as_mut().poll(cx).is_ready() || left == 0 {
                        true => Poll::Ready(()),
                        false => Poll::Pending,
                    }
                })
                .await;
            }
            let mut numbers = Vec::new();
            for _ in 0..2 {
                let sql = "SELECT pg_current_xact_id()::text AS number";
                let row = db.query_one_raw(statement(sql, [])).await.unwrap().unwrap();
                numbers.push(row.try_get::<String>("", "number").unwrap());
            }
            assert_ne!(numbers[0], numbers[1], "{polls} polls");
        }
    }

    #[test]
    fn transaction_ids_are_compared_across_wraparound() {
        let epoch = 1 << 32;
        for (transaction, ended, expected) in [
            (7, 8, true),
            (8, 8, false),
            (9, 8, false),
            (u64::from(u32::MAX), epoch + 5, true),
            (5, u64::from(u32::MAX), false),
        ] {
            assert_eq!(has_ended(transaction, ended), expected, "{transaction} {ended}");
        }
    }
}
