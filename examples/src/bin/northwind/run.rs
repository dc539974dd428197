//! One run from its input to its ledger.
//!
//! Invariant: nothing is created before the input is checked, and everything created is removed at the end. Databases and stream stay only if the
//! ledger does not balance, so that the cause can be found.

use std::io::Write as _;
use std::process::ExitCode;

use outbox_core::shutdown;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::books::Books;
use crate::broker::Broker;
use crate::cli::{BrokerKind, RunArgs};
use crate::database::{Databases, connect};
use crate::evidence::{Connections, Evidence};
use crate::failure::{Doing, Failure};
use crate::generate::generate;
use crate::input;
use crate::ledger::Ledger;
use crate::logging;
use crate::order::{Expected, Order};
use crate::progress::Progress;
use crate::setup::{DatabaseKind, Part, RelayKind, Setup, Stream, logs, prepare_work_dir};
use crate::tables::migrate;
use crate::watch::{Counts, Outcome, until_at_rest};
use crate::workers::Workers;

/// Runs the shop and prints the ledger.
pub(crate) async fn run(args: RunArgs) -> Result<ExitCode, Failure> {
    if args.relay == RelayKind::Log && args.database != DatabaseKind::Postgres {
        let why = "--relay log needs --database postgres: only PostgreSQL's log can be read";
        return Err(Failure::Wrong(why.to_owned()));
    }
    let id = Uuid::now_v7().simple().to_string();
    // The end of the id is random, and short enough for database names.
    let id = &id[20..];
    let orders = read_orders(&args)?;
    let work_dir = prepare_work_dir(&args.work_dir)?;
    logging::to_file(&logs(&work_dir), "run")?;
    let shutdown = shutdown::on_signals();

    let stream = Stream {
        nats_url: (args.broker == BrokerKind::Nats).then(|| args.nats_url.clone()),
        name: format!("NORTHWIND_{id}"),
        prefix: format!("northwind_{id}"),
    };
    let databases = Databases::create(args.database, &args.database_url, id).await?;
    let setup = Setup {
        database: args.database,
        urls: databases.urls(),
        relay: args.relay,
        stream,
        work_dir,
    };
    let broker = match Broker::provision(setup.stream.clone()).await {
        Ok(broker) => broker,
        Err(error) => {
            databases.drop().await?;
            return Err(error);
        }
    };
    let ended = run_on(&args, &setup, &broker, &orders, shutdown).await;
    // Also of a run whose databases stay: a slot that nobody reads fills the server's disk.
    let ended = match drop_logs(&setup).await {
        Ok(()) => ended,
        Err(error) => ended.and(Err(error)),
    };
    match ended {
        Ok(Some(ledger)) if ledger.balances() => {
            broker.delete().await?;
            databases.drop().await?;
            Ok(ExitCode::SUCCESS)
        }
        Ok(None) => {
            broker.delete().await?;
            databases.drop().await?;
            Err(Failure::Wrong("interrupted".to_owned()))
        }
        Ok(Some(_)) => Err(kept(&setup, "the ledger does not balance".to_owned())),
        Err(error) => Err(kept(&setup, error.to_string())),
    }
}

fn read_orders(args: &RunArgs) -> Result<Vec<Order>, Failure> {
    match (&args.orders, &args.lines) {
        (Some(orders), Some(lines)) => Ok(input::read(orders, lines)?),
        _ => Ok(generate(args.generate)),
    }
}

/// A failure that names where to look for the cause.
fn kept(setup: &Setup, what: String) -> Failure {
    let stream = &setup.stream.name;
    let logs = setup.logs();
    Failure::Wrong(format!(
        "{what}\nlogs are in {}; its databases and stream {stream} were not removed",
        logs.display()
    ))
}

/// Runs on existing databases and an existing stream; `None` if the run was interrupted.
async fn run_on(
    args: &RunArgs,
    setup: &Setup,
    broker: &Broker,
    orders: &[Order],
    shutdown: CancellationToken,
) -> Result<Option<Ledger>, Failure> {
    let mut dbs = Connections::new();
    for part in Part::ALL {
        if shutdown.is_cancelled() {
            return Ok(None);
        }
        let db = connect(setup.database, setup.url(part), 2).await?;
        migrate(&db, part).await?;
        if setup.has_log(part) {
            let log = setup.log(part, setup.url(part), db.clone())?;
            log.init()
                .await
                .or_cannot(format_args!("set up the log of {}", part.name()))?;
        }
        dbs.insert(part, db);
    }
    setup.write_orders(orders)?;
    let setup_path = setup.write()?;

    let expected = Expected::of(orders);
    let progress = Progress::new(expected, args.json);
    let started = Instant::now();
    let mut workers = Workers::start(setup, &setup_path, broker)?;
    let look = async || Counts::read(setup, &dbs, broker).await;
    let outcome = until_at_rest(look, &mut workers, expected, &progress, &shutdown).await;
    let elapsed_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
    workers.stop(|text| progress.warn(text)).await;
    progress.finish();
    match outcome {
        Ok(Outcome::AtRest) => {}
        Ok(Outcome::Stalled) => progress.warn("nothing moved for a minute, the run is given up".to_owned()),
        Ok(Outcome::Interrupted) => return Ok(None),
        // The ledger shows the outcome best.
        Err(error) => progress.warn(error.to_string()),
    }

    let evidence = Evidence::collect(setup, &dbs, broker).await?;
    let ledger = Ledger::of(&evidence, expected, &Books::of(orders), elapsed_ms);
    if let Some(folder) = &args.export {
        evidence.books.export(folder)?;
    }
    print(&ledger, args.json)?;
    for db in dbs.into_values() {
        db.close().await.or_cannot("close a database")?;
    }
    Ok(Some(ledger))
}

/// Takes the logs down, once the relays that read them have ended. A log that was not set up is left out.
async fn drop_logs(setup: &Setup) -> Result<(), Failure> {
    for part in Part::ALL.into_iter().filter(|part| setup.has_log(*part)) {
        let db = connect(setup.database, setup.url(part), 2).await?;
        let log = setup.log(part, setup.url(part), db.clone())?;
        log.drop()
            .await
            .or_cannot(format_args!("drop the log of {}", part.name()))?;
        db.close().await.or_cannot("close a database")?;
    }
    Ok(())
}

fn print(ledger: &Ledger, json: bool) -> Result<(), Failure> {
    let text = if json {
        serde_json::to_string(ledger).or_cannot("encode the ledger")?
    } else {
        ledger.to_string()
    };
    writeln!(std::io::stdout(), "{text}").or_cannot("print the ledger")?;
    if json && !ledger.balances() {
        for complaint in &ledger.complaints {
            writeln!(std::io::stderr(), "{complaint}").or_cannot("print the ledger")?;
        }
    }
    Ok(())
}
