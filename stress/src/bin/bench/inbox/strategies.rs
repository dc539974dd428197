//! Batches and the other strategies, compared to one row per message.

use outbox_inbox::Handler;

use super::World;
use super::consume::config;
use super::duties::{natural, one, sequence, several, together};
use crate::figure::{Figure, Target};
use crate::servers::Servers;
use crate::{Options, Result, check};

/// Messages per second, one element per run, each with the rate of [`one`] that was measured just before.
#[derive(Debug, Default)]
struct Rates {
    values: Vec<f64>,
    ones: Vec<f64>,
}

/// Measures this group.
pub(super) async fn figures(servers: &Servers, options: &Options) -> Result<Vec<Figure>> {
    let messages = options.size(60_000, 15_000);
    let mut rates: [Rates; 4] = Default::default();
    for run in 1..=options.runs() {
        eprintln!("strategies: run {run} of {}", options.runs());
        let [batch, automatic, without, positions] = &mut rates;
        pair::<several>(servers, messages, batch).await?;
        pair::<together>(servers, messages, automatic).await?;
        pair::<natural>(servers, messages, without).await?;
        pair::<sequence>(servers, messages, positions).await?;
    }
    let [batch, automatic, without, positions] = &rates;
    let figure = |name, rates: &Rates| Figure::against(name, "messages/s", &rates.values, &rates.ones);
    Ok(vec![
        figure("consume_batch", batch).target(Target::AtLeast(3.0)),
        figure("consume_batch_of_singles", automatic),
        figure("consume_natural", without),
        figure("consume_sequence", positions),
    ])
}

async fn pair<H: Handler>(servers: &Servers, messages: u64, rates: &mut Rates) -> Result<()> {
    rates.ones.push(handle_all::<one>(servers, messages).await?);
    rates.values.push(handle_all::<H>(servers, messages).await?);
    Ok(())
}

async fn handle_all<H: Handler>(servers: &Servers, messages: u64) -> Result<f64> {
    let world = World::make(servers, messages).await?;
    let (rate, report) = world.consume::<H>(config()).await?;
    check("messages handled", report.handled, messages)?;
    world.remove(messages).await?;
    Ok(rate)
}
