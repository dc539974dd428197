//! The cost of a large backlog: drain rates from a small and a large one, and memory.

use crate::child::Report;
use crate::figure::{Figure, Series};
use crate::load::{AGGREGATES, fill};
use crate::relay;
use crate::servers::{Schema, Servers};
use crate::{MEBIBYTE, Options, Result, check};

const DRAINED: u64 = 50_000;

pub(crate) async fn figures(servers: &Servers, options: &Options) -> Result<Vec<Figure>> {
    let large = options.size(5_000_000, 500_000);
    eprintln!("backlog: recording {large} messages");
    let backlog = servers.outbox().await?;
    fill(&backlog, AGGREGATES, large).await?;
    let mut series = Series::default();
    for _ in options.runs("backlog") {
        let report = drain_some(servers, &backlog).await?;
        series.add("deep", report.messages as f64 / report.seconds);
        series.add("relay_memory", report.peak_bytes as f64 / MEBIBYTE);
        let few = servers.outbox().await?;
        fill(&few, AGGREGATES, DRAINED).await?;
        let report = drain_some(servers, &few).await?;
        series.add("shallow", report.messages as f64 / report.seconds);
        few.remove().await?;
    }
    backlog.remove().await?;
    Ok(vec![
        series
            .against("backlog_growth", "events/s", "deep", "shallow")
            .at_least(0.85),
        series.alone("relay_memory", "MiB").at_most(100.0),
    ])
}

/// Messages in flight at the end are published too and count.
async fn drain_some(servers: &Servers, outbox: &Schema) -> Result<Report> {
    let stream = servers.stream().await?;
    let before = outbox.unsettled().await?;
    let report = relay::start(outbox, &stream, Some(DRAINED))?.ended().await?;
    let settled = before - outbox.unsettled().await?;
    check("rows settled", settled, report.messages)?;
    stream.remove(report.messages).await?;
    if report.messages < DRAINED {
        return Err(format!("the relay ended after {} of {DRAINED} messages", report.messages).into());
    }
    Ok(report)
}
