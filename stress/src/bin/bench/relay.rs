//! The relay under test, and the groups of its figures. Settings are the defaults, except for
//! [`Retention`].

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use clap::{Args, ValueEnum};
use outbox_core::shutdown::CancellationToken;
use outbox_core::{Destination, Message, PublishError, Publisher, Receipt, Relay, RelayConfig};
use outbox_log::{LogRelay, PostgresLog};
use outbox_nats::{EventStream, JetStreamPublisher};
use outbox_sea_orm::SqlStore;

use crate::child::{Child, Place, serve};
use crate::figure::Figure;
use crate::load::fill;
use crate::raw::per_second;
use crate::servers::{Schema, Servers, Stream, pool};
use crate::{Result, Selected, backlog, check, drain, latency, log, write};

pub(crate) const CONNECTIONS: u32 = 3;

/// A group of figures that are measured together.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum Group {
    Drain,
    Backlog,
    Hot,
    Latency,
    Write,
    Log,
}

pub(crate) async fn figures(servers: &Servers, selected: &Selected<Group>) -> Result<Vec<Figure>> {
    let options = &selected.options;
    let mut figures = Vec::new();
    for group in Group::value_variants() {
        if selected.has(*group) {
            figures.extend(match group {
                Group::Drain => drain::figures(servers, options).await?,
                Group::Backlog => backlog::figures(servers, options).await?,
                Group::Hot => drain::hot(servers, options).await?,
                Group::Latency => latency::figures(servers, options).await?,
                Group::Write => write::figures(servers, options).await?,
                Group::Log => log::figures(options).await?,
            });
        }
    }
    Ok(figures)
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Retention {
    Keep,
    Delete,
}

pub(crate) fn config(retention: Retention) -> RelayConfig {
    match retention {
        Retention::Keep => RelayConfig::default(),
        Retention::Delete => RelayConfig::default().retention(outbox_core::Retention::Delete),
    }
}

pub(crate) async fn publisher(nats_url: &str, stream: &str, prefix: &str) -> Result<JetStreamPublisher> {
    let client = outbox_nats::connect(nats_url, outbox_nats::connect_options()).await?;
    Ok(EventStream::new(stream).with_prefix(prefix)?.publisher(client))
}

pub(crate) async fn relay(
    outbox: &Schema,
    stream: &Stream,
    retention: Retention,
) -> Result<Relay<SqlStore, JetStreamPublisher>> {
    let store = SqlStore::new(outbox.pool(CONNECTIONS).await?);
    let publisher = publisher(&stream.nats_url, &stream.name, stream.prefix()).await?;
    Ok(Relay::new(store, publisher).with_config(config(retention)))
}

pub(crate) async fn drain(
    servers: &Servers,
    retention: Retention,
    aggregates: u64,
    messages: u64,
) -> Result<f64> {
    let outbox = servers.outbox().await?;
    fill(&outbox, aggregates, messages).await?;
    let stream = servers.stream().await?;
    let relay = relay(&outbox, &stream, retention).await?;
    let start = Instant::now();
    let report = relay.drain().await?;
    let rate = per_second(messages, start.elapsed());
    check("messages published", report.published, messages)?;
    settled(&outbox, retention, messages).await?;
    stream.remove(messages).await?;
    outbox.remove().await?;
    Ok(rate)
}

pub(crate) async fn settled(outbox: &Schema, retention: Retention, messages: u64) -> Result<()> {
    check("rows not settled", outbox.unsettled().await?, 0)?;
    let kept = if retention == Retention::Keep { messages } else { 0 };
    check("rows kept", outbox.messages().await?, kept)
}

/// The arguments of a relay in a child process.
#[derive(Args, Clone, Debug)]
pub(crate) struct ChildOptions {
    #[command(flatten)]
    place: Place,
    /// End after this many confirmed messages.
    #[arg(long)]
    messages: Option<u64>,
    /// Read the log, which is set up.
    #[arg(long)]
    log: bool,
}

pub(crate) async fn child(options: &ChildOptions) -> Result<()> {
    let place = &options.place;
    let db = pool(&place.postgres_url, Some(&place.schema), CONNECTIONS).await?;
    let store = SqlStore::new(db.clone());
    let publisher = publisher(&place.nats_url, &place.stream, &place.prefix).await?;
    serve(async |shutdown| {
        let publisher = Counting {
            publisher,
            left: Arc::new(AtomicU64::new(options.messages.unwrap_or(u64::MAX))),
            shutdown: shutdown.clone(),
        };
        let report = if options.log {
            let log = PostgresLog::new(db, &place.postgres_url)?.named(&place.schema)?;
            let relay = LogRelay::new(store, log, publisher);
            relay.with_config(config(Retention::Keep)).run(shutdown).await?
        } else {
            let relay = Relay::new(store, publisher).with_config(config(Retention::Keep));
            relay.run(shutdown).await?
        };
        Ok(report.published)
    })
    .await
}

pub(crate) fn start(outbox: &Schema, stream: &Stream, messages: Option<u64>) -> Result<Child> {
    let messages = messages.map(|messages| format!("--messages={messages}"));
    Child::start("relay-child", outbox, stream, messages.as_deref().as_slice())
}

pub(crate) fn start_of_log(outbox: &Schema, stream: &Stream) -> Result<Child> {
    Child::start("relay-child", outbox, stream, &["--log"])
}

/// Ends the relay after a number of confirmed messages.
#[derive(Clone, Debug)]
struct Counting<P> {
    publisher: P,
    left: Arc<AtomicU64>,
    shutdown: CancellationToken,
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
