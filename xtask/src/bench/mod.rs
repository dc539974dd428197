//! `cargo xtask bench relay`, `inbox`, `prove` and `programs`: starts a database and a broker, builds the program `bench` in release mode, and runs it.
//! `cargo xtask bench draw` draws the figures that the documents show.
//!
//! With `--json` nothing but the list of figures reaches the standard output. The program `bench` in `stress` decides what is measured, and against
//! which baseline; `docs/performance.md` and `docs/performance-inbox.md` explain the figures.

pub(crate) mod draw;
mod svg;

use std::env::consts::ARCH;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use clap::{Args, Subcommand};

use anyhow::{Context as _, Result};

use crate::image;
use crate::process::{Manners, Process, tied};
use crate::program;
use crate::services::{Availability, Backend, Debezium, Services};
use crate::workspace::Workspace;

#[derive(Debug, Subcommand)]
pub(crate) enum What {
    /// Writers, relays and latency: groups drain, backlog, hot, latency, write, log, ways, overview.
    Relay(Options),
    /// Consumers, their latency and memory, and what failures and several processes cost: groups consume, strategies, latency, memory, failing, across, trimmed, trimmed-across.
    Inbox(Options),
    /// The ledger of `outbox prove` over a million messages: its time, and the memory of the program.
    Prove(ProveOptions),
    /// The relay of the program `outbox` with the system's allocator and with mimalloc, also as the static program.
    Programs(ProgramsOptions),
    /// Draw the pictures of docs/performance from the figures beside them, which `--json` prints.
    Draw,
}

