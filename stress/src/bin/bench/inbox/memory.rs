//! The memory of an inbox with a full stream.

use super::World;
use crate::figure::{Figure, Series};
use crate::servers::Servers;
use crate::{MEBIBYTE, Options, Result};

pub(super) async fn figures(servers: &Servers, options: &Options) -> Result<Vec<Figure>> {
    let messages = options.size(1_000_000, 100_000);
    let handled = options.size(50_000, 10_000);
    let mut series = Series::default();
    for _ in options.runs("memory") {
        let world = World::make(servers, messages).await?;
        let inbox = world.start()?;
        world.until_left("one", messages - handled).await?;
        let report = inbox.stop().await?;
        series.add("inbox_memory", report.peak_bytes as f64 / MEBIBYTE);
        world.remove(report.messages).await?;
    }
    Ok(vec![series.alone("inbox_memory", "MiB")])
}
