//! The cost of a large backlog. The same number of messages is drained from a small and from a large backlog, and
//! memory is measured meanwhile. A long drain follows, which meets dead index entries that it has made itself.

use crate::child::Report;
use crate::figure::{Figure, Target};
use crate::load::{AGGREGATES, fill};
use crate::raw::{self, Extra, WINDOW};
use crate::relay::{self, Retention};
use crate::servers::{Schema, Servers};
use crate::{Options, Result, check};

/// Bytes.
pub(crate) const MEBIBYTE: f64 = 1024.0 * 1024.0;

/// Measures this group.
pub(crate) async fn figures(servers: &Servers, options: &Options) -> Result<Vec<Figure>> {
    let runs = u64::from(options.runs());
    let small = 50_000;
    let large = options.size(5_000_000, 500_000);
    // The long drains share the messages that the comparison has left.
    let share = large.saturating_sub(runs * small) / runs;
    let long = options
        .size(1_000_000, 100_000)
        .min(share / AGGREGATES * AGGREGATES);
    if long == 0 {
        return Err(format!("a backlog of {large} is too small for {runs} runs").into());
    }
    eprintln!("backlog: recording {large} messages");
    let backlog = servers.outbox().await?;
    fill(&backlog, AGGREGATES, large).await?;
    let (mut deep, mut shallow, mut peaks) = (Vec::new(), Vec::new(), Vec::new());
    for run in 1..=runs {
        eprintln!("backlog: run {run} of {runs}");
        let report = drain_some(servers, &backlog, small).await?;
        deep.push(rate(report));
        peaks.push(report.peak_bytes as f64 / MEBIBYTE);
        let few = servers.outbox().await?;
        fill(&few, AGGREGATES, small).await?;
        shallow.push(rate(drain_some(servers, &few, small).await?));
        few.remove().await?;
    }
    let (mut sustained, mut raw) = (Vec::new(), Vec::new());
    for run in 1..=runs {
        eprintln!("long drain: run {run} of {runs}");
        let report = drain_some(servers, &backlog, long).await?;
        sustained.push(rate(report));
        peaks.push(report.peak_bytes as f64 / MEBIBYTE);
        raw.push(raw::rate(servers, long, WINDOW, Extra::Nothing).await?);
    }
    backlog.remove().await?;
    Ok(vec![
        Figure::against("backlog_growth", "events/s", &deep, &shallow).target(Target::AtLeast(0.85)),
        Figure::against("drain_sustained", "events/s", &sustained, &raw),
        Figure::alone("relay_memory", "MiB", &peaks).target(Target::AtMost(100.0)),
    ])
}

/// Drains at least `messages` messages to a stream of their own, through a relay in a process of its own. Messages in
/// flight when the last of them is confirmed are published as well, and count.
async fn drain_some(servers: &Servers, outbox: &Schema, messages: u64) -> Result<Report> {
    let stream = servers.stream().await?;
    let before = outbox.unsettled().await?;
    let report = relay::start(outbox, &stream, Retention::Keep, Some(messages))?
        .ended()
        .await?;
    check(
        "rows settled",
        before - outbox.unsettled().await?,
        report.messages,
    )?;
    stream.remove(report.messages).await?;
    if report.messages < messages {
        return Err(format!("the relay ended after {} of {messages} messages", report.messages).into());
    }
    Ok(report)
}

fn rate(report: Report) -> f64 {
    report.messages as f64 / report.seconds
}
