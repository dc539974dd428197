//! What the overview of the dashboard asks of the database while a large backlog waits, and a small one.
//!
//! The figure is the time of all its reads as this program waits for them, which is more than the database works. They are as many as the sampler of the
//! dashboard makes for one sample, without those of consumers.

use std::time::Instant;

use outbox_core::store::BACKLOG_COUNT_MAX;
use outbox_core::{OutboxReader as _, OutboxStore as _};
use outbox_sea_orm::SqlStore;

use crate::figure::{Figure, Target};
use crate::load::{AGGREGATES, fill};
use crate::servers::{Schema, Servers};
use crate::{Options, Result, check};

/// Measures this group.
pub(crate) async fn figures(servers: &Servers, options: &Options) -> Result<Vec<Figure>> {
    let (small, large) = (AGGREGATES, options.size(5_000_000, 500_000));
    eprintln!("overview: recording {large} messages");
    let backlog = servers.outbox().await?;
    fill(&backlog, AGGREGATES, large).await?;
    let few = servers.outbox().await?;
    fill(&few, AGGREGATES, small).await?;
    let (mut deep, mut shallow) = (Vec::new(), Vec::new());
    for _ in 0..options.runs() {
        deep.push(reads(&backlog, large.min(BACKLOG_COUNT_MAX)).await?);
        shallow.push(reads(&few, small).await?);
    }
    backlog.remove().await?;
    few.remove().await?;
    Ok(vec![
        Figure::alone("overview_reads", "ms", &deep).target(Target::AtMost(50.0)),
        Figure::against("overview_reads_growth", "ms", &deep, &shallow),
    ])
}

/// The milliseconds of one sample.
async fn reads(outbox: &Schema, pending: u64) -> Result<f64> {
    let store = SqlStore::new(outbox.pool(1).await?);
    // The session, its statements and the first pages of the index are there before.
    store.backlog().await?;
    let begun = Instant::now();
    let backlog = store.backlog().await?;
    store.relays().await?;
    let partitions = store.partitions().await?;
    let millis = begun.elapsed().as_secs_f64() * 1000.0;
    check("messages counted", backlog.pending, pending)?;
    check("partitions read", partitions.len() as u64, 64)?;
    Ok(millis)
}
