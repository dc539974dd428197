//! Strategy `sequence` over several processes, compared to one process.
//!
//! Three kinds of handlers: one executes a statement and nothing else, so that the processors are the limit; one waits as
//! well, as handlers do that call another service; and one fails at one message in a hundred. A fourth figure shows the price of three processes without
//! any order between them. Invariant: a message out of turn never takes effect, so the
//! count of effects reveals it.

use std::time::Instant;

use outbox_inbox::Handler;

use super::duties::{one, sequence_in_turn, sequence_stumbling, sequence_waiting};
use super::{HOT, Rates, hot_world};
use crate::child::Child;
use crate::figure::Figure;
use crate::raw::per_second;
use crate::servers::Servers;
use crate::{Options, Result, check};

/// Messages of each aggregate.
const LENGTH: u64 = 800;

/// Measures this group.
pub(super) async fn figures(servers: &Servers, options: &Options) -> Result<Vec<Figure>> {
    let mut rates: [Rates; 4] = Default::default();
    for run in 1..=options.runs() {
        eprintln!("across: run {run} of {}", options.runs());
        let [unordered, busy, waiting, stumbling] = &mut rates;
        for (processes, is_baseline) in [(1, true), (3, false)] {
            let of = |rates: &mut Rates, rate| match is_baseline {
                true => rates.baselines.push(rate),
                false => rates.values.push(rate),
            };
            of(
                unordered,
                drain::<one>(servers, processes, &["inbox-child"]).await?,
            );
            of(
                busy,
                drain::<sequence_in_turn>(servers, processes, &["sequence-child", "--duty", "in-turn"])
                    .await?,
            );
            of(
                waiting,
                drain::<sequence_waiting>(servers, processes, &["sequence-child", "--duty", "waiting"])
                    .await?,
            );
            of(
                stumbling,
                drain::<sequence_stumbling>(servers, processes, &["sequence-child", "--duty", "stumbling"])
                    .await?,
            );
        }
    }
    let [unordered, busy, waiting, stumbling] = &rates;
    Ok(vec![
        unordered.figure("unordered_three_processes", None),
        busy.figure("sequence_three_processes", 1.0),
        waiting.figure("sequence_three_processes_waiting", 1.0),
        stumbling.figure("sequence_three_processes_failing", 1.0),
    ])
}

/// Messages per second of the hot aggregates, shared by this many processes, from the start of the processes to the
/// last acknowledgement.
async fn drain<H: Handler>(servers: &Servers, processes: usize, child: &[&str]) -> Result<f64> {
    let world = hot_world(servers, LENGTH).await?;
    let start = Instant::now();
    let children = (0..processes)
        .map(|_| Child::start(child[0], &world.schema, &world.stream, &child[1..]))
        .collect::<Result<Vec<_>>>()?;
    world.until_left(H::REGISTRATION.consumer, 0).await?;
    let elapsed = start.elapsed();
    let mut handled = 0;
    for child in children {
        handled += child.stop().await?.messages;
    }
    let messages = world.messages;
    check("messages", messages, HOT * LENGTH)?;
    check("messages handled", handled, messages)?;
    world.remove(messages).await?;
    Ok(per_second(messages, elapsed))
}
