//! Measures the relay, the writers and the inbox on real servers, for `cargo xtask bench`.
//!
//! Each figure alternates with its baseline. Invariant: a figure is printed only if messages on the
//! stream and rows in the table prove the work.

mod drain;
mod figure;
mod inbox;
mod latency;
mod load;
mod log;
mod raw;
mod relay;
mod servers;
mod tutorial;
mod write;

use std::process::ExitCode;

use clap::{Args, Parser};

use crate::figure::Figure;
use crate::servers::Servers;

pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;
pub(crate) type Result<T, E = Failure> = std::result::Result<T, E>;

pub(crate) fn check(what: &str, found: u64, expected: u64) -> Result<()> {
    if found == expected {
        return Ok(());
    }
    Err(format!("{what}: {found}, and not {expected} as measured; the figure would be wrong").into())
}

/// Measures the relay, the writers and the inbox.
#[derive(Debug, Parser)]
#[command(name = "bench")]
enum What {
    /// Writers, relay, latency.
    Relay {
        #[command(flatten)]
        options: Options,
        /// Measure only these groups of figures
        #[arg(long, value_enum, value_delimiter = ',')]
        only: Vec<relay::Group>,
    },
    /// Consumers.
    Inbox(Options),
}

#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// PostgreSQL, with a user who may create databases.
    #[arg(long)]
    postgres_url: String,
    /// PostgreSQL with `wal_level = logical` on this machine, for the group `log`.
    #[arg(long)]
    logical_url: Option<String>,
    /// A nats-server with JetStream.
    #[arg(long)]
    nats_url: String,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Runs of each figure.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    runs: u32,
    /// Measure less: a tenth of the messages, a quarter of the time.
    #[arg(long)]
    quick: bool,
}

impl Options {
    pub(crate) fn runs(&self, group: &'static str) -> impl Iterator<Item = u32> {
        let runs = self.runs;
        (1..=runs).inspect(move |run| eprintln!("{group}: run {run} of {runs}"))
    }

    pub(crate) fn size(&self, usual: u64, quick: u64) -> u64 {
        if self.quick { quick } else { usual }
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let done = match What::parse() {
        What::Relay { options, only } => {
            let figures = async |servers: &Servers| relay::figures(servers, &options, &only).await;
            measure(&options, figures).await
        }
        What::Inbox(options) => {
            let figures = async |servers: &Servers| inbox::figures(servers, &options).await;
            measure(&options, figures).await
        }
    };
    if let Err(failure) = done {
        eprintln!("error: {}", outbox_core::describe(&*failure));
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

async fn measure(
    options: &Options,
    figures: impl AsyncFnOnce(&Servers) -> Result<Vec<Figure>>,
) -> Result<()> {
    let figures = Servers::with(&options.postgres_url, &options.nats_url, figures).await?;
    match options.json {
        true => println!("{}", serde_json::to_string_pretty(&figures)?),
        false => figure::print(&figures),
    }
    Ok(())
}