#[derive(Args, Debug)]
pub(crate) struct Options {
    #[command(flatten)]
    common: Common,
    /// Measure only some groups of figures.
    #[arg(long, value_name = "GROUP,…")]
    only: Option<String>,
    /// How many aggregates the groups `trimmed` and `trimmed-across` of the inbox have: 200,000 by default.
    #[arg(long, value_name = "N")]
    aggregates: Option<u64>,
    /// A library to start the measuring program with, such as the allocator `libjemalloc.so.2` (`LD_PRELOAD`, so not on Windows).
    #[arg(long, value_name = "FILE")]
    preload: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub(crate) struct ProveOptions {
    #[command(flatten)]
    common: Common,
    /// Messages of the ledger.
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    messages: u64,
}

#[derive(Args, Debug)]
pub(crate) struct ProgramsOptions {
    #[command(flatten)]
    common: Common,
}

/// How each figure is measured.
#[derive(Args, Debug)]
struct Common {
    /// Print the figures as JSON and nothing else.
    #[arg(long)]
    json: bool,
    /// How often each figure is measured.
    #[arg(long, value_name = "N", default_value_t = 3)]
    runs: u32,
    /// Measure a tenth of the messages, for a quarter of the time where a figure is measured for a time.
    #[arg(long)]
    quick: bool,
}

pub(crate) fn run(what: &What) -> Result<ExitCode> {
    match what {
        What::Relay(options) => measure("relay", options),
        What::Inbox(options) => measure("inbox", options),
        What::Prove(options) => prove(options),
        What::Programs(options) => programs(options),
        What::Draw => draw::run(),
    }
}

/// The name of our program, and of its package.
const OUTBOX: &str = "outbox";
const OUTBOX_PACKAGE: &str = "outbox-cli";

fn prove(options: &ProveOptions) -> Result<ExitCode> {
    let workspace = Workspace::load()?;
    let bench = program::build(&workspace, program::STRESS, "bench", &["--release"])?;
    let outbox = program::build(&workspace, OUTBOX_PACKAGE, OUTBOX, &["--release"])?;
    let services = start(&[Backend::Postgres, Backend::Nats], &workspace)?;
    let mut command = command("prove", bench, &services)?;
    command.args(options.common.passed_on());
    command.args(["--messages", &options.messages.to_string()]);
    command.arg("--program").arg(outbox);
    finish(command)
}

fn programs(options: &ProgramsOptions) -> Result<ExitCode> {
    let workspace = Workspace::load()?;
    let bench = program::build(&workspace, program::STRESS, "bench", &["--release"])?;
    let services = start(&[Backend::Postgres, Backend::Nats], &workspace)?;
    let mut command = command("programs", bench, &services)?;
    command.args(options.common.passed_on());
    // Each build takes the place of one before, so it is copied.
    let build = |arguments: &[&str]| program::build(&workspace, OUTBOX_PACKAGE, OUTBOX, arguments);
    let mut add = |name: &str, built: PathBuf| {
        let copy = services.folder().join(name);
        fs::copy(&built, &copy).with_context(|| format!("cannot copy {}", built.display()))?;
        command.arg("--program").arg(named(name, &copy));
        Ok::<_, anyhow::Error>(())
    };
    let musl = format!("{ARCH}-unknown-linux-musl");
    add("plain", build(&["--release"])?)?;
    add("mimalloc", build(&["--release", "--features", "mimalloc"])?)?;
    add("static", image::build(&workspace)?)?;
    // Its tools have been installed for the one before.
    add("musl", build(&["--release", "--target", &musl])?)?;
    finish(command)
}

fn named(name: &str, path: &Path) -> OsString {
    let mut argument = OsString::from(format!("{name}="));
    argument.push(path);
    argument
}

fn start(wanted: &[Backend], workspace: &Workspace) -> Result<Services> {
    let services = Services::start(wanted, workspace)?;
    for (backend, availability) in services.backends() {
        if let Availability::Ready { origin, .. } = availability {
            eprintln!("{}: {origin}", backend.name());
        }
    }
    Ok(services)
}

fn command(subcommand: &str, program: PathBuf, services: &Services) -> Result<Command> {
    let mut command = tied(program);
    command.args([subcommand, "--postgres-url", services.url(Backend::Postgres)?]);
    command.args(["--nats-url", services.url(Backend::Nats)?]);
    Ok(command)
}

fn finish(command: Command) -> Result<ExitCode> {
    let status = Process::launch(command, Manners::FOREGROUND)?.wait()?;
    Ok(program::forward(status))
}

fn measure(subcommand: &str, options: &Options) -> Result<ExitCode> {
    let workspace = Workspace::load()?;
    let program = program::build(&workspace, program::STRESS, "bench", &["--release"])?;
    let groups = options.only.as_deref();
    let is_wanted = |group| {
        subcommand == "relay" && groups.is_none_or(|groups| groups.split(',').any(|one| one == group))
    };
    let reads_log = is_wanted("log") || is_wanted("ways");
    let logical = reads_log.then_some(Backend::PostgresLogical);
    let wanted: Vec<_> = [Backend::Postgres, Backend::Nats]
        .into_iter()
        .chain(logical)
        .collect();
    let services = start(&wanted, &workspace)?;
    let mut command = command(subcommand, program, &services)?;
    command.args(passed_on(options));
    if reads_log {
        command.args(["--logical-url", services.url(Backend::PostgresLogical)?]);
    }
    if is_wanted("log") {
        match Debezium::install(&workspace) {
            Ok(debezium) => {
                command.arg("--debezium-jars").arg(debezium.jars);
                command
                    .arg("--router")
                    .arg(workspace.root.join("examples/debezium"));
            }
            Err(why) => eprintln!("the log relay is not compared to Debezium: {why}"),
        }
    }
    if let Some(library) = &options.preload {
        // The dynamic linker only warns about a file that is not there, and the figures would be those of another allocator.
        let library = library
            .canonicalize()
            .with_context(|| format!("cannot preload {}", library.display()))?;
        command.env("LD_PRELOAD", library);
    }
    finish(command)
}

impl Common {
    fn passed_on(&self) -> Vec<OsString> {
        let mut arguments: Vec<OsString> = vec!["--runs".into(), self.runs.to_string().into()];
        arguments.extend(self.json.then(|| "--json".into()));
        arguments.extend(self.quick.then(|| "--quick".into()));
        arguments
    }
}

fn passed_on(options: &Options) -> Vec<OsString> {
    let mut arguments = options.common.passed_on();
    if let Some(groups) = &options.only {
        arguments.extend(["--only".into(), groups.into()]);
    }
    if let Some(aggregates) = options.aggregates {
        arguments.extend(["--aggregates".into(), aggregates.to_string().into()]);
    }
    arguments
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(subcommand)]
        what: What,
    }

    #[track_caller]
    fn check(arguments: &str, expected: &str) {
        let words = std::iter::once("bench").chain(arguments.split_whitespace());
        let what = Cli::try_parse_from(words).unwrap().what;
        let (subcommand, options) = match &what {
            What::Relay(options) => ("relay", options),
            What::Inbox(options) => ("inbox", options),
            _ => panic!("has options of its own"),
        };
        let passed_on = [vec![subcommand.into()], passed_on(options)].concat();
        assert_eq!(passed_on.join(&OsString::from(" ")), OsString::from(expected));
    }

    #[test]
    fn options_reach_the_program() {
        check("relay", "relay --runs 3");
        check("inbox --only consume", "inbox --runs 3 --only consume");
        check(
            "relay --json --quick --runs 5 --only hot,write",
            "relay --runs 5 --json --quick --only hot,write",
        );
        check(
            "inbox --only trimmed --aggregates 1000000",
            "inbox --runs 3 --only trimmed --aggregates 1000000",
        );
    }
}
