//! The drain rate of one relay, compared to plain publishing and to a hand-written loop.

use crate::figure::{Figure, Series};
use crate::load::{AGGREGATES, CHUNK};
use crate::raw::{self, WINDOW};
use crate::relay::drain;
use crate::servers::Servers;
use crate::{Options, Result, tutorial};

const UNIT: &str = "events/s";

pub(crate) async fn figures(servers: &Servers, options: &Options) -> Result<Vec<Figure>> {
    let messages = options.size(100_000, 50_000);
    let drain = |deletes| drain(servers, deletes, AGGREGATES, messages, CHUNK);
    let mut rates = Series::default();
    for _ in options.runs("drain") {
        rates.add("delete", drain(true).await?);
        rates.add("raw", raw::rate(servers, messages, WINDOW).await?);
        rates.add("keep", drain(false).await?);
        rates.add("tutorial", tutorial::drain(servers, messages).await?);
    }
    let against = |name, rate, baseline| rates.against(name, UNIT, rate, baseline);
    Ok(vec![
        against("drain_delete", "delete", "raw").at_least(0.55),
        against("drain_keep", "keep", "raw").at_least(0.45),
        against("drain_vs_tutorial", "keep", "tutorial").at_least(2.0),
    ])
}

pub(crate) async fn hot(servers: &Servers, options: &Options) -> Result<Vec<Figure>> {
    let messages = options.size(20_000, 5_000);
    let mut rates = Series::default();
    for _ in options.runs("hot aggregate") {
        let ours = drain(servers, false, 1, messages, CHUNK).await?;
        rates.add("ours", ours);
        rates.add("raw", raw::rate(servers, messages, 1).await?);
    }
    Ok(vec![
        rates.against("hot_aggregate", UNIT, "ours", "raw").at_least(0.8),
    ])
}
