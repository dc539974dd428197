//! The overhead of an inbox over its handlers' transactions. After each run, effects and messages
//! are counted.

mod plain;

use std::time::{Duration, Instant};

use outbox_inbox::{
    Event, Handler, HandlerError, Inbox, InboxConfig, InboxReport, Router, Tx, idempotent_handler,
};
use sea_orm::sea_query::ArrayType;
use sea_orm::{ConnectionTrait, DbBackend, DbErr, Statement, Value};
use tokio::time::{sleep, timeout};

use crate::figure::{Figure, Series};
use crate::load::{AGGREGATES, Moved};
use crate::raw::{self, Messages, per_second};
use crate::servers::{Schema, Servers, Stream, count};
use crate::{Options, Result, check};

const TRANSACTIONS: usize = 32;
const UNIT: &str = "messages/s";

const PATIENCE: Duration = Duration::from_secs(900);
const PATIENCE_EACH: Duration = Duration::from_millis(5);
const READ_EVERY: Duration = Duration::from_millis(5);

/// With free space in its pages, PostgreSQL keeps an updated row on the same page.
const ACCOUNTS: &str =
    "CREATE TABLE accounts (id bigint PRIMARY KEY, balance bigint NOT NULL) WITH (fillfactor = 50)";

const FILL_ACCOUNTS: &str = "INSERT INTO accounts SELECT 1000000 + n, 0 FROM generate_series(0, 999) n";

pub(crate) async fn figures(servers: &Servers, options: &Options) -> Result<Vec<Figure>> {
    let messages = options.size(60_000, 15_000);
    let mut rates = Series::default();
    for _ in options.runs("consume") {
        let plain = plain::rate(servers, TRANSACTIONS, messages).await?;
        rates.add("plain", plain);
        let (handled, duplicates) = twice(servers, messages).await?;
        rates.add("one", handled);
        rates.add("duplicates", duplicates);
        let world = World::make(servers, messages).await?;
        let (batch, report) = world.consume::<several>().await?;
        check("messages handled", report.handled, messages)?;
        world.remove().await?;
        rates.add("batch", batch);
    }
    Ok(vec![
        rates.against("consume_one", UNIT, "one", "plain").at_least(0.6),
        rates.against("consume_duplicates", UNIT, "duplicates", "one"),
        rates.against("consume_batch", UNIT, "batch", "one").at_least(3.0),
    ])
}

async fn twice(servers: &Servers, messages: u64) -> Result<(f64, f64)> {
    let world = World::make(servers, messages).await?;
    let (handled, report) = world.consume::<one>().await?;
    check("messages handled", report.handled, messages)?;
    world.stream.forget("one").await?;
    let (duplicates, report) = world.consume::<one>().await?;
    check("duplicates", report.duplicates, messages)?;
    world.remove().await?;
    Ok((handled, duplicates))
}

#[idempotent_handler(consumer = "one")]
async fn one(event: Event<Moved>, tx: Tx<'_>) -> Result<(), HandlerError> {
    credit(&tx, event.account_id).await?;
    Ok(())
}

#[idempotent_handler(consumer = "several", batch = 100)]
async fn several(events: Vec<Event<Moved>>, tx: Tx<'_>) -> Result<(), HandlerError> {
    let ids = events.iter().map(|event| Value::from(event.account_id)).collect();
    let ids = Value::Array(ArrayType::BigInt, Some(Box::new(ids)));
    // `UPDATE` changes each row once, but a batch may repeat an account, so the statement adds up
    // first.
    let sql = "UPDATE accounts SET balance = balance + n \
               FROM (SELECT id AS account, count(*) AS n FROM unnest($1) AS id GROUP BY id) moved WHERE id = account";
    tx.execute_raw(Statement::from_sql_and_values(DbBackend::Postgres, sql, [ids]))
        .await?;
    Ok(())
}

async fn credit<C: ConnectionTrait>(db: &C, account_id: i64) -> Result<(), DbErr> {
    let sql = "UPDATE accounts SET balance = balance + 1 WHERE id = $1";
    db.execute_raw(Statement::from_sql_and_values(
        DbBackend::Postgres,
        sql,
        [account_id.into()],
    ))
    .await?;
    Ok(())
}

#[derive(Debug)]
struct World {
    schema: Schema,
    stream: Stream,
    messages: u64,
}

impl World {
    async fn make(servers: &Servers, messages: u64) -> Result<Self> {
        let (schema, stream) = (tables(servers).await?, servers.stream().await?);
        raw::fill(&stream, &Messages::new(&stream)?, messages).await?;
        Ok(Self {
            schema,
            stream,
            messages,
        })
    }

    async fn consume<H: Handler>(&self) -> Result<(f64, InboxReport)> {
        let config = InboxConfig::default()
            .concurrency(TRANSACTIONS)
            .in_flight_max(2 * TRANSACTIONS);
        let db = self.schema.pool(u32::try_from(TRANSACTIONS)?).await?;
        let inbox = Inbox::new(db.clone(), self.stream.subscriber().await?)
            .with_router(Router::new().handler::<H>())
            .with_config(config);
        let shutdown = outbox_core::shutdown::CancellationToken::new();
        let run = inbox.run(shutdown.clone());
        tokio::pin!(run);
        let start = Instant::now();
        tokio::select! {
            ended = &mut run => return Err(format!("the inbox ended unexpectedly: {:?}", ended?).into()),
            handled = self.until_handled(H::REGISTRATION.consumer) => handled?,
        }
        let elapsed = start.elapsed();
        shutdown.cancel();
        let report = run.await?;
        db.close().await?;
        Ok((per_second(self.messages, elapsed), report))
    }

    async fn until_handled(&self, consumer: &str) -> Result<()> {
        let done = async {
            while self.stream.left(consumer).await? != Some(0) {
                sleep(READ_EVERY).await;
            }
            Ok(())
        };
        let messages = u32::try_from(self.messages).unwrap_or(u32::MAX);
        timeout(PATIENCE + PATIENCE_EACH.saturating_mul(messages), done)
            .await
            .map_err(|_| "the inbox did not handle everything in time")?
    }

    async fn remove(self) -> Result<()> {
        check("effects", effects(&self.schema).await?, self.messages)?;
        self.stream.remove(self.messages).await?;
        self.schema.remove().await
    }
}

async fn tables(servers: &Servers) -> Result<Schema> {
    let schema = servers.schema().await?;
    outbox_inbox::migrate(&schema.db).await?;
    schema.db.execute_unprepared(ACCOUNTS).await?;
    schema.db.execute_unprepared(FILL_ACCOUNTS).await?;
    check(
        "accounts",
        count(&schema.db, "SELECT count(*) AS n FROM accounts").await?,
        AGGREGATES,
    )?;
    // `CHECKPOINT` requires a superuser. Without it the figures are slightly worse.
    let _ = schema.db.execute_unprepared("CHECKPOINT").await;
    Ok(schema)
}

async fn effects(schema: &Schema) -> Result<u64> {
    count(&schema.db, "SELECT sum(balance)::int8 AS n FROM accounts").await
}
