//! The lowest cost of any program that empties this outbox into this stream on these machines.
//!
//! One statement reads the next rows behind a cursor, the headers are those of a relay, and one statement settles 1,024
//! rows. All three overlap. The loop has none of a relay's duties: leases, order within an aggregate, blocks, retries,
//! several relays. It would not be correct either: the cursor loses every message whose transaction commits late.

use std::collections::VecDeque;
use std::future::IntoFuture as _;
use std::time::Instant;

use async_nats::jetstream::context::{Context, PublishAckFuture};
use async_nats::jetstream::message::PublishMessage;
use outbox_core::EventId;
use sea_orm::sea_query::ArrayType;
use sea_orm::{ConnectionTrait as _, DatabaseConnection, DbBackend, QueryResult, Statement, Value};
use tokio::task::JoinSet;
use uuid::Uuid;

use crate::load::{AGGREGATES, fill};
use crate::raw::{Headers, WINDOW, context, header_map, our_headers, per_second};
use crate::relay::{CONNECTIONS, Retention, settled};
use crate::servers::{Servers, Stream};
use crate::{Result, check};

/// Rows per fetch, as a relay fetches by default.
const BATCH: i64 = 4_000;
/// Rows per settlement.
const SETTLE: usize = 1_024;

/// Fills an outbox, empties it, and returns messages per second.
pub(crate) async fn drain(servers: &Servers, retention: Retention, messages: u64) -> Result<f64> {
    let outbox = servers.outbox().await?;
    fill(&outbox, AGGREGATES, messages).await?;
    let stream = servers.stream().await?;
    let mut pipe = Pipe {
        db: outbox.pool(CONNECTIONS).await?,
        context: context(async_nats::connect(stream.nats_url.as_str()).await?),
        headers: our_headers(0)?,
        retention,
        acks: VecDeque::with_capacity(WINDOW),
        done: Vec::new(),
        settling: JoinSet::new(),
    };
    let start = Instant::now();
    let mut rows = fetch(&pipe.db, 0).await?;
    let mut published = 0;
    while let Some(last) = rows.last() {
        let (db, last) = (pipe.db.clone(), last.try_get("", "row_id")?);
        let next = tokio::spawn(async move { fetch(&db, last).await });
        for row in &rows {
            pipe.publish(row, &stream).await?;
        }
        published += rows.len();
        rows = next.await??;
    }
    pipe.finish().await?;
    let rate = per_second(messages, start.elapsed());
    check("messages published", u64::try_from(published)?, messages)?;
    settled(&outbox, retention, messages).await?;
    stream.remove(messages).await?;
    outbox.remove().await?;
    Ok(rate)
}

async fn fetch(db: &DatabaseConnection, after: i64) -> Result<Vec<QueryResult>> {
    // If the planner knew the limit, it would sort the backlog while the table has no statistics.
    let select = "SELECT row_id, id, aggregate_id, sequence, payload FROM outbox_messages \
                  WHERE status = 0 AND row_id > $1 ORDER BY row_id LIMIT (SELECT $2::int8)";
    let values = [Value::from(after), Value::from(BATCH)];
    let select = Statement::from_sql_and_values(DbBackend::Postgres, select, values);
    Ok(db.query_all_raw(select).await?)
}

/// The messages in flight.
struct Pipe {
    db: DatabaseConnection,
    context: Context,
    headers: Headers,
    retention: Retention,
    acks: VecDeque<(i64, PublishAckFuture)>,
    /// Messages confirmed and not settled.
    done: Vec<Value>,
    settling: JoinSet<Result<()>>,
}

impl Pipe {
    async fn publish(&mut self, row: &QueryResult, stream: &Stream) -> Result<()> {
        let id: Uuid = row.try_get("", "id")?;
        let aggregate: String = row.try_get("", "aggregate_id")?;
        let payload: Vec<u8> = row.try_get("", "payload")?;
        let headers = header_map(
            &self.headers,
            &EventId::from(id).to_string(),
            row.try_get("", "sequence")?,
            &stream.name,
        )?;
        let subject = format!("{}.account.{aggregate}.moved", stream.prefix());
        let publish = PublishMessage::build().headers(headers).payload(payload.into());
        let ack = self.context.send_publish(subject, publish).await?;
        self.acks.push_back((row.try_get("", "row_id")?, ack));
        if self.acks.len() >= WINDOW {
            self.confirm().await?;
        }
        Ok(())
    }

    /// Waits for the oldest acknowledgement.
    async fn confirm(&mut self) -> Result<()> {
        if let Some((row_id, ack)) = self.acks.pop_front() {
            ack.into_future().await?;
            self.done.push(Value::from(row_id));
        }
        if self.done.len() >= SETTLE || self.acks.is_empty() {
            let row_ids = Value::Array(ArrayType::BigInt, Some(Box::new(std::mem::take(&mut self.done))));
            let settle = match self.retention {
                Retention::Keep => {
                    "UPDATE outbox_messages SET status = 1, published_at = clock_timestamp() \
                     WHERE status = 0 AND row_id = ANY($1)"
                }
                Retention::Delete => "DELETE FROM outbox_messages WHERE status = 0 AND row_id = ANY($1)",
            };
            let settle = Statement::from_sql_and_values(DbBackend::Postgres, settle, [row_ids]);
            let db = self.db.clone();
            self.settling.spawn(async move {
                db.execute_raw(settle).await?;
                Ok(())
            });
        }
        Ok(())
    }

    async fn finish(mut self) -> Result<()> {
        while !self.acks.is_empty() {
            self.confirm().await?;
        }
        while let Some(settled) = self.settling.join_next().await {
            settled??;
        }
        Ok(())
    }
}
