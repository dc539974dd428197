//! The speed at which an inbox handles the messages of a stream, compared to the same transactions without an inbox.

use outbox_inbox::InboxConfig;

use super::World;
use super::duties::one;
use super::plain::{self, First};
use crate::figure::{Figure, Target};
use crate::servers::Servers;
use crate::{Options, Result, check};

/// Concurrent transactions, with and without an inbox.
const TRANSACTIONS: usize = 32;

/// Measures this group.
pub(super) async fn figures(servers: &Servers, options: &Options) -> Result<Vec<Figure>> {
    let messages = options.size(60_000, 15_000);
    let (mut ones, mut plain, mut with_row, mut copies) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for run in 1..=options.runs() {
        eprintln!("consume: run {run} of {}", options.runs());
        plain.push(plain::rate(servers, TRANSACTIONS, messages, First::Nothing).await?);
        let (handled, duplicates) = twice(servers, messages).await?;
        ones.push(handled);
        copies.push(duplicates);
        with_row.push(plain::rate(servers, TRANSACTIONS, messages, First::InboxRow).await?);
    }
    Ok(vec![
        Figure::against("consume_one", "messages/s", &ones, &plain).target(Target::AtLeast(0.6)),
        Figure::against("consume_one_vs_insert", "messages/s", &ones, &with_row),
        Figure::against("transactions_with_insert", "tx/s", &with_row, &plain),
        Figure::against("consume_duplicates", "messages/s", &copies, &ones),
    ])
}

/// As many concurrent handlers as the baseline has transactions, and twice as many messages fetched ahead.
pub(super) fn config() -> InboxConfig {
    InboxConfig::default()
        .concurrency(TRANSACTIONS)
        .in_flight_max(2 * TRANSACTIONS)
}

/// Two rates in messages per second: while the handler runs for each message, and for the same messages once all have
/// been handled.
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
