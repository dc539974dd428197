//! The log relay compared to the polling relay, on a separate server with `wal_level = logical`.
//!
//! Invariant: all drained messages are on the stream, and the table relay published none of them.

use std::time::Instant;

use outbox_log::{LogRelay, PostgresLog};
use outbox_sea_orm::SqlStore;

use crate::figure::{Figure, Series};
use crate::latency::{self, Place};
use crate::load::{AGGREGATES, fill};
use crate::raw::per_second;
use crate::relay::{CONNECTIONS, drain};
use crate::servers::{Schema, Servers, count};
use crate::{Options, Result, check};

const ROWS: u64 = AGGREGATES;

pub(crate) async fn figures(options: &Options) -> Result<Vec<Figure>> {
    let url = options.logical_url.as_deref();
    let url = url.ok_or("the group `log` needs `--logical-url`; choose other groups with `--only`")?;
    let measure = async |servers: &Servers| measure(servers, options).await;
    Servers::with(url, &options.nats_url, measure).await
}

async fn measure(servers: &Servers, options: &Options) -> Result<Vec<Figure>> {
    let (seconds, messages) = (options.size(20, 5), options.size(200_000, 50_000));
    let mut series = Series::default();
    for _ in options.runs("log") {
        let log = latency::measure(servers, Place::OtherProcessAtLog, 500, seconds).await?;
        series.add("latency_log_p50_alone", log.p50);
        series.add("latency_log_p99_alone", log.p99);
        let polling = latency::measure(servers, Place::OtherProcess, 500, seconds).await?;
        series.add("polling_p50", polling.p50);
        series.add("delete", drain(servers, true, AGGREGATES, messages, ROWS).await?);
        series.add("log", drain_log(servers, messages).await?);
    }
    Ok(vec![
        series.against("latency_log_p50", "ms", "latency_log_p50_alone", "polling_p50"),
        series.alone("latency_log_p50_alone", "ms").at_most(2.0),
        series.alone("latency_log_p99_alone", "ms").at_most(10.0),
        series
            .against("drain_log", "events/s", "log", "delete")
            .at_least(1.0),
    ])
}

async fn drain_log(servers: &Servers, messages: u64) -> Result<f64> {
    let outbox = servers.outbox().await?;
    let log = log_of(&outbox).await?;
    log.init().await?;
    fill(&outbox, AGGREGATES, messages, ROWS).await?;
    let stream = servers.stream().await?;
    let store = SqlStore::new(outbox.pool(CONNECTIONS).await?);
    let relay = LogRelay::new(store, log.clone(), stream.publisher().await?);
    let start = Instant::now();
    let report = relay.drain().await?;
    let rate = per_second(messages, start.elapsed());
    check("messages published", report.published, messages)?;
    let adopted = "SELECT count(*) AS n FROM outbox_messages WHERE status <> 4";
    check("messages adopted", count(&outbox.db, adopted).await?, 0)?;
    log.drop().await?;
    stream.remove(messages).await?;
    outbox.remove().await?;
    Ok(rate)
}

pub(crate) async fn log_of(outbox: &Schema) -> Result<PostgresLog> {
    let db = outbox.pool(CONNECTIONS).await?;
    Ok(PostgresLog::new(db, &outbox.url)?.named(&outbox.name)?)
}
