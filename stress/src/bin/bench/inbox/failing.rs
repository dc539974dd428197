//! The cost of failing messages for the others, and of order across processes. Each is compared to the same work
//! without it.
//!
//! Invariant: failing messages have failed before the clock starts, and are retried while it runs. Where order is
//! promised, a message out of turn never takes effect, so the count of effects reveals it.

use std::time::{Duration, Instant};

use outbox_inbox::{Handler, InboxConfig, Router};
use tokio::time::{sleep, timeout};

use super::duties::{in_turn, mixed, picky, sequence_in_turn, stumbles, stumbling, wait_for_ever};
use super::{PATIENCE, World};
use crate::child::Child;
use crate::figure::{Figure, Target};
use crate::load::{AGGREGATES, Moved, Stuck, account_id};
use crate::raw::{self, Messages, per_second};
use crate::servers::{Servers, count};
use crate::{Options, Result, check};

/// Aggregates with many messages each.
const HOT: u64 = 26;
/// Messages of each hot aggregate, in measurements with several processes.
const SHARED_LENGTH: u64 = 800;
/// Large enough that no message is dead-lettered while the clock runs.
const ATTEMPTS_MAX: u32 = 1_000_000;
/// The interval between two counts of the failed messages.
const FAILED_LOOK: Duration = Duration::from_millis(50);

/// Messages that fail again and again, each of its own aggregate.
#[derive(Clone, Copy, Debug)]
struct Trouble {
    messages: u64,
    /// Number of failing messages that must have failed before the clock starts.
    first: u64,
    make: fn(&World, u64) -> Result<Messages>,
}

/// Rates of a figure and of its baseline, one element per run.
#[derive(Debug, Default)]
struct Rates {
    values: Vec<f64>,
    baselines: Vec<f64>,
}

impl Rates {
    fn figure(&self, name: &'static str, at_least: f64) -> Figure {
        Figure::against(name, "messages/s", &self.values, &self.baselines).target(Target::AtLeast(at_least))
    }
}

/// Measures this group.
pub(super) async fn figures(servers: &Servers, options: &Options) -> Result<Vec<Figure>> {
    let healthy = options.size(30_000, 8_000);
    let length = options.size(800, 200);
    let failing = options.size(10_000, 2_000);
    let failing = Trouble {
        messages: failing,
        first: failing,
        make: |world, messages| {
            let aggregates = AGGREGATES..AGGREGATES + messages;
            Messages::of(&world.stream, aggregates, |id| Moved::new(id, 0))
        },
    };
    let timeouts = Trouble {
        messages: options.size(1_000, 200),
        // As many as run concurrently: once these have failed, the inbox knows that the handler fails.
        first: config().concurrency as u64,
        make: |world, messages| Messages::of(&world.stream, AGGREGATES..AGGREGATES + messages, Stuck::new),
    };
    let picky = Router::new().handler::<picky>();
    let mixed = Router::new().handler::<mixed>().handler::<wait_for_ever>();
    let mut rates: [Rates; 4] = Default::default();
    let [beside_failing, beside_timeouts, hot, shared] = &mut rates;
    for run in 1..=options.runs() {
        eprintln!("failing: run {run} of {}", options.runs());
        let (router, rates) = (&picky, &mut *beside_failing);
        rates.baselines.push(alone(servers, router, healthy).await?);
        rates
            .values
            .push(beside(servers, router, healthy, failing).await?);
        let (router, rates) = (&mixed, &mut *beside_timeouts);
        rates.baselines.push(alone(servers, router, healthy).await?);
        rates
            .values
            .push(beside(servers, router, healthy, timeouts).await?);
        hot.baselines.push(in_order::<in_turn>(servers, length, 0).await?);
        let failures = failures(length);
        hot.values
            .push(in_order::<stumbling>(servers, length, failures).await?);
        shared.baselines.push(processes(servers, 1).await?);
        shared.values.push(processes(servers, 3).await?);
    }
    Ok(vec![
        beside_failing.figure("healthy_beside_failing", 0.8),
        beside_timeouts.figure("healthy_beside_timeouts", 0.8),
        hot.figure("hot_with_failures", 0.7),
        shared.figure("sequence_three_processes", 1.0),
    ])
}

fn config() -> InboxConfig {
    InboxConfig::default()
}

