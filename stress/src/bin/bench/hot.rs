//! One aggregate: each message waits for its predecessor, so the round trip to the broker is the bound.

use crate::figure::{Figure, Target};
use crate::raw::{self, Extra};
use crate::relay::{Retention, drain};
use crate::servers::Servers;
use crate::{Options, Result};

/// Measures this group.
pub(crate) async fn figures(servers: &Servers, options: &Options) -> Result<Vec<Figure>> {
    let messages = options.size(20_000, 5_000);
    let (mut ours, mut raw) = (Vec::new(), Vec::new());
    for run in 1..=options.runs() {
        eprintln!("hot aggregate: run {run} of {}", options.runs());
        ours.push(drain(servers, Retention::Keep, 1, messages).await?);
        raw.push(raw::rate(servers, messages, 1, Extra::Nothing).await?);
    }
    Ok(vec![
        Figure::against("hot_aggregate", "events/s", &ours, &raw).target(Target::AtLeast(0.8)),
    ])
}
