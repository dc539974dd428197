//! What the relay of the log asks of the table, and what it writes there.
//!
//! Nothing here locks a row but `adopt` and `purge`, which lock the rows that they change, and only those. Rows are found by the primary key, pending ones by
//! the index `outbox_messages_pending`.

use std::time::Duration;

use outbox_core::log::{Look, LookRequest, Position};
use outbox_core::{Aggregate, MessageId, PurgeRequest, Purged, StoreError};
use sea_orm::{ConnectionTrait, DatabaseConnection, DbErr, QueryResult};
use time::OffsetDateTime;
use uuid::Uuid;

use crate::failure::trouble;
use crate::sql::{LOGGED, Names, statement};

/// Largest difference between the clocks of writers, who make the ids, and the database's, that a purge allows for.
const CLOCKS_APART: Duration = Duration::from_secs(24 * 3600);

/// Pending messages, in the order of their row ids. Reads the index of the pending ones.
pub(crate) async fn pending(
    db: &DatabaseConnection,
    names: &Names,
    limit: usize,
) -> Result<Vec<(Aggregate, MessageId)>, StoreError> {
    let sql = format!(
        "SELECT aggregate_type, aggregate_id, id FROM {} WHERE status = 0 ORDER BY row_id LIMIT $1",
        names.messages
    );
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let read = |row: QueryResult| {
        let aggregate = Aggregate::new(
            row.try_get_by_index::<String>(0)?,
            row.try_get_by_index::<String>(1)?,
        );
        Ok((aggregate, id_of(&row, 2)?))
    };
    let rows = db.query_all_raw(statement(sql, [limit.into()])).await;
    rows.and_then(|rows| rows.into_iter().map(read).collect())
        .map_err(trouble("pending messages could not be read"))
}

/// Writes a mark into the log, so that a reading gets to its position although nothing else is written. It is a commit of its own: a crash leaves nothing.
pub(crate) async fn written(db: &DatabaseConnection) -> Result<Position, StoreError> {
    let sql = "SELECT (pg_logical_emit_message(true, 'outbox', '') - '0/0')::bigint AS position";
    let row = db.query_one_raw(statement(sql, [])).await;
    row.and_then(|row| position(&found(row)?, "position"))
        .map_err(trouble("the end of the log could not be asked for"))
}

/// One statement, so its answers are of one moment.
pub(crate) async fn look(
    db: &DatabaseConnection,
    names: &Names,
    request: LookRequest<'_>,
) -> Result<Look, StoreError> {
    let (messages, blocks) = (&names.messages, &names.blocks);
    // The blocked ones of the aggregates, the messages that are not decided, and a row of its own for the rest.
    let sql = format!(
        "SELECT b.aggregate_type, b.aggregate_id, NULL::uuid AS id, 0::bigint AS status, 0::bigint AS now_micros \
         FROM json_to_recordset($1::json) AS asked(t text, i text) \
         JOIN {blocks} b ON b.aggregate_type = asked.t COLLATE \"C\" AND b.aggregate_id = asked.i COLLATE \"C\" \
         UNION ALL \
         SELECT NULL, NULL, m.id, m.status::bigint, 0 FROM {messages} m \
         WHERE m.id = ANY($2::text::uuid[]) AND m.status IN (0, 3, {LOGGED}) \
         UNION ALL \
         SELECT NULL, NULL, NULL, (EXISTS (SELECT FROM {blocks}))::int::bigint, \
         (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
    );
    let aggregates: Vec<_> = request
        .aggregates
        .iter()
        .map(|aggregate| serde_json::json!({"t": aggregate.aggregate_type, "i": aggregate.id}))
        .collect();
    let aggregates = serde_json::Value::from(aggregates).to_string();
    let asked = [aggregates.into(), array(request.messages).into()];
    let rows = db.query_all_raw(statement(sql, asked)).await;
    rows.and_then(|rows| read_look(&rows))
        .map_err(trouble("the table could not be looked at"))
}

