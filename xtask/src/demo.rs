//! `cargo xtask demo`: starts a database and a broker, runs the demo program, and returns its exit
//! status.
//!
//! With `--json` only the demo's final object is printed to standard output.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, bail};
use clap::Args;

use crate::process::{self, tied};
use crate::program;
use crate::services::{Backend, Services};
use crate::workspace::Workspace;

#[derive(Args, Debug)]
pub(crate) struct Options {
    /// Orders to replay, as a CSV file.
    #[arg(long, value_name = "FILE", requires = "lines")]
    orders: Option<PathBuf>,
    /// CSV file with the lines of the orders in `--orders`.
    #[arg(long, value_name = "FILE", requires = "orders")]
    lines: Option<PathBuf>,
    /// Without `--orders`, generate this many orders.
    #[arg(long, value_name = "N", conflicts_with = "orders", default_value_t = 200)]
    generate: u32,
    /// The database that holds the orders, the outbox and the inbox.
    #[arg(long, value_parser = ["sqlite", "postgres", "mariadb"], default_value = "sqlite")]
    database: String,
    /// What the relays read: the outbox table or PostgreSQL's WAL. `log` needs `--database
    /// postgres`.
    #[arg(long, value_parser = ["polling", "log"], default_value = "polling")]
    relay: String,
    /// The broker of the messages.
    #[arg(long, value_parser = ["nats", "memory"], default_value = "nats")]
    broker: String,
    /// Write the exported files into this folder.
    #[arg(long, value_name = "DIR")]
    export: Option<PathBuf>,
    /// Print only the result, as one JSON object.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let wanted = wanted(options)?;
    let workspace = Workspace::load()?;
    let quiet: &[&str] = if options.json { &["--quiet"] } else { &[] };
    let program = program::build(&workspace, "examples", "northwind", quiet)?;
    let mut command = tied(program);
    command.arg("run");
    let services = Services::start(&wanted, &workspace)?;
    let work = services.folder().join("demo");
    fs::create_dir(&work).with_context(|| format!("cannot make {}", work.display()))?;
    for backend in wanted {
        let option = match backend {
            Backend::NatsForDemo => "--nats-url",
            _ => "--database-url",
        };
        command.arg(option).arg(services.url(backend)?);
    }
    command.arg("--work-dir").arg(&work).args(passed_on(options));
    let status = process::run(&mut command)?;
    let logs = work.join("logs");
    if status != ExitCode::SUCCESS && logs.exists() {
        let kept = workspace.target_directory.join("xtask/demo-logs");
        fs::remove_dir_all(&kept).ok();
        fs::create_dir_all(workspace.target_directory.join("xtask"))?;
        Command::new("cp").arg("-r").args([&logs, &kept]).status()?;
        eprintln!("a copy of the logs is in {}", kept.display());
    }
    Ok(status)
}

fn wanted(options: &Options) -> Result<Vec<Backend>> {
    let (relay, database) = (options.relay.as_str(), options.database.as_str());
    let database = match (relay, database) {
        ("polling", "sqlite") => None,
        ("polling", "postgres") => Some(Backend::Postgres),
        ("polling", _) => Some(Backend::MariaDb),
        (_, "postgres") => Some(Backend::PostgresLogical),
        _ => bail!("--relay log needs --database postgres: only PostgreSQL's log can be read"),
    };
    let broker = (options.broker != "memory").then_some(Backend::NatsForDemo);
    Ok(database.into_iter().chain(broker).collect())
}

fn passed_on(options: &Options) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = Vec::new();
    let mut add = |name: &str, value: &OsStr| arguments.extend([name.into(), value.into()]);
    add("--relay", options.relay.as_ref());
    add("--broker", options.broker.as_ref());
    match (&options.orders, &options.lines) {
        (Some(orders), Some(lines)) => {
            add("--orders", orders.as_ref());
            add("--lines", lines.as_ref());
        }
        _ => add("--generate", options.generate.to_string().as_ref()),
    }
    if let Some(export) = &options.export {
        add("--export", export.as_ref());
    }
    arguments.extend(options.json.then(|| "--json".into()));
    arguments
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        options: Options,
    }

    fn parse(arguments: &str) -> Result<Options, clap::Error> {
        let words = std::iter::once("demo").chain(arguments.split_whitespace());
        Cli::try_parse_from(words).map(|cli| cli.options)
    }

    #[track_caller]
    fn check(arguments: &str, passed: &str, servers: &[Backend]) {
        let options = parse(arguments).unwrap();
        assert_eq!(passed_on(&options).join(" ".as_ref()), passed);
        assert_eq!(wanted(&options).unwrap(), servers);
    }

    #[test]
    fn demo_receives_only_its_own_options_and_server() {
        check(
            "",
            "--relay polling --broker nats --generate 200",
            &[Backend::NatsForDemo],
        );
        check(
            "--orders a --lines b --export c --json --broker memory",
            "--relay polling --broker memory --orders a --lines b --export c --json",
            &[],
        );
        check(
            "--database postgres --relay log",
            "--relay log --broker nats --generate 200",
            &[Backend::PostgresLogical, Backend::NatsForDemo],
        );
    }

    #[test]
    fn contradictions_are_refused_before_anything_is_built() {
        for arguments in ["--orders a.csv", "--orders a.csv --lines b.csv --generate 3"] {
            assert!(parse(arguments).is_err(), "{arguments}");
        }
        for arguments in ["--relay log", "--relay log --database mariadb"] {
            assert!(wanted(&parse(arguments).unwrap()).is_err(), "{arguments}");
        }
    }
}
