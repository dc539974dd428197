//! The relay under test, and the groups of its figures. Settings are the defaults, except for the
//! retention of published messages.

use std::time::Instant;

use clap::ValueEnum;
use outbox_core::{Relay, RelayConfig, Retention};
use outbox_nats::JetStreamPublisher;
use outbox_sea_orm::SqlStore;

use crate::figure::Figure;
use crate::load::fill;
use crate::raw::per_second;
use crate::servers::{Schema, Servers, Stream};
use crate::{Options, Result, check, drain, latency, log, write};

pub(crate) const CONNECTIONS: u32 = 3;

#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum Group {
    Drain,
    Hot,
    Latency,
    Write,
    Log,
}

pub(crate) async fn figures(servers: &Servers, options: &Options, only: &[Group]) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for group in Group::value_variants() {
        if only.is_empty() || only.contains(group) {
            figures.extend(match group {
                Group::Drain => drain::figures(servers, options).await?,
                Group::Hot => drain::hot(servers, options).await?,
                Group::Latency => latency::figures(servers, options).await?,
                Group::Write => write::figures(servers, options).await?,
                Group::Log => log::figures(options).await?,
            });
        }
    }
    Ok(figures)
}

pub(crate) fn config(deletes: bool) -> RelayConfig {
    match deletes {
        true => RelayConfig::default().retention(Retention::Delete),
        false => RelayConfig::default(),
    }
}

pub(crate) async fn relay(outbox: &Schema, stream: &Stream) -> Result<Relay<SqlStore, JetStreamPublisher>> {
    let store = SqlStore::new(outbox.pool(CONNECTIONS).await?);
    Ok(Relay::new(store, stream.publisher().await?))
}

pub(crate) async fn drain(
    servers: &Servers,
    deletes: bool,
    aggregates: u64,
    messages: u64,
    rows: u64,
) -> Result<f64> {
    let outbox = servers.outbox().await?;
    fill(&outbox, aggregates, messages, rows).await?;
    let stream = servers.stream().await?;
    let relay = relay(&outbox, &stream).await?.with_config(config(deletes));
    let start = Instant::now();
    let report = relay.drain().await?;
    let rate = per_second(messages, start.elapsed());
    check("messages published", report.published, messages)?;
    check("rows not settled", outbox.unsettled().await?, 0)?;
    let kept = if deletes { 0 } else { messages };
    check("rows kept", outbox.messages().await?, kept)?;
    stream.remove(messages).await?;
    outbox.remove().await?;
    Ok(rate)
}
