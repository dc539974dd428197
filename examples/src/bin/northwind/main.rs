//! The demo: a small shop whose parts exchange events over a transactional outbox.
//!
//! ```text
//! service ── service.db ── relay ───┐             ┌── inventory       (units per product)
//!             (outbox)              │             ├── billing         (amount per customer)
//!                                   ├── stream ───┼── shipping        (shipments, and an outbox of its own)
//!            shipping.db ── relay ──┘             └── notifications   (lines of a file)
//!             (outbox)
//! ```
//!
//! `cargo xtask demo` finds or starts the servers and calls `northwind run`. That starts everything above as processes, waits until the last message
//! has taken effect, and balances the ledger: nothing is lost, invented, done twice or out of order. Kill any process meanwhile; the result is the
//! same.

mod cli;
mod failure;
mod logging;

mod generate;
mod input;
mod order;
mod values;

mod events;
mod tables;

mod consumers;
mod notices;
mod relay;
mod service;

mod broker;
mod database;
mod setup;

mod progress;
mod run;
mod watch;
mod workers;

mod books;
mod evidence;
mod ledger;

use std::io::{Read as _, Write as _};
use std::process::ExitCode;

use clap::Parser as _;
use outbox_core::shutdown;
use tokio_util::sync::CancellationToken;

use crate::cli::{Cli, Command, ProgramArgs};
use crate::failure::Failure;
use crate::setup::{Role, Setup};

#[tokio::main]
async fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Run(args) => run::run(args).await,
        Command::Service(program) => run_program(program, Role::Service).await,
        Command::Relay { outbox, program } => run_program(program, Role::Relay(outbox)).await,
        Command::Consumer { part, program } => run_program(program, Role::Consumer(part)).await,
    };
    result.unwrap_or_else(|failure| {
        tracing::error!("{failure}");
        // If even this write fails, nothing is left to do.
        let _ = writeln!(std::io::stderr(), "error: {failure}");
        failure.exit_code()
    })
}

/// Runs one of the shop's programs in this process.
async fn run_program(args: ProgramArgs, role: Role) -> Result<ExitCode, Failure> {
    let setup = Setup::read(&args.setup)?;
    logging::to_file(&setup.logs(), &role.name())?;
    let shutdown = shutdown::on_signals();
    if args.until_stdin_closes {
        cancel_when_stdin_closes(shutdown.clone());
    }
    match role {
        Role::Service => service::run(&setup, shutdown).await?,
        Role::Relay(part) => {
            relay::run(&setup, part, broker::publisher(&setup, part).await?, shutdown).await?;
        }
        Role::Consumer(part) => {
            consumers::run(&setup, part, broker::subscriber(&setup).await?, shutdown).await?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn cancel_when_stdin_closes(shutdown: CancellationToken) {
    // The read cannot be cancelled, so it has a thread of its own. As a task it would delay the end of the runtime.
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        shutdown.cancel();
    });
}
