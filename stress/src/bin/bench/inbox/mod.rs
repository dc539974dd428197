//! The cost that an inbox adds to its handlers' transactions, and the cost of an idle inbox.
//!
//! The driver publishes messages with the headers and payloads that a relay would send. Invariant: as for all figures,
//! effects and messages are counted afterwards.

mod across;
mod consume;
mod duties;
mod failing;
mod latency;
mod memory;
mod plain;
mod strategies;
mod trimmed;

use std::time::{Duration, Instant};

use clap::ValueEnum;
use outbox_inbox::{Handler, Inbox, InboxConfig, InboxReport, Router};
use tokio::time::{sleep, timeout};

use crate::child::{Child, Place, serve};
use crate::figure::{Figure, Target};
use crate::load::{AGGREGATES, Moved};
use crate::raw::{self, Messages, per_second};
use crate::servers::{Schema, Servers, Stream, count, pool, subscriber};
use crate::{Options, Result, check};
use duties::{
    ACCOUNTS, FILL_ACCOUNTS, one, sequence, sequence_in_turn, sequence_stumbling, sequence_waiting,
};

/// Figures that are measured together.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum Group {
    Consume,
    Strategies,
    Latency,
    Memory,
    Failing,
    Across,
    Trimmed,
    TrimmedAcross,
}

/// The longest wait until a consumer has handled everything, without the time for the messages.
const PATIENCE: Duration = Duration::from_secs(900);
/// The longest time for a message, on average.
const PATIENCE_EACH: Duration = Duration::from_millis(5);
/// The interval between two looks at the messages that a consumer has left.
const LOOK: Duration = Duration::from_millis(5);

/// Aggregates with many messages each.
const HOT: u64 = 26;

/// Rates of a figure and of its baseline, one element per run.
#[derive(Debug, Default)]
struct Rates {
    values: Vec<f64>,
    baselines: Vec<f64>,
}

impl Rates {
    fn figure(&self, name: &'static str, at_least: impl Into<Option<f64>>) -> Figure {
        let figure = Figure::against(name, "messages/s", &self.values, &self.baselines);
        match at_least.into() {
            Some(ratio) => figure.target(Target::AtLeast(ratio)),
            None => figure,
        }
    }
}

/// Measures the wanted groups.
pub(crate) async fn figures(
    servers: &Servers,
    options: &Options,
    is_wanted: impl Fn(Group) -> bool,
) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    if is_wanted(Group::Consume) {
        figures.extend(consume::figures(servers, options).await?);
    }
    if is_wanted(Group::Strategies) {
        figures.extend(strategies::figures(servers, options).await?);
    }
    if is_wanted(Group::Latency) {
        figures.extend(latency::figures(servers, options).await?);
    }
    if is_wanted(Group::Memory) {
        figures.extend(memory::figures(servers, options).await?);
    }
    if is_wanted(Group::Failing) {
        figures.extend(failing::figures(servers, options).await?);
    }
    if is_wanted(Group::Across) {
        figures.extend(across::figures(servers, options).await?);
    }
    if is_wanted(Group::Trimmed) {
        figures.extend(trimmed::figures(servers, options).await?);
    }
    if is_wanted(Group::TrimmedAcross) {
        figures.extend(trimmed::across_figures(servers, options).await?);
    }
    Ok(figures)
}

/// A world with this many messages of each hot aggregate on its stream.
async fn hot_world(servers: &Servers, length: u64) -> Result<World> {
    let mut world = World::empty(servers).await?;
    let maker = Messages::of(&world.stream, 0..HOT, |id| Moved::new(id, 0))?;
    world.fill(&maker, HOT * length).await?;
    Ok(world)
}

/// Tables for handlers, and a stream full of messages for them.
#[derive(Debug)]
struct World {
    schema: Schema,
    stream: Stream,
    messages: u64,
}

impl World {
    async fn make(servers: &Servers, messages: u64) -> Result<Self> {
        let mut world = Self::empty(servers).await?;
        world.fill(&Messages::new(&world.stream)?, messages).await?;
        Ok(world)
    }

    /// A world whose stream is empty.
    async fn empty(servers: &Servers) -> Result<Self> {
        Ok(Self {
            schema: tables(servers).await?,
            stream: servers.stream().await?,
            messages: 0,
        })
    }

    /// Publishes messages to the stream.
    async fn fill(&mut self, maker: &Messages, messages: u64) -> Result<()> {
        raw::fill(&self.stream, maker, messages).await?;
        self.messages += messages;
        Ok(())
    }