/// Pool size for the default settings: two more connections than handlers, so that the inbox's own statements wait for
/// no handler.
pub(super) fn connections() -> usize {
    config().concurrency + 2
}

/// Messages per second of healthy messages alone.
async fn alone(servers: &Servers, router: &Router, healthy: u64) -> Result<f64> {
    let nothing = Trouble {
        messages: 0,
        first: 0,
        make: |world, _| Messages::new(&world.stream),
    };
    beside(servers, router, healthy, nothing).await
}

/// Messages per second of healthy messages, which are published once the others have failed.
async fn beside(servers: &Servers, router: &Router, healthy: u64, trouble: Trouble) -> Result<f64> {
    let mut world = World::empty(servers).await?;
    world
        .fill(&(trouble.make)(&world, trouble.messages)?, trouble.messages)
        .await?;
    let maker = Messages::new(&world.stream)?;
    let consumer = *router.consumers().first().ok_or("a router has no consumer")?;
    let work = async {
        until_failed(&world, trouble.first).await?;
        // The consumer does not exist yet.
        world.until_left(consumer, trouble.messages).await?;
        let start = Instant::now();
        raw::fill(&world.stream, &maker, healthy).await?;
        world.until_left(consumer, trouble.messages).await?;
        Ok(start.elapsed())
    };
    let config = config().attempts_max(ATTEMPTS_MAX);
    let (elapsed, report) = world.during(router.clone(), config, connections(), work).await?;
    check("messages handled", report.handled, healthy)?;
    world.messages += healthy;
    world.remove(healthy).await?;
    Ok(per_second(healthy, elapsed))
}

/// Waits until this many messages have failed.
async fn until_failed(world: &World, messages: u64) -> Result<()> {
    let failed = async {
        let sql = "SELECT count(*) AS n FROM inbox_messages WHERE attempts > 0";
        while count(&world.schema.db, sql).await? < messages {
            sleep(FAILED_LOOK).await;
        }
        Ok(())
    };
    timeout(PATIENCE, failed)
        .await
        .map_err(|_| "not every message that fails did so in time")?
}

/// A world with this many messages of each hot aggregate on its stream.
async fn hot_world(servers: &Servers, length: u64) -> Result<World> {
    let mut world = World::empty(servers).await?;
    let maker = Messages::of(&world.stream, 0..HOT, |id| Moved::new(id, 0))?;
    world.fill(&maker, HOT * length).await?;
    Ok(world)
}

/// The number of messages of the hot aggregates that fail once.
fn failures(length: u64) -> u64 {
    let of = |aggregate| (1..=length).filter(move |number| stumbles(account_id(aggregate), *number));
    (0..HOT).flat_map(of).count() as u64
}

/// Messages per second of the hot aggregates, from the start of the inbox to the last acknowledgement.
async fn in_order<H: Handler>(servers: &Servers, length: u64, failures: u64) -> Result<f64> {
    let world = hot_world(servers, length).await?;
    let work = async {
        let start = Instant::now();
        world.until_left(H::REGISTRATION.consumer, 0).await?;
        Ok(start.elapsed())
    };
    let router = Router::new().handler::<H>();
    let (elapsed, report) = world.during(router, config(), connections(), work).await?;
    let messages = world.messages;
    check("messages handled", report.handled, messages)?;
    check("failures", report.failed, failures)?;
    world.remove(messages).await?;
    Ok(per_second(messages, elapsed))
}

/// Messages per second of the hot aggregates, shared by this many processes, from the start of the processes to the
/// last acknowledgement.
async fn processes(servers: &Servers, processes: usize) -> Result<f64> {
    let world = hot_world(servers, SHARED_LENGTH).await?;
    let start = Instant::now();
    let children = (0..processes)
        .map(|_| Child::start("sequence-child", &world.schema, &world.stream, &[]))
        .collect::<Result<Vec<_>>>()?;
    world
        .until_left(sequence_in_turn::REGISTRATION.consumer, 0)
        .await?;
    let elapsed = start.elapsed();
    let mut handled = 0;
    for child in children {
        handled += child.stop().await?.messages;
    }
    let messages = world.messages;
    check("messages handled", handled, messages)?;
    world.remove(messages).await?;
    Ok(per_second(messages, elapsed))
}
