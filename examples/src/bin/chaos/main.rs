//! Several relays over one outbox, one of which is killed or paused every second; `cargo xtask chaos` starts the servers and runs this.
//!
//! Half of the messages are there when the relays start, the other half is recorded while they are killed. When everything is settled the books
//! are balanced: what was committed against the stream, read from database and broker and never from the relays. Invariant: the exit
//! status is 0 only if nothing is lost, invented, out of order or unsettled. Absent here: starting servers.

mod books;
mod relays;
mod world;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Args, Parser, Subcommand};
use serde::Serialize;

use crate::books::Books;
use crate::relays::{Relays, Torment};
use crate::world::World;

/// Whatever ended a run, in words.
pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;
/// The result of a step.
pub(crate) type Result<T> = std::result::Result<T, Failure>;

/// Torments relays and balances the books.
#[derive(Debug, Parser)]
#[command(name = "chaos")]
struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Relays that are killed and paused.
    Relay(Options),
    /// One relay, for its parent.
    #[command(hide = true)]
    Child(relays::Child),
}

/// What is done.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// PostgreSQL or MariaDB; tables with a prefix of their own are made in it, and removed if all is well.
    #[arg(long)]
    database_url: String,
    /// A nats-server with JetStream.
    #[arg(long)]
    nats_url: String,
    /// Messages in all.
    #[arg(long, default_value_t = 200_000)]
    messages: u32,
    /// Aggregates that they belong to.
    #[arg(long, default_value_t = 500)]
    aggregates: u32,
    /// Relays at a time.
    #[arg(long, default_value_t = 4)]
    relays: usize,
    /// Milliseconds between two torments.
    #[arg(long, default_value_t = 1000)]
    every_ms: u64,
    /// Repeats the choice of victims.
    #[arg(long)]
    seed: Option<u64>,
}

/// What came of it.
#[derive(Debug, Serialize)]
struct Report {
    seed: u64,
    seconds: f64,
    #[serde(flatten)]
    torments: Torment,
    #[serde(flatten)]
    books: Books,
}

/// Nothing should take this long.
const PATIENCE: Duration = Duration::from_secs(1800);

#[tokio::main]
async fn main() -> ExitCode {
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .with_writer(std::io::stderr)
        .init();
    let done = match Arguments::parse().what {
        What::Relay(options) => run(&options).await,
        What::Child(options) => relays::child(&options).await.map(|()| true),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(options: &Options) -> Result<bool> {
    let seed = options.seed.unwrap_or_else(|| fastrand::u64(..));
    eprintln!("seed {seed}");
    let world = World::make(options).await?;
    world.record(0..options.messages / 2).await?;
    eprintln!("{} messages recorded, relays start", options.messages / 2);
    let began = Instant::now();
    let mut relays = Relays::start(options, &world, seed)?;
    let (writer, rest) = (world.clone(), options.messages / 2..options.messages);
    let mut recording = tokio::spawn(async move { writer.record(rest).await });
    let mut recorded = false;
    loop {
        tokio::time::sleep(Duration::from_millis(options.every_ms)).await;
        relays.torment_one()?;
        if recording.is_finished() && !recorded {
            (&mut recording).await??;
            recorded = true;
        }
        let unsettled = world.unsettled().await?;
        eprintln!("{unsettled} messages to go, {relays}");
        if recorded && unsettled == 0 {
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
    let balanced = books.is_balanced();
    println!(
        "{}",
        serde_json::to_string(&Report {
            seed,
            seconds,
            torments,
            books
        })?
    );
    if balanced {
        world.remove().await?;
    }
    Ok(balanced)
}
