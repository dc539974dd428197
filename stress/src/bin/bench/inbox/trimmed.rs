//! A new consumer on a stream whose beginning is gone: every aggregate begins in the middle.
//!
//! Strategy `sequence` must find out that an aggregate begins there. One figure compares that with a stream that still has the beginnings, one with a strategy
//! that knows no order, and one does the first in three processes, which have to ask the broker. Invariant: every message that is left on the stream is handled.

use std::time::Instant;

use outbox_inbox::{Handler, InboxConfig, Router};

use super::duties::{one, sequence};
use super::failing::connections;
use super::{Rates, World};
use crate::child::Child;
use crate::figure::Figure;
use crate::load::Moved;
use crate::raw::{Messages, per_second};
use crate::servers::Servers;
use crate::{Options, Result, check};

/// Measures this group.
pub(super) async fn figures(servers: &Servers, options: &Options) -> Result<Vec<Figure>> {
    let aggregates = aggregates(options);
    let (mut whole, mut unordered) = (Rates::default(), Rates::default());
    for run in 1..=options.runs() {
        eprintln!("trimmed: run {run} of {}", options.runs());
        unordered
            .baselines
            .push(drain::<one>(servers, aggregates, true).await?);
        whole
            .baselines
            .push(drain::<sequence>(servers, aggregates, false).await?);
        let rate = drain::<sequence>(servers, aggregates, true).await?;
        whole.values.push(rate);
        unordered.values.push(rate);
    }
    Ok(vec![
        whole.figure("sequence_trimmed", 1.0),
        unordered.figure("sequence_trimmed_unordered", 0.5),
    ])
}

/// Measures the group of three processes.
pub(super) async fn across_figures(servers: &Servers, options: &Options) -> Result<Vec<Figure>> {
    let aggregates = aggregates(options);
    let mut shared = Rates::default();
    for run in 1..=options.runs() {
        eprintln!("trimmed-across: run {run} of {}", options.runs());
        shared.baselines.push(across(servers, aggregates, false).await?);
        shared.values.push(across(servers, aggregates, true).await?);
    }
    Ok(vec![shared.figure("sequence_trimmed_three_processes", 1.0)])
}

fn aggregates(options: &Options) -> u64 {
    options.aggregates.unwrap_or(options.size(200_000, 20_000))
}

/// A stream with one message of each of so many aggregates. `trimmed`: another one of each has left it before.
async fn world(servers: &Servers, aggregates: u64, trimmed: bool) -> Result<World> {
    let mut world = World::empty(servers).await?;
    let maker = Messages::of(&world.stream, 0..aggregates, |id| Moved::new(id, 0))?;
    if trimmed {
        world.fill(&maker, 2 * aggregates).await?;
        world.stream.purge_below(aggregates + 1).await?;
    } else {
        world.fill(&maker, aggregates).await?;
    }
    Ok(world)
}

/// Messages per second of one process, from the start of the inbox to the last acknowledgement.
async fn drain<H: Handler>(servers: &Servers, aggregates: u64, trimmed: bool) -> Result<f64> {
    let world = world(servers, aggregates, trimmed).await?;
    let work = async {
        let start = Instant::now();
        world.until_left(H::REGISTRATION.consumer, 0).await?;
        Ok(start.elapsed())
    };
    let router = Router::new().handler::<H>();
    let (elapsed, report) = world
        .during(router, InboxConfig::default(), connections(), work)
        .await?;
    remove(world, report.handled, aggregates).await?;
    Ok(told(
        H::REGISTRATION.consumer,
        trimmed,
        per_second(aggregates, elapsed),
    ))
}

/// Messages per second of three processes, from their start to the last acknowledgement.
async fn across(servers: &Servers, aggregates: u64, trimmed: bool) -> Result<f64> {
    let world = world(servers, aggregates, trimmed).await?;
    let start = Instant::now();
    let any = ["--duty", "any"];
    let children = (0..3)
        .map(|_| Child::start("sequence-child", &world.schema, &world.stream, &any))
        .collect::<Result<Vec<_>>>()?;
    world.until_left(sequence::REGISTRATION.consumer, 0).await?;
    let elapsed = start.elapsed();
    let mut handled = 0;
    for child in children {
        handled += child.stop().await?.messages;
    }
    remove(world, handled, aggregates).await?;
    Ok(told("three processes", trimmed, per_second(aggregates, elapsed)))
}

/// Tells a rate as soon as it is known: with a million aggregates, the next one takes minutes.
fn told(who: &str, trimmed: bool, rate: f64) -> f64 {
    let stream = if trimmed { "trimmed" } else { "whole" };
    eprintln!("{who}, {stream} stream: {rate:.0} messages/s");
    rate
}

async fn remove(world: World, handled: u64, aggregates: u64) -> Result<()> {
    check("messages handled", handled, aggregates)?;
    // The table of accounts has only the first ones, so effects are not counted.
    world.stream.remove(aggregates).await?;
    world.schema.remove().await
}
