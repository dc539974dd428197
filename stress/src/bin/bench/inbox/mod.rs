//! The overhead of an inbox over its handlers' transactions, and the cost of an idle inbox.
//!
//! Invariant: effects and messages are counted afterwards.

mod consume;
mod duties;
mod latency;
mod memory;
mod plain;

use std::time::{Duration, Instant};

use clap::ValueEnum;
use outbox_inbox::{Handler, Inbox, InboxConfig, InboxReport, Router};
use tokio::time::{sleep, timeout};

use crate::child::{Child, Place, serve};
use crate::figure::Figure;
use crate::load::AGGREGATES;
use crate::raw::{self, Messages, per_second};
use crate::servers::{Schema, Servers, Stream, count, pool, subscriber};
use crate::{Result, Selected, check};
use duties::{ACCOUNTS, FILL_ACCOUNTS, one};

/// Figures that are measured together.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum Group {
    Consume,
    Strategies,
    Latency,
    Memory,
}

const PATIENCE: Duration = Duration::from_secs(900);
const PATIENCE_EACH: Duration = Duration::from_millis(5);
const READ_EVERY: Duration = Duration::from_millis(5);

pub(crate) async fn figures(servers: &Servers, selected: &Selected<Group>) -> Result<Vec<Figure>> {
    let options = &selected.options;
    let mut figures = Vec::new();
    for group in Group::value_variants() {
        if selected.has(*group) {
            figures.extend(match group {
                Group::Consume => consume::figures(servers, options).await?,
                Group::Strategies => consume::strategies(servers, options).await?,
                Group::Latency => latency::figures(servers, options).await?,
                Group::Memory => memory::figures(servers, options).await?,
            });
        }
    }
    Ok(figures)
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

    async fn consume<H: Handler>(&self, config: InboxConfig) -> Result<(f64, InboxReport)> {
        let db = self.schema.pool(u32::try_from(config.concurrency)?).await?;
        let inbox = Inbox::new(db.clone(), self.stream.subscriber().await?)
            .with_router(Router::new().handler::<H>())
            .with_config(config);
        let shutdown = outbox_core::shutdown::CancellationToken::new();
        let run = inbox.run(shutdown.clone());
        tokio::pin!(run);
        let start = Instant::now();
        tokio::select! {
            ended = &mut run => return Err(format!("the inbox ended by itself: {:?}", ended?).into()),
            handled = self.until_left(H::REGISTRATION.consumer, 0) => handled?,
        }
        let elapsed = start.elapsed();
        shutdown.cancel();
        let report = run.await?;
        db.close().await?;
        Ok((per_second(self.messages, elapsed), report))
    }

    async fn until_left(&self, consumer: &str, left: u64) -> Result<()> {
        let done = async {
            // Without a consumer, all messages are left.
            while self.stream.left(consumer).await?.is_none_or(|now| now > left) {
                sleep(READ_EVERY).await;
            }
            Ok(())
        };
        let messages = u32::try_from(self.messages).unwrap_or(u32::MAX);
        timeout(PATIENCE + PATIENCE_EACH.saturating_mul(messages), done)
            .await
            .map_err(|_| "the inbox did not handle everything in time")?
    }

    fn start(&self) -> Result<Child> {
        Child::start("inbox-child", &self.schema, &self.stream, &[])
    }

    async fn remove(self, effects: u64) -> Result<()> {
        check("effects", self::effects(&self.schema).await?, effects)?;
        self.stream.remove(self.messages).await?;
        self.schema.remove().await
    }
}

async fn tables(servers: &Servers) -> Result<Schema> {
    use sea_orm::ConnectionTrait as _;
    let schema = servers.schema().await?;
    outbox_inbox::migrate(&schema.db).await?;
    schema.db.execute_unprepared(ACCOUNTS).await?;
    schema.db.execute_unprepared(FILL_ACCOUNTS).await?;
    check(
        "accounts",
        count(&schema.db, "SELECT count(*) AS n FROM accounts").await?,
        AGGREGATES,
    )?;
    // Requires a superuser. Without it the figures are slightly worse.
    let _ = schema.db.execute_unprepared("CHECKPOINT").await;
    Ok(schema)
}

async fn effects(schema: &Schema) -> Result<u64> {
    count(&schema.db, "SELECT sum(balance)::int8 AS n FROM accounts").await
}

pub(crate) async fn child(place: &Place) -> Result<()> {
    let connections = u32::try_from(InboxConfig::default().concurrency)?;
    let db = pool(&place.postgres_url, Some(&place.schema), connections).await?;
    let subscriber = subscriber(&place.nats_url, &place.stream, &place.prefix).await?;
    let inbox = Inbox::new(db, subscriber).with_router(Router::new().handler::<one>());
    serve(async |shutdown| Ok(inbox.run(shutdown).await?.handled)).await
}
