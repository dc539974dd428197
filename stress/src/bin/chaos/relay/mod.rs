//! Several relays over one outbox. At a fixed interval one of them is killed or paused.
//!
//! Half of the messages are recorded before the relays start, the other half while relays are killed. When everything
//! is settled, the committed messages are balanced against the stream, and the stream is compared with what the writer says it has written. Invariant:
//! balanced means that no message is lost, invented, changed, out of order or unsettled.

mod books;
mod world;
mod written;

use std::time::{Duration, Instant};

use clap::Args;
use outbox_core::{Relay, RelayConfig};
use outbox_nats::{EventStream, PublisherConfig};
use outbox_sea_orm::SqlStore;
use serde::Serialize;

use crate::Result;
use crate::processes::{Processes, Torment};
use crate::servers::{connect, names};
use books::Books;
use world::World;
use written::Written;

/// The options of the program.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// PostgreSQL or MariaDB, in which tables with a prefix of their own are made, and removed if all is well.
    #[arg(long)]
    database_url: String,
    /// A nats-server with JetStream.
    #[arg(long)]
    nats_url: String,
    /// The total number of messages.
    #[arg(long, default_value_t = 200_000)]
    messages: u32,
    /// Number of aggregates that the messages belong to.
    #[arg(long, default_value_t = 500)]
    aggregates: u32,
    /// Concurrent relays.
    #[arg(long, default_value_t = 4)]
    relays: usize,
    /// Milliseconds between two faults.
    #[arg(long, default_value_t = 1000)]
    every_ms: u64,
    /// Number of faults, over which the second half of the messages is spread. Without it, they go on as long as there are messages.
    #[arg(long)]
    faults: Option<u32>,
    /// Small sizes: three relays, 1,600 messages and 12 faults, in seconds.
    #[arg(long)]
    small: bool,
    /// Seed for the choice of target processes.
    #[arg(long)]
    seed: Option<u64>,
}

impl Options {
    fn sized(&self) -> Self {
        if !self.small {
            return self.clone();
        }
        Self {
            messages: 1_600,
            aggregates: 40,
            relays: 3,
            every_ms: 250,
            faults: Some(12),
            ..self.clone()
        }
    }

    /// The time that the faults take.
    fn time(&self) -> Duration {
        Duration::from_millis(self.every_ms) * self.faults.unwrap_or(0)
    }
}

/// The result of a run.
#[derive(Debug, Serialize)]
struct Report {
    seed: u64,
    seconds: f64,
    #[serde(flatten)]
    torments: Torment,
    #[serde(flatten)]
    books: Books,
    #[serde(flatten)]
    written: Written,
}

/// A time limit that no run should reach.
const PATIENCE: Duration = Duration::from_secs(1800);

/// Short, so that leases are lost often.
const LEASE: Duration = Duration::from_millis(1500);

/// Returns whether the books balance.
pub(crate) async fn run(options: &Options) -> Result<bool> {
    let options = &options.sized();
    let seed = options.seed.unwrap_or_else(|| fastrand::u64(..));
    eprintln!("seed {seed}");
    let world = World::make(options).await?;
    world.record(0..options.messages / 2, Duration::ZERO).await?;
    eprintln!("{} messages recorded, relays start", options.messages / 2);
    let began = Instant::now();
    let arguments = [
        "relay-child",
        "--database-url",
        &options.database_url,
        "--nats-url",
        &options.nats_url,
        "--name",
        &world.name,
    ];
    // Most pauses outlast the lease.
    let mut relays = Processes::start(options.relays, &arguments, LEASE, seed)?;
    let (writer, rest, time) = (
        world.clone(),
        options.messages / 2..options.messages,
        options.time(),
    );
    let mut recording = tokio::spawn(async move { writer.record(rest, time).await });
    let mut recorded = false;
    loop {
        tokio::time::sleep(Duration::from_millis(options.every_ms)).await;
        relays.look_after()?;
        let Torment { kills, pauses, .. } = relays.done();
        let tormented = options.faults.is_some_and(|faults| kills + pauses >= faults);
        if !tormented {
            relays.torment_one()?;
        }
        if recording.is_finished() && !recorded {
            (&mut recording).await??;
            recorded = true;
        }
        let unsettled = world.unsettled().await?;
        eprintln!("{unsettled} messages to go, {relays}");
        if recorded && unsettled == 0 && (tormented || options.faults.is_none()) {
            break;
        }
        if began.elapsed() > PATIENCE {
            eprintln!("not settled after {PATIENCE:?}");
            break;
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    let torments = relays.stop().await?;
    let books = world.balance().await?;
    let written = world.compare().await?;
    let balanced = books.is_balanced() && written.is_balanced();
    println!(
        "{}",
        serde_json::to_string(&Report {
            seed,
            seconds,
            torments,
            books,
            written
        })?
    );
    if balanced {
        world.remove().await?;
    }
    Ok(balanced)
}

/// The arguments of a child.
#[derive(Args, Clone, Debug)]
pub(crate) struct Child {
    #[arg(long)]
    database_url: String,
    #[arg(long)]
    nats_url: String,
    #[arg(long)]
    name: String,
}

/// Runs one relay until it is told to stop or is killed.
pub(crate) async fn child(options: &Child) -> Result<()> {
    let db = connect(&options.database_url, 4).await?;
    let store = SqlStore::new(db).with_names(&names(&options.name)?)?;
    let client = outbox_nats::connect(&options.nats_url, outbox_nats::connect_options()).await?;
    let stream = EventStream::new(&options.name).with_prefix(&options.name)?;
    let config = PublisherConfig::default().ack_timeout(LEASE / 3);
    let publisher = stream.publisher(client).with_config(config);
    let config = RelayConfig::default()
        .lease_ttl(LEASE)
        .poll_max(Duration::from_millis(100));
    let relay = Relay::new(store, publisher).with_config(config);
    relay.run(outbox_core::shutdown::on_signals()).await?;
    Ok(())
}
