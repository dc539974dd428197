//! The log relay compared to the polling relay, and to Debezium's engine.
//!
//! Everything runs on a server of its own with `wal_level = logical`, so that the other figures do not pay for a larger log. The backlog of a log is what was
//! committed since its slot was made; it is written in transactions of 1,000 rows. A server that is not on this machine leaves out the processor time, and a
//! machine without Debezium's jars leaves out its figure. Invariant: what was drained is on the stream, and the table has adopted nothing of it.

use std::time::Instant;

use outbox_core::Relay;
use outbox_core::log::LogRelay;
use outbox_log::PostgresLog;
use outbox_sea_orm::SqlStore;

use crate::engine::Engine;
use crate::figure::{Figure, Target};
use crate::latency::{self, Latency, Place};
use crate::load::{AGGREGATES, fill_in_transactions};
use crate::processor::{self, Postmaster, Times};
use crate::raw::per_second;
use crate::relay::{CONNECTIONS, Retention, config, publisher, settled};
use crate::servers::{Schema, Servers, count};
use crate::{Options, Result, check};

/// Rows of a transaction in a backlog: one of each aggregate.
pub(crate) const ROWS: u64 = AGGREGATES;

/// Who empties the outbox.
#[derive(Clone, Copy, Debug)]
enum Way {
    Log,
    Table(Retention),
}

/// Messages per second, and microseconds of processors for each, the server's and those of this process; one element per run.
#[derive(Debug, Default)]
struct Drains {
    rates: Vec<f64>,
    micros: Vec<f64>,
    own_micros: Vec<f64>,
}

/// Measures this group.
pub(crate) async fn figures(options: &Options) -> Result<Vec<Figure>> {
    on_logical_server(options, measure).await
}

/// Measures on the server whose log can be read.
pub(crate) async fn on_logical_server(
    options: &Options,
    measure: impl AsyncFnOnce(&Servers, &Options) -> Result<Vec<Figure>>,
) -> Result<Vec<Figure>> {
    let url = options
        .logical_url
        .as_deref()
        .ok_or("the groups `log` and `ways` need `--logical-url`; choose other groups with `--only`")?;
    let servers = Servers::connect(url, &options.nats_url).await?;
    let figures = measure(&servers, options).await;
    // Also after a failure: a slot that nobody reads would keep the server's log.
    servers.drop_slots().await?;
    servers.remove().await?;
    figures
}

async fn measure(servers: &Servers, options: &Options) -> Result<Vec<Figure>> {
    let (seconds, messages) = (options.size(20, 5), options.size(200_000, 50_000));
    let engine = Engine::of(options);
    let (mut at_log, mut polling) = (Vec::new(), Vec::new());
    let [mut log, mut delete, mut keep]: [Drains; 3] = Default::default();
    let mut decoded = Vec::new();
    for run in 1..=options.runs() {
        eprintln!("log: run {run} of {}", options.runs());
        at_log.push(latency::measure(servers, Place::OtherProcessAtLog, 500, seconds).await?);
        polling.push(latency::measure(servers, Place::OtherProcess, 500, seconds).await?);
        delete
            .add(servers, Way::Table(Retention::Delete), messages)
            .await?;
        log.add(servers, Way::Log, messages).await?;
        keep.add(servers, Way::Table(Retention::Keep), messages).await?;
        if let Some(engine) = &engine {
            decoded.push(engine.drain(servers, messages).await?);
        }
    }
    let p50 = |all: &[Latency]| all.iter().map(|latency| latency.p50).collect::<Vec<_>>();
    let p99 = |all: &[Latency]| all.iter().map(|latency| latency.p99).collect::<Vec<_>>();
    let mut figures = vec![
        Figure::against("latency_log_p50", "ms", &p50(&at_log), &p50(&polling)),
        Figure::alone("latency_log_p50_alone", "ms", &p50(&at_log)).target(Target::AtMost(2.0)),
        Figure::alone("latency_log_p99_alone", "ms", &p99(&at_log)).target(Target::AtMost(10.0)),
        Figure::against("drain_log", "events/s", &log.rates, &delete.rates).target(Target::AtLeast(1.0)),
        Figure::against("drain_log_vs_keep", "events/s", &log.rates, &keep.rates),
    ];
    if log.micros.is_empty() {
        eprintln!("log: the server is not on this machine, so its processor time is not measured");
    } else {
        figures.push(
            Figure::against("server_time_log", "us/event", &log.micros, &keep.micros)
                .target(Target::AtMost(0.6)),
        );
        let times = [
            ("server_time_log_vs_delete", &log.micros, &delete.micros),
            ("relay_time_log", &log.own_micros, &keep.own_micros),
            ("relay_time_log_vs_delete", &log.own_micros, &delete.own_micros),
        ];
        let figure =
            |(name, log, polling): (_, &Vec<_>, &Vec<_>)| Figure::against(name, "us/event", log, polling);
        figures.extend(times.map(figure));
    }
    if decoded.is_empty() {
        eprintln!("log: Debezium's engine is not there, so it is not measured");
    } else {
        figures.push(
            Figure::against("drain_log_vs_debezium", "events/s", &log.rates, &decoded)
                .target(Target::AtLeast(1.5)),
        );
    }
    Ok(figures)
}

impl Drains {
    async fn add(&mut self, servers: &Servers, way: Way, messages: u64) -> Result<()> {
        let (rate, seconds, own) = drain(servers, way, messages).await?;
        let micros = |seconds: f64| seconds * 1e6 / messages as f64;
        self.rates.push(rate);
        self.micros.extend(seconds.map(micros));
        self.own_micros.push(micros(own));
        Ok(())
    }
}

/// Fills an outbox and drains it in this process. Returns messages per second, and the processor time of the server and of this process meanwhile.
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

/// The log of an outbox, which need not be set up.
pub(crate) async fn log_of(outbox: &Schema) -> Result<PostgresLog> {
    let db = outbox.pool(CONNECTIONS).await?;
    Ok(PostgresLog::new(db, &outbox.url)?.named(&outbox.name)?)
}
