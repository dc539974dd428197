//! Consumers of one stream, in several processes, under faults. Three plans run in sequence:
//!
//! - *Copies*: each event is on the stream many times.
//! - *Kills*: processes are killed and paused.
//! - *Failures*: handlers fail or abort at random, and always fail on some messages.
//!
//! Invariant: each event has exactly one effect or exactly one dead letter. Only *Failures* may
//! have dead letters.

mod books;
mod consumer;
mod world;

use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::Result;
use crate::processes::{Processes, Torment};
use books::Books;
pub(crate) use consumer::{Child, child};
use world::World;

#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// PostgreSQL or MariaDB, for prefixed tables that are removed if no message is lost or
    /// repeated; or `sqlite`, for a new file.
    #[arg(long)]
    database_url: String,
    /// A nats-server with JetStream.
    #[arg(long)]
    nats_url: String,
    /// Run only these of the plans `copies`, `kills` and `failures`.
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Plan>,
    /// Use the sizes of a test: seconds instead of minutes.
    #[arg(long)]
    small: bool,
    /// Seed for the choice of target processes and the order of copies.
    #[arg(long)]
    seed: Option<u64>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Plan {
    Copies,
    Kills,
    Failures,
}

#[derive(Clone, Copy, Debug)]
struct Sizes {
    events: u32,
    copies: u32,
    /// Number of killed processes. Half as many processes are paused.
    kills: u32,
}

impl Sizes {
    /// The number of faults that are due. All kills are due at three quarters of the messages, so
    /// that a delayed driver can catch up.
    fn due(self, handled: u64, messages: u64) -> u64 {
        let kills = u64::from(self.kills);
        (kills * handled * 4).div_ceil(messages * 3).min(kills)
    }
}

impl Options {
    fn sizes(&self, plan: Plan) -> Sizes {
        let (events, copies, kills) = match (plan, self.small) {
            (Plan::Copies, false) => (10_000, 100, 0),
            (Plan::Copies, true) => (50, 40, 0),
            (Plan::Kills, false) => (100_000, 1, 200),
            (Plan::Kills, true) => (1_000, 1, 6),
            (Plan::Failures, false) => (100_000, 1, 20),
            (Plan::Failures, true) => (500, 1, 2),
        };
        Sizes {
            events,
            copies,
            kills,
        }
    }
}

#[derive(Debug, Serialize)]
struct Report {
    plan: Plan,
    seed: u64,
    seconds: f64,
    messages: u64,
    deliveries: u64,
    #[serde(flatten)]
    torments: Torment,
    #[serde(flatten)]
    books: Books,
    balanced: bool,
}

const PROCESSES: usize = 4;
const PATIENCE: Duration = Duration::from_secs(3600);
const LOOK: Duration = Duration::from_millis(20);

pub(crate) async fn run(options: &Options) -> Result<bool> {
    let seed = options.seed.unwrap_or_else(|| fastrand::u64(..));
    eprintln!("seed {seed}");
    let mut balanced = true;
    for plan in Plan::value_variants() {
        if options.only.is_empty() || options.only.contains(plan) {
            balanced &= carry_out(*plan, options, seed).await?;
        }
    }
    Ok(balanced)
}

async fn carry_out(plan: Plan, options: &Options, seed: u64) -> Result<bool> {
    let sizes = options.sizes(plan);
    let world = World::make(&options.database_url, &options.nats_url).await?;
    world.publish(sizes.events, sizes.copies, seed).await?;
    let messages = u64::from(sizes.events) * u64::from(sizes.copies);
    eprintln!(
        "{plan:?}: {messages} messages of {} events published, consumers start",
        sizes.events
    );
    let began = Instant::now();
    let mut arguments = vec!["inbox-child"];
    arguments.extend(world.ground.place.arguments());
    let misbehave = plan == Plan::Failures;
    arguments.extend(misbehave.then_some("--misbehave"));
    let mut consumers = Processes::start(PROCESSES, &arguments, consumer::ACK_WAIT, seed)?;
    let mut told = Instant::now();
    let mut quiet = 0;
    while quiet < 2 {
        tokio::time::sleep(LOOK).await;
        consumers.look_after()?;
        let left = world.left().await?.unwrap_or(messages);
        quiet = if left == 0 { quiet + 1 } else { 0 };
        let handled = messages.saturating_sub(left);
        let kills = consumers.done().kills;
        if left > 0 && u64::from(kills) < sizes.due(handled, messages) {
            consumers.kill_one()?;
            if kills % 2 == 0 {
                consumers.pause_one()?;
            }
        }
        if told.elapsed() > Duration::from_secs(5) {
            told = Instant::now();
            eprintln!("{plan:?}: {left} messages to go, {:?}", consumers.done());
        }
        if began.elapsed() > PATIENCE {
            eprintln!("not done after {PATIENCE:?}");
            break;
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    let torments = consumers.stop().await?;
    let books = world.balance(sizes.events, misbehave).await?;
    let balanced = books.is_balanced() && (misbehave || (books.dead_letters == 0 && torments.ends == 0));
    let deliveries = world.deliveries().await?;
    let report = Report {
        plan,
        seed,
        seconds,
        messages,
        deliveries,
        torments,
        books,
        balanced,
    };
    println!("{}", serde_json::to_string(&report)?);
    if balanced {
        world.ground.remove().await?;
    }
    Ok(balanced)
}
