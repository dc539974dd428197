//! A new consumer on a stream whose beginning is gone: every aggregate begins in the middle.
//!
//! Strategy `sequence` asks the broker about the beginning of each aggregate. One figure compares that with a stream that still
//! has it, the other with a strategy that asks nothing. Invariant: every message that is left on the stream is handled.

use std::time::Instant;

use outbox_inbox::{Handler, InboxConfig, Router};

use super::duties::{one, sequence};
use super::failing::connections;
use super::{Rates, World};
use crate::figure::Figure;
use crate::load::Moved;
use crate::raw::{Messages, per_second};
use crate::servers::Servers;
use crate::{Options, Result, check};

/// Measures this group.
pub(super) async fn figures(servers: &Servers, options: &Options) -> Result<Vec<Figure>> {
    let aggregates = options.size(200_000, 20_000);
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

/// Messages per second of so many aggregates, from the start of the inbox to the last acknowledgement. `trimmed`: the first
/// of two messages of each has left the stream; otherwise there is only one.
async fn drain<H: Handler>(servers: &Servers, aggregates: u64, trimmed: bool) -> Result<f64> {
    let mut world = World::empty(servers).await?;
    let maker = Messages::of(&world.stream, 0..aggregates, |id| Moved::new(id, 0))?;
    if trimmed {
        world.fill(&maker, 2 * aggregates).await?;
        world.stream.purge_below(aggregates + 1).await?;
    } else {
        world.fill(&maker, aggregates).await?;
    }
    let work = async {
        let start = Instant::now();
        world.until_left(H::REGISTRATION.consumer, 0).await?;
        Ok(start.elapsed())
    };
    let router = Router::new().handler::<H>();
    let (elapsed, report) = world
        .during(router, InboxConfig::default(), connections(), work)
        .await?;
    check("messages handled", report.handled, aggregates)?;
    // The table of accounts has only the first ones.
    world.stream.remove(aggregates).await?;
    world.schema.remove().await?;
    Ok(per_second(aggregates, elapsed))
}
