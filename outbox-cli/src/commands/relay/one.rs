//! Runs the relay of an outbox on its own threads, so a busy outbox blocks neither others nor the
//! probes. The threads have the name of the outbox, in logs and metrics.

use outbox::core::shutdown::CancellationToken;
use outbox::core::{Relay, RelayError, SetupKind, StoreError};
use outbox::log::LogRelay;
use outbox::nats::async_nats::Client;
use outbox::nats::{EventStream, ProvisionError, hints};
use outbox::sea_orm::{SqlStore, migration};
use outbox::{Failure, RunError, Runner};
use sea_orm::{ConnectOptions, DatabaseConnection};
use tokio::runtime::Builder;
use tokio::task::JoinHandle;

use super::check::named;
use super::log;
use super::metrics::Metrics;
use super::probes::Probe;
use crate::commands::{advice, servers};
use crate::config::Outbox;
use crate::invocation;

/// One connection each for fetching, settling and lease renewal.
const CONNECTIONS: u32 = 3;

const THREADS: usize = 2;

/// Starts an outbox. When it ends, for any reason, `shutdown` is cancelled.
pub(super) fn start(
    outbox: Outbox,
    probe: Probe,
    metrics: &Metrics,
    shutdown: CancellationToken,
) -> std::io::Result<JoinHandle<Result<(), Failure>>> {
    let recorder = metrics.recorder_of(outbox.name());
    let runtime = Builder::new_multi_thread()
        .worker_threads(THREADS)
        .thread_name(outbox.name())
        .on_thread_start(move || recorder.take_thread())
        .enable_all()
        .build()?;
    let running = runtime.spawn(async move {
        // The guard cancels `shutdown` also after a panic.
        let _ends = shutdown.clone().drop_guard();
        named(&outbox, run(&outbox, &probe, &shutdown).await)
    });
    // The runtime lives as long as the program: leftover tasks, such as an abandoned migration,
    // must not delay the exit.
    std::mem::forget(runtime);
    Ok(running)
}

async fn run(outbox: &Outbox, probe: &Probe, shutdown: &CancellationToken) -> Result<(), Failure> {
    // A signal ends the wait for servers. Each completed step is kept or repeated at the next
    // start.
    let Some(runner) = shutdown.run_until_cancelled(prepare(outbox, probe)).await else {
        return Ok(());
    };
    let (runner, client) = runner?;
    probe.runs(runner.health());
    let listening = hints::listen(client, hints::DEFAULT_SUBJECT, shutdown.clone());
    let listening = tokio::spawn(listening);
    let ended = runner.run_until(shutdown.clone()).await;
    listening.abort();
    let report = ended.map_err(|error| explain(error, outbox))?;
    let published: u64 = report.relays.iter().map(|relay| relay.published).sum();
    tracing::info!(published, "the relay has stopped");
    Ok(())
}

/// Replaces the library's advice about missing tables, which addresses programmers.
fn explain(error: RunError, outbox: &Outbox) -> Failure {
    match error {
        RunError::Relay(RelayError::Store(StoreError::Setup(problem))) => {
            let next = match (&problem.kind, outbox.section.migrate) {
                (SetupKind::Tables, false) => {
                    "; if tables are missing, `migrate = true` in the file creates them".to_owned()
                }
                (kind, _) => advice::of_setup(kind).map_or_else(String::new, |next| {
                    format!("; next: `{}`", invocation::command(&next))
                }),
            };
            let text = outbox::core::describe(&RelayError::Store(StoreError::Setup(problem)));
            format!("{text}{next}").into()
        }
        error => error.into(),
    }
}

async fn prepare(outbox: &Outbox, probe: &Probe) -> Result<(Runner, Client), Failure> {
    probe.waits_for("it waits for the database");
    let mut options = ConnectOptions::new(outbox.database_url.expose());
    options.max_connections(CONNECTIONS);
    let db = outbox::connect(options).await?;
    migrate(&db, outbox).await?;
    let stream = outbox.section.stream.event_stream()?;
    probe.waits_for("it waits for nats");
    let options = servers::options(outbox).await?;
    let client = stream.connect_with(outbox.nats_url.expose(), options).await?;
    probe.waits_for("it waits for the stream");
    provision(&stream, &client).await?;
    let name = outbox.section.relay.name.clone().unwrap_or_default();
    let store = SqlStore::new(db.clone())
        .with_names(&outbox.table_names()?)?
        .with_relay_name(name)
        .allow_untested_engine(outbox.section.allow_untested_engine);
    if outbox.source.is_none() {
        tracing::warn!(
            "no `source` is set, so messages have the source `outbox`; set the name of the service, the same in all its relays: \
             consumers with `strategy = sequence` keep positions per source"
        );
    }
    let publisher = stream
        .publisher(client.clone())
        .with_config(outbox.publisher_config());
    let config = outbox.section.relay.relay_config();
    let section = &outbox.section.log;
    tracing::info!(
        stream = stream.name(),
        reads_log = section.read,
        "the relay starts"
    );
    let runner = match section.read {
        false => Runner::new().with_relay(Relay::new(store, publisher).with_config(config)),
        true => Runner::new().with_log_relay(
            LogRelay::new(store, log::of(outbox, db)?, publisher)
                .with_config(config)
                .with_log_config(section.log_config()),
        ),
    };
    Ok((runner, client))
}

async fn migrate(db: &DatabaseConnection, outbox: &Outbox) -> Result<(), Failure> {
    let names = outbox.table_names()?;
    if outbox.section.migrate {
        migration::migrate_with(db, &names).await?;
    }
    if outbox.section.writers {
        migration::writers::migrate_with(db, &names).await?;
    }
    Ok(())
}

/// A stream without a leader, or a concurrent stream change, is retried like an outage.
async fn provision(stream: &EventStream, client: &Client) -> Result<(), Failure> {
    let mut pause = std::time::Duration::from_millis(100);
    loop {
        match stream.provision_for(client, []).await {
            Ok(_) => return Ok(()),
            Err(error @ ProvisionError::Unavailable { .. }) => {
                let reason = outbox::core::describe(&error);
                tracing::warn!(reason, "waiting for the stream");
            }
            Err(error) => return Err(error.into()),
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(std::time::Duration::from_secs(2));
    }
}