fn read_look(rows: &[QueryResult]) -> Result<Look, DbErr> {
    let mut look = Look {
        blocked: Vec::new(),
        any_blocked: false,
        logged: Vec::new(),
        open: Vec::new(),
        now: OffsetDateTime::UNIX_EPOCH,
    };
    for row in rows {
        let status: i64 = row.try_get("", "status")?;
        if let Some(aggregate_type) = row.try_get::<Option<String>>("", "aggregate_type")? {
            let id: String = row.try_get("", "aggregate_id")?;
            look.blocked.push(Aggregate::new(aggregate_type, id));
        } else if let Some(id) = row.try_get::<Option<Uuid>>("", "id")? {
            match status == i64::from(LOGGED) {
                true => look.logged.push(id.into()),
                false => look.open.push(id.into()),
            }
        } else {
            let micros: i64 = row.try_get("", "now_micros")?;
            look.any_blocked = status > 0;
            look.now = OffsetDateTime::from_unix_timestamp_nanos(i128::from(micros) * 1000)
                .map_err(|error| DbErr::Custom(format!("the server's time is out of range: {error}")))?;
        }
    }
    Ok(look)
}

/// Locks the rows that are still logged. Repeating it changes nothing.
pub(crate) async fn adopt(
    db: &DatabaseConnection,
    names: &Names,
    messages: &[MessageId],
) -> Result<(), StoreError> {
    let sql = format!(
        "UPDATE {} SET status = 0 WHERE id = ANY($1::text::uuid[]) AND status = {LOGGED}",
        names.messages
    );
    let adopted = db.execute_raw(statement(sql, [array(messages).into()])).await;
    adopted
        .map(drop)
        .map_err(trouble("messages could not be adopted by the table"))
}

/// Reads a page of ids in their order, which is roughly that of time, and deletes those of its rows that are logged, old enough, and passed by the position.
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
        "WITH page AS MATERIALIZED (SELECT id FROM {messages} WHERE id > $1 AND id < $2 ORDER BY id LIMIT $3), \
         gone AS (DELETE FROM {messages} m USING page p WHERE m.id = p.id AND m.status = {LOGGED} \
         AND m.created_at < clock_timestamp() - $4 * interval '1 microsecond' AND {is_passed} RETURNING m.id) \
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
    ];
    let read = |row: QueryResult| {
        let (deleted, met): (i64, i64) = (row.try_get("", "deleted")?, row.try_get("", "met")?);
        let last: Option<Uuid> = row.try_get("", "last")?;
        Ok(Purged {
            deleted: u64::try_from(deleted).unwrap_or_default(),
            next: last.filter(|_| met == limit).map(MessageId::from),
        })
    };
    let row = db.query_one_raw(statement(sql, values)).await;
    row.and_then(|row| read(found(row)?))
        .map_err(trouble("logged messages could not be purged"))
}

/// Whether the stored position has passed the transaction that wrote a row. Ids of transactions are compared by their age, because they begin again after four
/// billion. A row that is more than two billion transactions old counts as not passed until its id is young again.
pub(crate) fn is_passed(names: &Names, table: &str) -> String {
    let (log, slot) = (&names.log, &names.slot);
    format!("age({table}.xmin) > (SELECT age(l.passed_xid::xid) FROM {log} l WHERE l.name = '{slot}')")
}

/// The smallest id of version 7 that is made at a time.
fn first_id_of(time: OffsetDateTime) -> Uuid {
    let millis = u128::try_from(time.unix_timestamp_nanos() / 1_000_000).unwrap_or_default();
    Uuid::from_u128(millis << 80)
}

fn id_of(row: &QueryResult, place: usize) -> Result<MessageId, DbErr> {
    row.try_get_by_index::<Uuid>(place).map(MessageId::from)
}

pub(crate) fn found(row: Option<QueryResult>) -> Result<QueryResult, DbErr> {
    row.ok_or_else(|| DbErr::RecordNotFound("the server returned no row".to_owned()))
}

/// A position that the statement returns as a `bigint`.
pub(crate) fn position(row: &QueryResult, column: &str) -> Result<Position, DbErr> {
    let position: i64 = row.try_get("", column)?;
    Ok(Position(u64::try_from(position).unwrap_or_default()))
}

/// An array literal.
fn array(ids: &[MessageId]) -> String {
    let ids: Vec<String> = ids.iter().map(|id| id.as_uuid().to_string()).collect();
    format!("{{{}}}", ids.join(","))
}
