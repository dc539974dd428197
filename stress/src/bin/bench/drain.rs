//! The drain rate of one relay, compared to plain publishing and to a hand-written loop.

use crate::figure::{Figure, Series};
use crate::load::AGGREGATES;
use crate::raw::{self, Extra, WINDOW};
use crate::relay::{Retention, drain};
use crate::servers::Servers;
use crate::tutorial::{self, Wait};
use crate::{Options, Result};

const UNIT: &str = "events/s";

pub(crate) async fn figures(servers: &Servers, options: &Options) -> Result<Vec<Figure>> {
    let messages = options.size(100_000, 50_000);
    // Waiting for each message is about five times slower.
    let fewer = messages / 5;
    let mut rates = Series::default();
    for _ in options.runs("drain") {
        let delete = drain(servers, Retention::Delete, AGGREGATES, messages).await?;
        rates.add("delete", delete);
        rates.add("raw", raw::rate(servers, messages, WINDOW, Extra::Nothing).await?);
        let keep = drain(servers, Retention::Keep, AGGREGATES, messages).await?;
        rates.add("keep", keep);
        let same_headers = raw::rate(servers, messages, WINDOW, Extra::OurHeaders).await?;
        rates.add("same_headers", same_headers);
        for (name, messages, batch, wait) in [
            ("tutorial_await_each_100", fewer, 100, Wait::Each),
            ("tutorial_await_all_100", messages, 100, Wait::All),
            ("tutorial_await_all_1000", messages, 1_000, Wait::All),
        ] {
            rates.add(name, tutorial::drain(servers, messages, batch, wait).await?);
        }
    }
    let against = |name, rate, baseline| rates.against(name, UNIT, rate, baseline);
    Ok(vec![
        against("drain_delete", "delete", "raw").at_least(0.55),
        against("drain_keep", "keep", "raw").at_least(0.45),
        against("drain_delete_vs_same_headers", "delete", "same_headers"),
        against("drain_keep_vs_same_headers", "keep", "same_headers"),
        against("drain_vs_tutorial", "keep", "tutorial_await_all_100").at_least(2.0),
        against("drain_vs_tutorial_await_each", "keep", "tutorial_await_each_100"),
        against("drain_vs_tutorial_batch_1000", "keep", "tutorial_await_all_1000"),
    ])
}

pub(crate) async fn hot(servers: &Servers, options: &Options) -> Result<Vec<Figure>> {
    let messages = options.size(20_000, 5_000);
    let mut rates = Series::default();
    for _ in options.runs("hot aggregate") {
        rates.add("ours", drain(servers, Retention::Keep, 1, messages).await?);
        rates.add("raw", raw::rate(servers, messages, 1, Extra::Nothing).await?);
    }
    Ok(vec![
        rates.against("hot_aggregate", UNIT, "ours", "raw").at_least(0.8),
    ])
}
