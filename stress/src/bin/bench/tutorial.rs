//! A hand-written outbox loop, the second baseline of the relay: without headers, leases or
//! retries.

use std::future::IntoFuture as _;
use std::time::Instant;

use async_nats::jetstream::context::{Context, PublishAckFuture};
use async_nats::jetstream::message::PublishMessage;
use sea_orm::sea_query::ArrayType;
use sea_orm::{
    ConnectionTrait, DatabaseConnection, DbBackend, QueryResult, Statement, TransactionTrait, Value,
};
use uuid::Uuid;

use crate::load::{AGGREGATES, PAYLOAD_BYTES, account_id};
use crate::raw::{context, per_second};
use crate::servers::{Servers, Stream, count};
use crate::{Result, check};

const TABLE: &str = "CREATE TABLE events (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    message_id uuid NOT NULL DEFAULT gen_random_uuid(),
    aggregate_id bigint NOT NULL,
    event_type text NOT NULL,
    payload bytea NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    published_at timestamptz)";

const INDEX: &str = "CREATE INDEX ON events (id) WHERE published_at IS NULL";

pub(crate) async fn drain(servers: &Servers, messages: u64) -> Result<f64> {
    let schema = servers.schema().await?;
    fill(&schema.db, messages).await?;
    let stream = servers.stream().await?;
    let context = context(async_nats::connect(stream.nats_url.as_str()).await?);
    let start = Instant::now();
    while pass(&schema.db, &context, &stream).await? {}
    let rate = per_second(messages, start.elapsed());
    let left = count(
        &schema.db,
        "SELECT count(*) AS n FROM events WHERE published_at IS NULL",
    )
    .await?;
    check("rows not published by the loop", left, 0)?;
    stream.remove(messages).await?;
    schema.remove().await?;
    Ok(rate)
}

async fn fill(db: &DatabaseConnection, messages: u64) -> Result<()> {
    db.execute_unprepared(TABLE).await?;
    db.execute_unprepared(INDEX).await?;
    let insert = format!(
        "INSERT INTO events (aggregate_id, event_type, payload) \
         SELECT {} + n % {AGGREGATES}, 'moved', convert_to(repeat('n', {PAYLOAD_BYTES}), 'UTF8') \
         FROM generate_series(0, {messages} - 1) n",
        account_id(0)
    );
    db.execute_unprepared(&insert).await?;
    let _ = db.execute_unprepared("CHECKPOINT").await;
    Ok(())
}

async fn pass(db: &DatabaseConnection, context: &Context, stream: &Stream) -> Result<bool> {
    let tx = db.begin().await?;
    let select = "SELECT id, message_id, aggregate_id, event_type, payload FROM events \
                  WHERE published_at IS NULL ORDER BY id LIMIT 100 FOR UPDATE SKIP LOCKED";
    let rows = tx
        .query_all_raw(Statement::from_string(DbBackend::Postgres, select))
        .await?;
    let mut ids = Vec::with_capacity(rows.len());
    let mut acks = Vec::new();
    for row in &rows {
        ids.push(Value::from(row.try_get::<i64>("", "id")?));
        acks.push(send(context, stream, row).await?);
    }
    for ack in acks {
        ack.into_future().await?;
    }
    let ids = Value::Array(ArrayType::BigInt, Some(Box::new(ids)));
    let update = "UPDATE events SET published_at = now() WHERE id = ANY($1)";
    tx.execute_raw(Statement::from_sql_and_values(DbBackend::Postgres, update, [ids]))
        .await?;
    tx.commit().await?;
    Ok(!rows.is_empty())
}

async fn send(context: &Context, stream: &Stream, row: &QueryResult) -> Result<PublishAckFuture> {
    let id: Uuid = row.try_get("", "message_id")?;
    let aggregate: i64 = row.try_get("", "aggregate_id")?;
    let event: String = row.try_get("", "event_type")?;
    let payload: Vec<u8> = row.try_get("", "payload")?;
    let subject = format!("{}.account.{aggregate}.{event}", stream.prefix());
    let publish = PublishMessage::build()
        .message_id(id.to_string())
        .payload(payload.into());
    Ok(context.send_publish(subject, publish).await?)
}
