//! The speed at which one relay empties an outbox, compared to publishing alone and to a hand-written loop.

use crate::figure::{Figure, Target};
use crate::floor;
use crate::raw::{self, Extra, WINDOW};
use crate::relay::{Retention, drain_many};
use crate::servers::Servers;
use crate::tutorial::{self, Wait};
use crate::{Options, Result};

/// Messages per second, one element per run.
#[derive(Debug, Default)]
struct Rates {
    raw: Vec<f64>,
    raw_headers: Vec<f64>,
    delete: Vec<f64>,
    keep: Vec<f64>,
    floor_delete: Vec<f64>,
    floor_keep: Vec<f64>,
    each_100: Vec<f64>,
    each_1000: Vec<f64>,
    all_100: Vec<f64>,
    all_1000: Vec<f64>,
}

/// Measures this group.
pub(crate) async fn figures(servers: &Servers, options: &Options) -> Result<Vec<Figure>> {
    let messages = options.size(100_000, 50_000);
    // A loop that waits for each message takes as long for a fifth of the messages.
    let fewer = messages / 5;
    let mut rates = Rates::default();
    for run in 1..=options.runs() {
        eprintln!("drain: run {run} of {}", options.runs());
        rates
            .delete
            .push(drain_many(servers, Retention::Delete, messages).await?);
        rates
            .raw
            .push(raw::rate(servers, messages, WINDOW, Extra::Nothing).await?);
        rates
            .keep
            .push(drain_many(servers, Retention::Keep, messages).await?);
        rates
            .floor_delete
            .push(floor::drain(servers, Retention::Delete, messages).await?);
        rates
            .floor_keep
            .push(floor::drain(servers, Retention::Keep, messages).await?);
        rates
            .raw_headers
            .push(raw::rate(servers, messages, WINDOW, Extra::OurHeaders).await?);
        rates
            .each_100
            .push(tutorial::drain(servers, fewer, 100, Wait::Each).await?);
        rates
            .each_1000
            .push(tutorial::drain(servers, fewer, 1_000, Wait::Each).await?);
        rates
            .all_100
            .push(tutorial::drain(servers, messages, 100, Wait::All).await?);
        rates
            .all_1000
            .push(tutorial::drain(servers, messages, 1_000, Wait::All).await?);
    }
    let per_second =
        |name, values: &[f64], baselines: &[f64]| Figure::against(name, "events/s", values, baselines);
    Ok(vec![
        per_second("drain_delete", &rates.delete, &rates.raw).target(Target::AtLeast(0.55)),
        per_second("drain_keep", &rates.keep, &rates.raw).target(Target::AtLeast(0.45)),
        per_second("drain_delete_vs_same_headers", &rates.delete, &rates.raw_headers),
        per_second("drain_keep_vs_same_headers", &rates.keep, &rates.raw_headers),
        per_second("drain_delete_vs_floor", &rates.delete, &rates.floor_delete),
        per_second("drain_keep_vs_floor", &rates.keep, &rates.floor_keep),
        per_second("floor_delete", &rates.floor_delete, &rates.raw),
        per_second("floor_keep", &rates.floor_keep, &rates.raw),
        per_second("drain_vs_tutorial", &rates.keep, &rates.all_100).target(Target::AtLeast(2.0)),
        per_second("drain_vs_tutorial_await_each", &rates.keep, &rates.each_100),
        per_second("drain_vs_tutorial_batch_1000", &rates.keep, &rates.all_1000),
        per_second("tutorial_await_each_100", &rates.each_100, &rates.raw),
        per_second("tutorial_await_each_1000", &rates.each_1000, &rates.raw),
        per_second("tutorial_await_all_100", &rates.all_100, &rates.raw),
        per_second("tutorial_await_all_1000", &rates.all_1000, &rates.raw),
    ])
}
