//! The log relay compared to the polling relay, on a separate server with `wal_level = logical`.
//!
//! Invariant: all drained messages are on the stream, and none was adopted.

use std::time::Instant;

use outbox_core::Relay;
use outbox_log::{LogRelay, PostgresLog};
use outbox_sea_orm::SqlStore;

use crate::figure::{Figure, Series};
use crate::latency::{self, Place};
use crate::load::{AGGREGATES, fill_in_transactions};
use crate::processor::{self, Postmaster, Times};
use crate::raw::per_second;
use crate::relay::{CONNECTIONS, Retention, config, publisher, settled};
use crate::servers::{Schema, Servers, count};
use crate::{Options, Result, check};

const ROWS: u64 = AGGREGATES;

#[derive(Clone, Copy, Debug)]
enum Way {
    Log,
    Table(Retention),
}

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
        for (way, [rate, server, relay]) in [
            (
                Way::Table(Retention::Delete),
                ["delete", "server_delete", "relay_delete"],
            ),
            (Way::Log, ["log", "server_log", "relay_log"]),
            (Way::Table(Retention::Keep), ["keep", "server_keep", "relay_keep"]),
        ] {
            let (per_second, server_seconds, own_seconds) = drain(servers, way, messages).await?;
            let micros = |seconds: f64| seconds * 1e6 / messages as f64;
            series.add(rate, per_second);
            series.add(relay, micros(own_seconds));
            if let Some(seconds) = server_seconds {
                series.add(server, micros(seconds));
            }
        }
    }
    let mut figures = vec![
        series.against("latency_log_p50", "ms", "latency_log_p50_alone", "polling_p50"),
        series.alone("latency_log_p50_alone", "ms").at_most(2.0),
        series.alone("latency_log_p99_alone", "ms").at_most(10.0),
        series
            .against("drain_log", "events/s", "log", "delete")
            .at_least(1.0),
        series.against("drain_log_vs_keep", "events/s", "log", "keep"),
        series.against("relay_time_log", "us/event", "relay_log", "relay_keep"),
        series.against(
            "relay_time_log_vs_delete",
            "us/event",
            "relay_log",
            "relay_delete",
        ),
    ];
    if series.has("server_log") {
        let against = |name, baseline| series.against(name, "us/event", "server_log", baseline);
        figures.push(against("server_time_log", "server_keep").at_most(0.6));
        figures.push(against("server_time_log_vs_delete", "server_delete"));
    } else {
        eprintln!("log: the server is not on this machine, so its processor time is not measured");
    }
    Ok(figures)
}

/// Returns messages per second, and processor seconds of the server (if local) and of this process.
async fn drain(servers: &Servers, way: Way, messages: u64) -> Result<(f64, Option<f64>, f64)> {
    let outbox = servers.outbox().await?;
    let log = log_of(&outbox).await?;
    if let Way::Log = way {
        log.init().await?;
    }
    fill_in_transactions(&outbox, AGGREGATES, messages, ROWS).await?;
    let stream = servers.stream().await?;
    let store = SqlStore::new(outbox.pool(CONNECTIONS).await?);
    let publisher = publisher(&stream.nats_url, &stream.name, stream.prefix()).await?;
    let server = Postmaster::of(&outbox.db).await?;
    let work = async {
        let start = Instant::now();
        let report = match way {
            Way::Log => {
                let relay = LogRelay::new(store, log.clone(), publisher);
                relay.with_config(config(Retention::Keep)).drain().await?
            }
            Way::Table(retention) => {
                let relay = Relay::new(store, publisher).with_config(config(retention));
                relay.drain().await?
            }
        };
        Ok((report, start.elapsed()))
    };
    let before = Times::of(std::process::id())?.own;
    let ((report, elapsed), seconds) = processor::during(server, work).await?;
    let own = Times::of(std::process::id())?.own - before;
    check("messages published", report.published, messages)?;
    match way {
        Way::Log => {
            let adopted = "SELECT count(*) AS n FROM outbox_messages WHERE status <> 4";
            check("messages adopted", count(&outbox.db, adopted).await?, 0)?;
            log.drop().await?;
        }
        Way::Table(retention) => settled(&outbox, retention, messages).await?,
    }
    stream.remove(messages).await?;
    outbox.remove().await?;
    Ok((per_second(messages, elapsed), seconds, own))
}

pub(crate) async fn log_of(outbox: &Schema) -> Result<PostgresLog> {
    let db = outbox.pool(CONNECTIONS).await?;
    Ok(PostgresLog::new(db, &outbox.url)?.named(&outbox.name)?)
}
