//! `outbox relay run`: runs all outboxes of the file and the probes.
//!
//! Invariant: the end of one outbox stops the others. The result is the first failure in file
//! order.

use std::time::Duration;

use outbox::Failure;
use outbox::core::shutdown::{self, CancellationToken};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::metrics::Metrics;
use super::probes::{Probe, Probes};
use super::systemd::Systemd;
use super::{http, one};
use crate::commands::http_server::{self, Bounds};
use crate::config::{Config, Environment};
use crate::failure::CommandError;

const BOUNDS: Bounds = Bounds {
    connections: 64,
    patience: Duration::from_secs(30),
};

const LOOK: Duration = Duration::from_millis(50);

/// Interval for summarising histograms, which would otherwise grow until the next scrape.
const UPKEEP: Duration = Duration::from_secs(5);

pub(super) async fn run(config: Config, environment: &Environment) -> Result<(), CommandError> {
    let address = config.http.address;
    let listener = TcpListener::bind(address).await.map_err(|error| {
        CommandError::failed(format!(
            "probes and metrics cannot be served on {address}: {error}; choose another `http.address`"
        ))
    })?;
    let address = listener.local_addr().map_err(CommandError::failed)?;
    let systemd = Systemd::new(environment);
    let (metrics, shutdown) = (Metrics::new(), shutdown::on_signals());
    let _ends = shutdown.clone().drop_guard();
    tracing::info!(%address, "probes and metrics are served");
    let (mut running, mut probes) = (Vec::new(), Vec::new());
    for outbox in config.outboxes {
        let probe = Probe::new(outbox.name());
        probes.push(probe.clone());
        let started = one::start(outbox, probe, &metrics, shutdown.clone());
        running.push(started.map_err(CommandError::failed)?);
    }
    let probes = Probes::new(probes);
    let router = http::router(probes.clone(), metrics.handle());
    let outcome = tokio::select! {
        // Polled first, so systemd learns of the stop before the last relay ends.
        biased;
        never = beside(&probes, &shutdown, &systemd, &metrics) => match never {},
        outcome = all(running) => outcome,
        // Probes answer until the last relay has stopped.
        () = http_server::serve(listener, router, BOUNDS, CancellationToken::new()) => Ok(()),
    };
    outcome.map_err(CommandError::failed)
}

async fn all(running: Vec<JoinHandle<Result<(), Failure>>>) -> Result<(), Failure> {
    let mut first = Ok(());
    for ended in running {
        let panicked = |_| Err("a relay panicked; the panic message is on standard error".into());
        match (&first, ended.await.unwrap_or_else(panicked)) {
            (_, Ok(())) => {}
            (Ok(()), failure) => first = failure,
            (Err(_), Err(failure)) => tracing::error!(error = %failure, "another outbox failed"),
        }
    }
    first
}

async fn beside(
    probes: &Probes,
    shutdown: &CancellationToken,
    systemd: &Systemd,
    metrics: &Metrics,
) -> std::convert::Infallible {
    let told = async {
        let all_run = async {
            while !probes.all_run() {
                tokio::time::sleep(LOOK).await;
            }
        };
        tokio::select! {
            () = all_run => systemd.tell("READY=1"),
            () = shutdown.cancelled() => {}
        }
        shutdown.cancelled().await;
        systemd.tell("STOPPING=1");
    };
    let watched = async {
        if let Some(period) = systemd.watchdog_period() {
            loop {
                // The watchdog is also served while stopping (systemd has a stop timeout) and in an
                // outage (a restart would not help).
                if shutdown.is_cancelled() || probes.now().is_alive() {
                    systemd.tell("WATCHDOG=1");
                }
                tokio::time::sleep(period).await;
            }
        }
    };
    let kept = async {
        let metrics = metrics.handle();
        loop {
            tokio::time::sleep(UPKEEP).await;
            metrics.run_upkeep();
        }
    };
    let ((), (), never) = tokio::join!(told, watched, kept);
    never
}
