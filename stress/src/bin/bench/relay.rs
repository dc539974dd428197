//! The relay under test. Its settings are all in [`config`] and [`Retention`].

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use clap::{Args, ValueEnum};
use outbox_core::log::LogRelay;
use outbox_core::shutdown::CancellationToken;
use outbox_core::{Destination, Message, PublishError, Publisher, Receipt, Relay, RelayConfig};
use outbox_log::PostgresLog;
use outbox_nats::{EventStream, JetStreamPublisher};
use outbox_sea_orm::SqlStore;

use crate::child::{Child, Place, serve};
use crate::load::{AGGREGATES, fill};
use crate::raw::per_second;
use crate::servers::{Schema, Servers, Stream, pool};
use crate::{Result, check};

/// Connections of a relay's pool.
pub(crate) const CONNECTIONS: u32 = 3;

/// Whether published rows are kept.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum Retention {
    Keep,
    Delete,
}

impl Retention {
    /// Whether published rows remain after their settlement.
    fn keeps(self) -> bool {
        self == Self::Keep
    }
}

/// The settings of every relay in the benchmark: the defaults, except for the retention of published rows.
pub(crate) fn config(retention: Retention) -> RelayConfig {
    match retention {
        Retention::Keep => RelayConfig::default(),
        Retention::Delete => RelayConfig::default().retention(outbox_core::Retention::Delete),
    }
}

/// A publisher to a stream, over a connection of its own.
pub(crate) async fn publisher(nats_url: &str, stream: &str, prefix: &str) -> Result<JetStreamPublisher> {
    let client = outbox_nats::connect(nats_url, outbox_nats::connect_options()).await?;
    let stream = EventStream::new(stream).with_prefix(prefix)?;
    Ok(stream.publisher(client))
}

/// Fills an outbox, drains it in this process, and returns messages per second.
pub(crate) async fn drain(
    servers: &Servers,
    retention: Retention,
    aggregates: u64,
    messages: u64,
) -> Result<f64> {
    let outbox = servers.outbox().await?;
    fill(&outbox, aggregates, messages).await?;
    let stream = servers.stream().await?;
    let store = SqlStore::new(outbox.pool(CONNECTIONS).await?);
    let publisher = publisher(&stream.nats_url, &stream.name, stream.prefix()).await?;
    let relay = Relay::new(store, publisher).with_config(config(retention));
    let start = Instant::now();
    let report = relay.drain().await?;
    let rate = per_second(messages, start.elapsed());
    check("messages published", report.published, messages)?;
    settled(&outbox, retention, messages).await?;
    stream.remove(messages).await?;
    outbox.remove().await?;
    Ok(rate)
}

/// As [`drain`], with the usual number of aggregates.
pub(crate) async fn drain_many(servers: &Servers, retention: Retention, messages: u64) -> Result<f64> {
    drain(servers, retention, AGGREGATES, messages).await
}

/// Checks that all rows are settled, and kept or deleted.
pub(crate) async fn settled(outbox: &Schema, retention: Retention, messages: u64) -> Result<()> {
    check("rows not settled", outbox.unsettled().await?, 0)?;
    let kept = if retention.keeps() { messages } else { 0 };
    check("rows kept", outbox.messages().await?, kept)
}

/// Runs a relay in this process until it is cancelled.
pub(crate) async fn run(outbox: &Schema, stream: &Stream, shutdown: CancellationToken) -> Result<u64> {
    let store = SqlStore::new(outbox.pool(CONNECTIONS).await?);
    let publisher = publisher(&stream.nats_url, &stream.name, stream.prefix()).await?;
    let relay = Relay::new(store, publisher).with_config(config(Retention::Keep));
    Ok(relay.run(shutdown).await?.published)
}

/// The arguments of a relay in a child process.
#[derive(Args, Clone, Debug)]
pub(crate) struct ChildOptions {
    #[command(flatten)]
    place: Place,
    #[arg(long, value_enum)]
    retention: Retention,
    /// End after this many confirmed messages.
    #[arg(long)]
    messages: Option<u64>,
    /// Read the log, which is set up.
    #[arg(long)]
    log: bool,
}

/// Runs the relay of a child process.
pub(crate) async fn child(options: &ChildOptions) -> Result<()> {
    let place = &options.place;
    let db = pool(&place.postgres_url, Some(&place.schema), CONNECTIONS).await?;
    let store = SqlStore::new(db.clone());
    let publisher = publisher(&place.nats_url, &place.stream, &place.prefix).await?;
    serve(async |shutdown| {
        let messages = options.messages.unwrap_or(u64::MAX);
        let publisher = Counting::new(publisher, messages, shutdown.clone());
        if options.log {
            let log = PostgresLog::new(db, &place.postgres_url)?.named(&place.schema)?;
            let relay = LogRelay::new(store, log, publisher).with_config(config(options.retention));
            return Ok(relay.run(shutdown).await?.published);
        }
        let relay = Relay::new(store, publisher).with_config(config(options.retention));
        Ok(relay.run(shutdown).await?.published)
    })
    .await
}

/// Starts a relay in a child process. It ends after `messages` messages, or runs until it is stopped.
pub(crate) fn start(
    outbox: &Schema,
    stream: &Stream,
    retention: Retention,
    messages: Option<u64>,
) -> Result<Child> {
    let retention = if retention == Retention::Keep {
        "keep"
    } else {
        "delete"
    };
    let messages = messages.map(|messages| messages.to_string());
    let mut arguments = vec!["--retention", retention];
    if let Some(messages) = &messages {
        arguments.extend(["--messages", messages]);
    }
    Child::start("relay-child", outbox, stream, &arguments)
}

/// Starts a relay that reads the log, which is set up, in a child process.
pub(crate) fn start_of_log(outbox: &Schema, stream: &Stream) -> Result<Child> {
    Child::start("relay-child", outbox, stream, &["--retention", "keep", "--log"])
}

/// A publisher that ends the relay after a number of confirmed messages. Messages then in flight are finished as in any
/// shutdown.
#[derive(Clone, Debug)]
pub(crate) struct Counting<P> {
    publisher: P,
    left: Arc<AtomicU64>,
    shutdown: CancellationToken,
}

impl<P> Counting<P> {
    /// Cancels `shutdown` at the last of `messages` messages.
    pub(crate) fn new(publisher: P, messages: u64, shutdown: CancellationToken) -> Self {
        Self {
            publisher,
            left: Arc::new(AtomicU64::new(messages)),
            shutdown,
        }
    }
}

impl<P: Publisher> Publisher for Counting<P> {
    fn destination(&self) -> Option<Destination> {
        self.publisher.destination()
    }

    async fn publish(&self, message: &Message) -> std::result::Result<Receipt, PublishError> {
        let receipt = self.publisher.publish(message).await?;
        if self.left.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.shutdown.cancel();
        }
        Ok(receipt)
    }
}
