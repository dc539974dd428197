//! Measures the relay, the writers and the inbox on real servers; `cargo xtask bench` starts the servers and runs this.
//!
//! Every figure and its baseline are measured alternately, in one run. Invariant: a figure is printed only if the
//! measured work really happened (messages counted on the stream, rows counted in the table); otherwise the run fails.
//! Targets are printed and never asserted: a slow machine is not an error.

mod child;
mod engine;
mod figure;
mod floor;
mod load;
mod many;
mod processor;
mod program;
mod raw;
mod relay;
mod servers;
mod tutorial;

// The groups of figures.
mod backlog;
mod drain;
mod hot;
mod inbox;
mod latency;
mod log;
mod overview;
mod programs;
mod prove;
mod ways;
mod write;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::child::Place;
use crate::figure::Figure;
use crate::servers::Servers;

/// The reason, in words, why a measurement ended early.
pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;
/// The result of a step.
pub(crate) type Result<T> = std::result::Result<T, Failure>;

/// Fails the run if the measured work did not happen.
pub(crate) fn check(what: &str, found: u64, expected: u64) -> Result<()> {
    if found == expected {
        return Ok(());
    }
    Err(format!("{what}: {found}, and not {expected} as measured; the figure would be wrong").into())
}

/// Measures the relay, the writers and the inbox.
#[derive(Debug, Parser)]
#[command(name = "bench")]
struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Writers, relay, latency.
    Relay(Asked<Group>),
    /// Consumers, latency, memory.
    Inbox(Asked<inbox::Group>),
    /// The relay of the program `outbox`, built in several ways.
    Programs(programs::Asked),
    /// The program `outbox` that draws up a ledger.
    Prove(prove::Asked),
    /// One relay, as a child process.
    #[command(hide = true)]
    RelayChild(relay::ChildOptions),
    /// One inbox, as a child process.
    #[command(hide = true)]
    InboxChild(Place),
    /// One inbox that keeps order across processes, as a child process.
    #[command(hide = true)]
    SequenceChild {
        #[command(flatten)]
        place: Place,
        /// What its handler does.
        #[arg(long, value_enum)]
        duty: inbox::Duty,
    },
}

/// The groups to measure, and how.
#[derive(Args, Clone, Debug)]
struct Asked<G: ValueEnum + Send + Sync + 'static> {
    #[command(flatten)]
    options: Options,
    /// Only these groups of figures.
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<G>,
}

impl<G: ValueEnum + Send + Sync + PartialEq> Asked<G> {
    fn is_wanted(&self, group: G) -> bool {
        self.only.is_empty() || self.only.contains(&group)
    }
}

/// Options of the measurements.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// A PostgreSQL whose user may create databases.
    #[arg(long)]
    postgres_url: String,
    /// A PostgreSQL whose log can be read, on this machine, for the groups `log` and `ways`.
    #[arg(long)]
    logical_url: Option<String>,
    /// The folder of Debezium's jars, for a figure of the group `log`. It is left out otherwise.
    #[arg(long, requires = "router")]
    debezium_jars: Option<PathBuf>,
    /// The folder of the program that runs Debezium's engine: `examples/debezium`.
    #[arg(long)]
    router: Option<PathBuf>,
    /// A nats-server with JetStream.
    #[arg(long)]
    nats_url: String,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// How often each figure is measured.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    runs: u32,
    /// Measure less: a tenth of the messages, a quarter of the time.
    #[arg(long)]
    quick: bool,
    /// Aggregates in the figures of the groups `trimmed` and `trimmed-across`, which have 200,000 otherwise.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    aggregates: Option<u64>,
}

/// A group of figures that are measured together.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
enum Group {
    Drain,
    Backlog,
    Hot,
    Latency,
    Write,
    Log,
    Ways,
    Overview,
}

impl Options {
    /// The number of times that each figure is measured.
    pub(crate) fn runs(&self) -> u32 {
        self.runs
    }

    /// The usual number, or the smaller one for a quick run.
    pub(crate) fn size(&self, usual: u64, quick: u64) -> u64 {
        if self.quick { quick } else { usual }
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("error: cannot start the runtime: {error}");
            return ExitCode::FAILURE;
        }
    };
    let result = runtime.block_on(async {
        match arguments.what {
            What::Relay(asked) => {
                measure(&asked.options, async |servers| figures(servers, &asked).await).await
            }
            What::Inbox(asked) => {
                let is_wanted = |group| asked.is_wanted(group);
                measure(&asked.options, async |servers| {
                    inbox::figures(servers, &asked.options, is_wanted).await
                })
                .await
            }
            What::Programs(asked) => {
                measure(&asked.options, async |servers| {
                    programs::figures(servers, &asked).await
                })
                .await
            }
            What::Prove(asked) => {
                measure(&asked.options, async |servers| {
                    prove::figures(servers, &asked).await
                })
                .await
            }
            What::RelayChild(options) => relay::child(&options).await,
            What::InboxChild(place) => inbox::child(&place).await,
            What::SequenceChild { place, duty } => inbox::sequence_child(&place, duty).await,
        }
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            let mut report = failure.to_string();
            let mut cause = failure.source();
            while let Some(error) = cause {
                report.push_str(&format!(": {error}"));
                cause = error.source();
            }
            eprintln!("error: {report}");
            ExitCode::FAILURE
        }
    }
}

async fn measure(
    options: &Options,
    figures: impl AsyncFnOnce(&Servers) -> Result<Vec<Figure>>,
) -> Result<()> {
    let servers = Servers::connect(&options.postgres_url, &options.nats_url).await?;
    let figures = figures(&servers).await;
    // Also after a failure, so that servers used by others are left as they were found.
    servers.remove().await?;
    let figures = figures?;
    if options.json {
        println!("{}", figure::json(&figures)?);
    } else {
        print!("{}", figure::table(&figures));
    }
    Ok(())
}

async fn figures(servers: &Servers, asked: &Asked<Group>) -> Result<Vec<Figure>> {
    let options = &asked.options;
    let mut figures = Vec::new();
    if asked.is_wanted(Group::Drain) {
        figures.extend(drain::figures(servers, options).await?);
    }
    if asked.is_wanted(Group::Backlog) {
        figures.extend(backlog::figures(servers, options).await?);
    }
    if asked.is_wanted(Group::Hot) {
        figures.extend(hot::figures(servers, options).await?);
    }
    if asked.is_wanted(Group::Latency) {
        figures.extend(latency::figures(servers, options).await?);
    }
    if asked.is_wanted(Group::Write) {
        figures.extend(write::figures(servers, options).await?);
    }
    if asked.is_wanted(Group::Log) {
        figures.extend(log::figures(options).await?);
    }
    if asked.is_wanted(Group::Ways) {
        figures.extend(ways::figures(options).await?);
    }
    if asked.is_wanted(Group::Overview) {
        figures.extend(overview::figures(servers, options).await?);
    }
    Ok(figures)
}
