//! One run from its input to its ledger.
//!
//! Invariant: nothing is created before the input is checked, and everything created is removed at
//! the end. Databases and stream stay if the ledger does not balance.

use std::fs::File;
use std::io::Write as _;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};

use anyhow::{Context as _, Result, bail, ensure};
use outbox_core::{describe, shutdown};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use url::Url;
use uuid::Uuid;

use crate::books::Books;
use crate::broker::Broker;
use crate::cli::{BrokerKind, RunArgs};
use crate::database::{Databases, connect, is_postgres};
use crate::evidence::{Connections, Evidence};
use crate::ledger::Ledger;
use crate::order::{Expected, Order};
use crate::setup::{Part, RelayKind, Setup, prepare_work_dir};
use crate::tables::migrate;
use crate::watch::{Counts, until_at_rest};
use crate::workers::Workers;
use crate::{log_to, warn};

pub(crate) async fn run(args: RunArgs) -> Result<ExitCode> {
    let server = server(&args)?;
    let orders = match args.source.read() {
        Ok(orders) => orders,
        Err(error) => {
            writeln!(std::io::stderr(), "error: {}", describe(error.as_ref()))?;
            return Ok(ExitCode::from(2));
        }
    };
    let work_dir = prepare_work_dir(&args.work_dir)?;
    let shutdown = shutdown::on_signals();

    let id = &Uuid::now_v7().simple().to_string()[20..];
    let databases = Databases::create(server, &work_dir, id).await?;
    let setup = Arc::new(Setup {
        urls: databases.urls.clone(),
        relay: args.relay,
        nats_url: (args.broker == BrokerKind::Nats).then(|| args.nats_url.clone()),
        stream: format!("northwind_{id}"),
        work_dir,
        source: args.source.clone(),
    });
    let log = File::create(setup.log_file("run")).context("cannot write the log of the run")?;
    log_to(Mutex::new(log));
    let broker = match Broker::provision(&setup).await {
        Ok(broker) => broker,
        Err(error) => {
            databases.drop().await?;
            return Err(error);
        }
    };
    let ended = run_on(&args, &setup, &broker, &orders, shutdown).await;
    // The replication slots are dropped even if the databases stay, because a slot without a reader
    // fills the server's disk.
    let dropped = drop_logs(&setup).await;
    let ended = ended.and_then(|ledger| dropped.map(|()| ledger));
    let why = match ended {
        Ok(Some(ledger)) if !ledger.balances() => "the ledger does not balance".to_owned(),
        Ok(ledger) => {
            broker.delete(&setup).await?;
            databases.drop().await?;
            ensure!(ledger.is_some(), "interrupted");
            return Ok(ExitCode::SUCCESS);
        }
        Err(error) => describe(error.as_ref()),
    };
    bail!(
        "{why}\nlogs are in {}; databases and stream {} were not removed",
        setup.work_dir.join("logs").display(),
        setup.stream
    )
}

fn server(args: &RunArgs) -> Result<Option<Url>> {
    // The database drivers accept MariaDB only under the URL scheme of MySQL.
    let parse = |url: &String| Url::parse(&url.replacen("mariadb://", "mysql://", 1));
    let server = args.database_url.as_ref().map(parse).transpose();
    let server = server.context("cannot read --database-url")?;
    let is_known = |url: &Url| ["postgres", "postgresql", "mysql"].contains(&url.scheme());
    ensure!(
        server.as_ref().is_none_or(is_known),
        "--database-url must start with `postgres://`, `mysql://` or `mariadb://`"
    );
    ensure!(
        args.relay == RelayKind::Polling || server.as_ref().is_some_and(is_postgres),
        "--relay log needs the --database-url of PostgreSQL: only PostgreSQL's log can be read"
    );
    Ok(server)
}

async fn run_on(
    args: &RunArgs,
    setup: &Arc<Setup>,
    broker: &Broker,
    orders: &[Order],
    shutdown: CancellationToken,
) -> Result<Option<Ledger>> {
    let mut dbs = Connections::new();
    for part in Part::ALL {
        let db = connect(&setup.urls[&part], 2).await?;
        migrate(&db, part).await?;
        if setup.has_log(part) {
            setup
                .log(part, db.clone())?
                .init()
                .await
                .with_context(|| format!("cannot set up the log of {}", part.name()))?;
        }
        dbs.insert(part, db);
    }
    let setup_path = setup.write()?;

    let expected = Expected::of(orders);
    let started = Instant::now();
    let mut workers = Workers::start(setup, &setup_path, broker);
    let look = async || Counts::read(setup, &dbs, broker).await;
    let outcome = until_at_rest(look, &mut workers, expected, &shutdown).await;
    let elapsed_ms = u64::try_from(started.elapsed().as_millis())?;
    workers.stop().await?;
    match outcome {
        Ok(true) => {}
        Ok(false) => return Ok(None),
        Err(error) => warn(&describe(error.as_ref())),
    }

    let evidence = Evidence::collect(setup, &dbs, broker).await?;
    let ledger = Ledger::of(&evidence, expected, &Books::of(orders), elapsed_ms);
    if let Some(folder) = &args.export {
        evidence.books.export(folder)?;
    }
    print(&ledger, args.json)?;
    Ok(Some(ledger))
}

async fn drop_logs(setup: &Setup) -> Result<()> {
    for part in Part::ALL.into_iter().filter(|part| setup.has_log(*part)) {
        let db = connect(&setup.urls[&part], 2).await?;
        let dropped = setup.log(part, db.clone())?.drop().await;
        dropped.with_context(|| format!("cannot drop the log of {}", part.name()))?;
    }
    Ok(())
}

fn print(ledger: &Ledger, json: bool) -> Result<()> {
    if !json {
        return Ok(writeln!(std::io::stdout(), "{ledger}")?);
    }
    let complaints = ledger.complaints.join("\n");
    write!(std::io::stderr(), "{complaints}")?;
    Ok(writeln!(std::io::stdout(), "{}", serde_json::to_string(ledger)?)?)
}
