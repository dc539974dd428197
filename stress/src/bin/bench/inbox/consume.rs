//! The rates of inboxes: against transactions without an inbox, and between strategies.

use outbox_inbox::{Handler, InboxConfig};

use super::World;
use super::duties::{natural, one, sequence, several, together};
use super::plain::{self, First};
use crate::figure::{Figure, Series};
use crate::servers::Servers;
use crate::{Options, Result, check};

const TRANSACTIONS: usize = 32;
const UNIT: &str = "messages/s";

pub(super) async fn figures(servers: &Servers, options: &Options) -> Result<Vec<Figure>> {
    let messages = options.size(60_000, 15_000);
    let mut rates = Series::default();
    for _ in options.runs("consume") {
        let plain = plain::rate(servers, TRANSACTIONS, messages, First::Nothing).await?;
        rates.add("plain", plain);
        let (handled, duplicates) = twice(servers, messages).await?;
        rates.add("one", handled);
        rates.add("duplicates", duplicates);
        let with_row = plain::rate(servers, TRANSACTIONS, messages, First::InboxRow).await?;
        rates.add("with_row", with_row);
    }
    Ok(vec![
        rates.against("consume_one", UNIT, "one", "plain").at_least(0.6),
        rates.against("consume_one_vs_insert", UNIT, "one", "with_row"),
        rates.against("transactions_with_insert", "tx/s", "with_row", "plain"),
        rates.against("consume_duplicates", UNIT, "duplicates", "one"),
    ])
}

/// A rate of [`one`], measured just before, is the baseline of each strategy.
pub(super) async fn strategies(servers: &Servers, options: &Options) -> Result<Vec<Figure>> {
    let messages = options.size(60_000, 15_000);
    let mut rates = Series::default();
    for _ in options.runs("strategies") {
        rates.add("one_1", handle_all::<one>(servers, messages).await?);
        rates.add("consume_batch", handle_all::<several>(servers, messages).await?);
        rates.add("one_2", handle_all::<one>(servers, messages).await?);
        rates.add(
            "consume_batch_of_singles",
            handle_all::<together>(servers, messages).await?,
        );
        rates.add("one_3", handle_all::<one>(servers, messages).await?);
        rates.add("consume_natural", handle_all::<natural>(servers, messages).await?);
        rates.add("one_4", handle_all::<one>(servers, messages).await?);
        rates.add(
            "consume_sequence",
            handle_all::<sequence>(servers, messages).await?,
        );
    }
    let against = |name, ones| rates.against(name, UNIT, name, ones);
    Ok(vec![
        against("consume_batch", "one_1").at_least(3.0),
        against("consume_batch_of_singles", "one_2"),
        against("consume_natural", "one_3"),
        against("consume_sequence", "one_4"),
    ])
}

async fn handle_all<H: Handler>(servers: &Servers, messages: u64) -> Result<f64> {
    let world = World::make(servers, messages).await?;
    let (rate, report) = world.consume::<H>(config()).await?;
    check("messages handled", report.handled, messages)?;
    world.remove(messages).await?;
    Ok(rate)
}

fn config() -> InboxConfig {
    InboxConfig::default()
        .concurrency(TRANSACTIONS)
        .in_flight_max(2 * TRANSACTIONS)
}

/// Messages per second: first delivery, and duplicates.
async fn twice(servers: &Servers, messages: u64) -> Result<(f64, f64)> {
    let world = World::make(servers, messages).await?;
    let (handled, report) = world.consume::<one>(config()).await?;
    check("messages handled", report.handled, messages)?;
    world.stream.forget("one").await?;
    let (duplicates, report) = world.consume::<one>(config()).await?;
    check("duplicates", report.duplicates, messages)?;
    world.remove(messages).await?;
    Ok((handled, duplicates))
}
