//! The cost of failing messages for the others. Each figure is compared to the same work without failures.
//!
//! Invariant: failing messages have failed before the clock starts, and are retried while it runs. Where order is
//! promised, a message out of turn never takes effect, so the count of effects reveals it.

use std::time::{Duration, Instant};

use outbox_inbox::{Handler, InboxConfig, Router};
use tokio::time::{sleep, timeout};

use super::duties::{in_turn, mixed, picky, stumbles, stumbling, wait_for_ever};
use super::{HOT, PATIENCE, Rates, World, hot_world};
use crate::figure::Figure;
use crate::load::{AGGREGATES, Moved, Stuck, account_id};
use crate::raw::{self, Messages, per_second};
use crate::servers::{Servers, count};
use crate::{Options, Result, check};

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
    let mut rates: [Rates; 3] = Default::default();
    let [beside_failing, beside_timeouts, hot] = &mut rates;
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
    }
    Ok(vec![
        beside_failing.figure("healthy_beside_failing", 0.8),
        beside_timeouts.figure("healthy_beside_timeouts", 0.8),
        hot.figure("hot_with_failures", 0.7),
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