    /// Runs an inbox with only this handler until it has handled everything on the stream. Returns messages per second.
    async fn consume<H: Handler>(&self, config: InboxConfig) -> Result<(f64, InboxReport)> {
        let connections = config.concurrency;
        let router = Router::new().handler::<H>();
        let handled = async {
            let start = Instant::now();
            self.until_left(H::REGISTRATION.consumer, 0).await?;
            Ok(start.elapsed())
        };
        let (elapsed, report) = self.during(router, config, connections, handled).await?;
        Ok((per_second(self.messages, elapsed), report))
    }

    /// Runs an inbox for as long as another future takes.
    async fn during<T>(
        &self,
        router: Router,
        config: InboxConfig,
        connections: usize,
        work: impl Future<Output = Result<T>>,
    ) -> Result<(T, InboxReport)> {
        let db = self.schema.pool(u32::try_from(connections)?).await?;
        let inbox = Inbox::new(db.clone(), self.stream.subscriber().await?)
            .with_router(router)
            .with_config(config);
        let shutdown = outbox_core::shutdown::CancellationToken::new();
        let run = inbox.run(shutdown.clone());
        tokio::pin!(run);
        let done = tokio::select! {
            ended = &mut run => return Err(format!("the inbox ended by itself: {:?}", ended?).into()),
            done = work => done?,
        };
        shutdown.cancel();
        let report = run.await?;
        db.close().await?;
        Ok((done, report))
    }

    /// Waits until a consumer has no more than this many messages left to acknowledge.
    async fn until_left(&self, consumer: &str, left: u64) -> Result<()> {
        let done = async {
            // A consumer that does not exist yet has all messages left.
            while self.stream.left(consumer).await?.is_none_or(|now| now > left) {
                sleep(LOOK).await;
            }
            Ok(())
        };
        let messages = u32::try_from(self.messages).unwrap_or(u32::MAX);
        timeout(PATIENCE + PATIENCE_EACH.saturating_mul(messages), done)
            .await
            .map_err(|_| "the inbox did not handle everything in time")?
    }

    /// Starts an inbox with the default settings in a process of its own. Its consumer is that of [`one`].
    fn start(&self) -> Result<Child> {
        Child::start("inbox-child", &self.schema, &self.stream, &[])
    }

    /// Checks the number of effects, and removes tables and stream.
    async fn remove(self, effects: u64) -> Result<()> {
        check("effects", self::effects(&self.schema).await?, effects)?;
        self.stream.remove(self.messages).await?;
        self.schema.remove().await
    }
}

/// Creates the tables that handlers write to: those of the inbox, and an account for each aggregate.
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
    // Only superusers may do this. Without it the figures are slightly worse.
    let _ = schema.db.execute_unprepared("CHECKPOINT").await;
    Ok(schema)
}

/// Number of effects: each adds one to a balance.
async fn effects(schema: &Schema) -> Result<u64> {
    count(&schema.db, "SELECT sum(balance)::int8 AS n FROM accounts").await
}

/// Runs the inbox of a child process.
pub(crate) async fn child(place: &Place) -> Result<()> {
    serve_inbox::<one>(place, InboxConfig::default().concurrency).await
}

/// What the handlers of several inboxes do that keep order together.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum Duty {
    /// A statement.
    InTurn,
    /// They wait as well.
    Waiting,
    /// They fail now and then.
    Stumbling,
    /// A statement, in whatever order.
    Any,
}

/// Runs one of several inboxes, each in its own child process.
pub(crate) async fn sequence_child(place: &Place, duty: Duty) -> Result<()> {
    let connections = failing::connections();
    match duty {
        Duty::InTurn => serve_inbox::<sequence_in_turn>(place, connections).await,
        Duty::Waiting => serve_inbox::<sequence_waiting>(place, connections).await,
        Duty::Stumbling => serve_inbox::<sequence_stumbling>(place, connections).await,
        Duty::Any => serve_inbox::<sequence>(place, connections).await,
    }
}

async fn serve_inbox<H: Handler>(place: &Place, connections: usize) -> Result<()> {
    let connections = u32::try_from(connections)?;
    let db = pool(&place.postgres_url, Some(&place.schema), connections).await?;
    let subscriber = subscriber(&place.nats_url, &place.stream, &place.prefix).await?;
    let inbox = Inbox::new(db, subscriber).with_router(Router::new().handler::<H>());
    serve(async |shutdown| Ok(inbox.run(shutdown).await?.handled)).await
}
