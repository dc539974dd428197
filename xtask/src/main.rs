//! Tasks of this repository: `cargo xtask` lists them. One file per task.

mod bench;
mod chaos;
mod demo;
mod graph;
mod harness;
mod image;
mod lint;
mod process;
mod program;
mod rigs;
mod services;
mod simulate;
mod test;
mod tidy;
mod workspace;

use std::io::Write as _;
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};

use anyhow::Result;

use crate::services::{OF_GUIDE, Services, for_tests};
use crate::workspace::Workspace;

/// Tasks of this repository.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    task: Option<Task>,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Run the demo: orders become events, and each consumer applies each event once.
    Demo(demo::Options),
    /// Run every test against private instances of PostgreSQL, MariaDB, NATS and Redis.
    Test {
        /// Arguments for cargo test, for example `-- -p outbox-engine some_test`.
        #[arg(last = true)]
        arguments: Vec<String>,
    },
    /// Measure throughput, latency, memory and the cost of writing, each against the driver alone.
    Bench(bench::Options),
    /// Kill and pause relays, consumers or servers for minutes, then check that no message is lost.
    Chaos(chaos::Options),
    /// Check Debezium's Outbox Event Router with the tables of this project; nightly.
    Debezium(rigs::Names),
    /// Run the services in other languages and the consumer in Python; nightly.
    Polyglot(rigs::Names),
    /// Run the tests of the log relay and the store on PostgreSQL 18, which npm downloads; nightly.
    #[command(name = "postgres18")]
    Postgres18(rigs::Postgres18),
    /// Build the static program as the Containerfile does, and run it in an empty root; nightly.
    Image(image::Options),
    /// Check formatting, house rules, clippy, features, documentation, licences and the crate
    /// graph.
    Lint,
    /// Run the relay in simulated worlds, one for each seed.
    Simulate(simulate::Options),
    /// Check only the house rules and the crate graph.
    Tidy,
    /// Print the claims of GUARANTEES.md with their tests and files.
    Proofs,
    /// Start the servers of the guide and keep them until ctrl-c: PostgreSQL and nats-server.
    Services {
        /// Start the servers of the tests, not of the guide. Missing programs are installed.
        #[arg(long)]
        tests: bool,
        /// Print only the environment variables of the servers, without their report.
        #[arg(long)]
        print_env: bool,
    },
}

fn main() -> ExitCode {
    let Some(task) = Arguments::parse().task else {
        println!("{}", Arguments::command().render_help());
        return ExitCode::SUCCESS;
    };
    let result = process::stop_on_signals().and_then(|()| match task {
        Task::Demo(options) => demo::run(&options),
        Task::Test { arguments } => test::run(&arguments),
        Task::Bench(options) => bench::run(&options),
        Task::Chaos(options) => chaos::run(&options),
        Task::Debezium(options) => rigs::debezium(&options),
        Task::Polyglot(options) => rigs::polyglot(&options),
        Task::Postgres18(options) => rigs::postgres18(&options),
        Task::Image(options) => image::run(&options),
        Task::Lint => lint::run(),
        Task::Simulate(options) => simulate::run(&options),
        Task::Tidy => tidy::run(),
        Task::Proofs => tidy::guarantees::print(),
        Task::Services { tests, print_env } => keep_services(tests, print_env),
    });
    result.unwrap_or_else(|failure| {
        eprintln!("error: {failure:#}");
        ExitCode::FAILURE
    })
}

fn keep_services(is_for_tests: bool, only_variables: bool) -> Result<ExitCode> {
    let wanted = if is_for_tests {
        for_tests()
    } else {
        OF_GUIDE.to_vec()
    };
    let services = Services::start(&wanted, &Workspace::load()?)?;
    if !only_variables {
        services.report();
    }
    for backend in wanted {
        let variable = backend.printed_variable(is_for_tests);
        match services.url(backend) {
            Ok(url) => println!("export {variable}={url}"),
            Err(_) if is_for_tests => {}
            Err(missing) => return Err(missing),
        }
    }
    std::io::stdout().flush()?;
    eprintln!("ctrl-c stops them");
    process::wait_for_signal()
}
