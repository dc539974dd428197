//! The demo: the parts of a small shop exchange events over a transactional outbox.
//!
//! ```text
//! service ── service.db ── relay ───┐             ┌── inventory       (units per product)
//!             (outbox)              │             ├── billing         (amount per customer)
//!                                   ├── stream ───┼── shipping        (shipments, own outbox)
//!            shipping.db ── relay ──┘             └── notifications   (lines of a file)
//!             (outbox)
//! ```
//!
//! `cargo xtask demo` finds or starts the servers and calls `northwind run`. `run` starts the
//! programs of the diagram as processes, and waits until the last message is applied. Then it
//! checks the ledger: no message is lost, invented, applied twice or out of order. Killing any
//! process does not change the result.

mod cli;

mod generate;
mod input;
mod order;

mod events;
mod tables;

mod consumers;
mod notices;
mod relay;
mod service;

mod broker;
mod database;
mod setup;

mod run;
mod watch;
mod workers;

mod books;
mod evidence;
mod ledger;

use std::io::{Read as _, Write as _};
use std::process::ExitCode;

use anyhow::Result;
use clap::Parser as _;
use outbox::testing::MemoryBroker;
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

use crate::cli::{Cli, Command, ProgramArgs};
use crate::setup::{Role, Setup};

#[tokio::main]
async fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Run(args) => run::run(args).await,
        Command::Program(args) => run_process(args).await,
    };
    result.unwrap_or_else(|error| {
        let error = outbox_core::describe(error.as_ref());
        let _ = writeln!(std::io::stderr(), "error: {error}");
        ExitCode::FAILURE
    })
}

/// Runs until standard input closes. The orchestrator holds the other end, so no program outlives
/// its run.
async fn run_process(ProgramArgs { role, setup }: ProgramArgs) -> Result<ExitCode> {
    log_to(std::io::stderr);
    let shutdown = outbox_core::shutdown::on_signals();
    cancel_when_stdin_closes(shutdown.clone());
    run_program(role, &Setup::read(&setup)?, None, shutdown).await?;
    Ok(ExitCode::SUCCESS)
}

async fn run_program(
    role: Role,
    setup: &Setup,
    memory: Option<&MemoryBroker>,
    shutdown: CancellationToken,
) -> Result<()> {
    match (role, memory) {
        (Role::Service, _) => service::run(setup, shutdown).await,
        (Role::Relay(part), None) => {
            let publisher = broker::publisher(setup, part).await?;
            relay::run(setup, part, publisher, shutdown).await
        }
        (Role::Relay(part), Some(broker)) => relay::run(setup, part, broker.publisher(), shutdown).await,
        (Role::Consumer(part), None) => {
            let subscriber = broker::subscriber(setup).await?;
            consumers::run(setup, part, subscriber, shutdown).await
        }
        (Role::Consumer(part), Some(broker)) => {
            consumers::run(setup, part, broker.subscriber(), shutdown).await
        }
    }
}

fn warn(text: &str) {
    tracing::warn!("{text}");
    let _ = writeln!(std::io::stderr(), "warning: {text}");
}

fn cancel_when_stdin_closes(shutdown: CancellationToken) {
    // Standard input is read in a thread: the read cannot be cancelled, and in a Tokio task it
    // would delay the end of the runtime.
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        shutdown.cancel();
    });
}

fn log_to(writer: impl for<'w> MakeWriter<'w> + Send + Sync + 'static) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_env_filter(filter);
    subscriber.with_writer(writer).init();
}
