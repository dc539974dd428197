//! `cargo xtask demo`: starts a database and a broker, then the demo program, and forwards its exit status.
//!
//! With `--json` nothing but the demo's own final object reaches the standard output. The program `northwind` in `examples` decides what is shown and
//! checks it.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, ValueEnum};

use anyhow::{Context as _, Result, anyhow, bail};

use crate::process::{Manners, Process, tied};
use crate::program;
use crate::services::{Backend, Services};
use crate::workspace::Workspace;

/// Enough orders to see something, few enough to see it soon.
const GENERATED_BY_DEFAULT: u32 = 200;

#[derive(Args, Debug)]
pub(crate) struct Options {
    /// Orders to replay, as a CSV file.
    #[arg(long, value_name = "FILE", requires = "lines")]
    orders: Option<PathBuf>,
    /// The lines of these orders, as a CSV file.
    #[arg(long, value_name = "FILE", requires = "orders")]
    lines: Option<PathBuf>,
    /// Generate this many orders instead (200 when no files are given).
    #[arg(long, value_name = "N", conflicts_with_all = ["orders", "lines"])]
    generate: Option<u32>,
    /// The database that holds the orders, the outbox and the inbox.
    #[arg(long, value_enum, default_value_t = Database::Sqlite)]
    database: Database,
    /// What the relays read. `log` needs `--database postgres`.
    #[arg(long, value_enum, default_value_t = Relay::Polling)]
    relay: Relay,
    /// Give each program a login of the database with the rights that `outbox print` prints for it, and no others, and a user on a NATS server of the demo's own. Needs a
    /// database server.
    #[arg(long)]
    least_rights: bool,
    /// What carries the messages.
    #[arg(long, value_enum, default_value_t = Broker::Nats)]
    broker: Broker,
    /// Write what happened into this folder.
    #[arg(long, value_name = "DIR")]
    export: Option<PathBuf>,
    /// Print the result as one JSON object and nothing else.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
enum Database {
    Sqlite,
    Postgres,
    #[value(name = "mariadb")]
    MariaDb,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
enum Relay {
    /// The outbox's table.
    Polling,
    /// PostgreSQL's transaction log.
    Log,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
enum Broker {
    Nats,
    Memory,
}

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let database = backend(options)?;
    let input = input(options)?;
    let workspace = Workspace::load()?;
    let quiet: &[&str] = if options.json { &["--quiet"] } else { &[] };
    let program = program::build(&workspace, "examples", "northwind", quiet)?;
    let printer = match options.least_rights {
        true => Some(program::build(&workspace, "outbox-cli", "outbox", quiet)?),
        false => None,
    };
    let services = Services::start(&wanted(options, database), &workspace)?;
    let work = services.folder().join("demo");
    fs::create_dir(&work).with_context(|| format!("cannot make {}", work.display()))?;
    let mut command = tied(program);
    command
        .arg("run")
        .args(connection(options, database, &services, &work)?)
        .args(
            printer
                .iter()
                .flat_map(|printer| [OsStr::new("--grants-by"), printer.as_os_str()]),
        )
        .args(input);
    // The demo talks to the terminal, so it stays in the foreground and gets ctrl-c too.
    let process = Process::launch(command, Manners::FOREGROUND)?;
    let status = process.wait()?;
    if !status.success() {
        let kept = workspace.target_directory.join("xtask").join("demo-logs");
        if keep_logs(&work.join("logs"), &kept)? {
            eprintln!(
                "servers that were started for the demo stop now, and its folder is removed; a copy of the logs is in {}",
                kept.display()
            );
        }
    }
    Ok(program::forward(status))
}

/// Copies the logs to a place where they outlive the run, over those of an earlier one; `false` if the run wrote none.
fn keep_logs(logs: &Path, kept: &Path) -> Result<bool> {
    let Ok(files) = fs::read_dir(logs) else {
        return Ok(false);
    };
    let why = || format!("cannot copy the logs to {}", kept.display());
    if kept.exists() {
        fs::remove_dir_all(kept).with_context(why)?;
    }
    fs::create_dir_all(kept).with_context(why)?;
    for file in files {
        let file = file.with_context(why)?;
        fs::copy(file.path(), kept.join(file.file_name())).with_context(why)?;
    }
    Ok(true)
}

/// The server of the database, if it needs one.
fn backend(options: &Options) -> Result<Option<Backend>> {
    if options.least_rights && matches!(options.database, Database::Sqlite) {
        bail!("--least-rights needs --database postgres or mariadb: SQLite has no logins");
    }
    match (options.relay, options.database) {
        (Relay::Polling, Database::Sqlite) => Ok(None),
        (Relay::Polling, Database::Postgres) => Ok(Some(Backend::Postgres)),
        (Relay::Polling, Database::MariaDb) => Ok(Some(Backend::MariaDb)),
        (Relay::Log, Database::Postgres) => Ok(Some(Backend::PostgresLogical)),
        (Relay::Log, _) => Err(anyhow!(
            "--relay log needs --database postgres: only PostgreSQL's log can be read"
        )),
    }
}

fn wanted(options: &Options, database: Option<Backend>) -> Vec<Backend> {
    let broker = match (options.broker, options.least_rights) {
        (Broker::Nats, false) => Some(Backend::NatsForDemo),
        // The demo starts it, with its users.
        (Broker::Nats, true) => Some(Backend::NatsProgram),
        (Broker::Memory, _) => None,
    };
    database.into_iter().chain(broker).collect()
}

fn connection(
    options: &Options,
    backend: Option<Backend>,
    services: &Services,
    work: &Path,
) -> Result<Vec<OsString>> {
    let database = options
        .database
        .to_possible_value()
        .map_or_else(String::new, |value| value.get_name().to_owned());
    let database_url = match backend {
        Some(backend) => services.url(backend)?.into(),
        // SQLite's is a folder: the demo makes one file per service in it.
        None => prefixed("sqlite://", work),
    };
    let mut arguments: Vec<OsString> = vec!["--database".into(), database.into()];
    arguments.extend([
        "--database-url".into(),
        database_url,
        "--work-dir".into(),
        work.into(),
    ]);
    if options.relay == Relay::Log {
        arguments.extend(["--relay".into(), "log".into()]);
    }
    match options.broker {
        Broker::Nats if options.least_rights => {
            arguments.extend(["--nats-server".into(), services.url(Backend::NatsProgram)?.into()]);
        }
        Broker::Nats => arguments.extend(["--nats-url".into(), services.url(Backend::NatsForDemo)?.into()]),
        Broker::Memory => arguments.extend(["--broker".into(), "memory".into()]),
    }
    Ok(arguments)
}

fn prefixed(scheme: &str, path: &Path) -> OsString {
    let mut url = OsString::from(scheme);
    url.push(path);
    url
}

/// The arguments that are passed on. Paths are made absolute, because they are relative to the caller's folder.
fn input(options: &Options) -> Result<Vec<OsString>> {
    let mut arguments: Vec<OsString> = Vec::new();
    match (&options.orders, &options.lines) {
        (Some(orders), Some(lines)) => {
            arguments.extend([
                "--orders".into(),
                existing(orders)?.into(),
                "--lines".into(),
                existing(lines)?.into(),
            ]);
        }
        _ => {
            let count = options.generate.unwrap_or(GENERATED_BY_DEFAULT);
            arguments.extend(["--generate".into(), count.to_string().into()]);
        }
    }
    if let Some(export) = &options.export {
        arguments.extend(["--export".into(), absolute(export)?.into()]);
    }
    arguments.extend(options.json.then(|| "--json".into()));
    Ok(arguments)
}

fn existing(path: &Path) -> Result<PathBuf> {
    let path = absolute(path)?;
    // Checked now rather than after a build and the start of two servers.
    fs::File::open(&path)
        .with_context(|| format!("cannot read {}; give the path of a CSV file", path.display()))?;
    Ok(path)
}

fn absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).with_context(|| format!("cannot resolve {}", path.display()))
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

    fn input_of(arguments: &str) -> Vec<OsString> {
        input(&parse(arguments).unwrap()).unwrap()
    }

    #[test]
    fn orders_are_generated_unless_files_are_given() {
        assert_eq!(input_of(""), ["--generate", "200"]);
        assert_eq!(input_of("--generate 3 --json"), ["--generate", "3", "--json"]);
        assert!(parse("--orders a.csv").is_err());
        assert!(parse("--orders a.csv --lines b.csv --generate 3").is_err());
    }

    #[test]
    fn paths_are_those_of_the_caller() {
        let here = std::env::current_dir().unwrap();
        let manifest = here.join("Cargo.toml").into_os_string();
        let expected: [OsString; 6] = [
            "--orders".into(),
            manifest.clone(),
            "--lines".into(),
            manifest,
            "--export".into(),
            here.join("out").into_os_string(),
        ];
        assert_eq!(
            input_of("--orders Cargo.toml --lines Cargo.toml --export out"),
            expected
        );
    }

    #[test]
    fn only_what_the_demo_needs_is_started() {
        let wanted = |arguments| {
            let options = parse(arguments).unwrap();
            wanted(&options, backend(&options).unwrap())
        };
        assert_eq!(wanted(""), [Backend::NatsForDemo]);
        assert_eq!(wanted("--broker memory"), []);
        assert_eq!(
            wanted("--database mariadb --broker nats"),
            [Backend::MariaDb, Backend::NatsForDemo]
        );
        assert_eq!(wanted("--database postgres --broker memory"), [Backend::Postgres]);
        assert_eq!(
            wanted("--database postgres --relay log"),
            [Backend::PostgresLogical, Backend::NatsForDemo]
        );
        assert_eq!(
            wanted("--database postgres --least-rights"),
            [Backend::Postgres, Backend::NatsProgram]
        );
    }

    #[test]
    fn a_database_whose_log_cannot_be_read_is_refused_before_anything_is_built() {
        for arguments in ["--relay log", "--relay log --database mariadb"] {
            let failure = backend(&parse(arguments).unwrap()).unwrap_err();
            assert!(
                format!("{failure:#}").contains("--database postgres"),
                "{arguments}"
            );
        }
    }

    #[test]
    fn logs_of_a_failure_outlive_its_folder() {
        let folder = tempfile::tempdir().unwrap();
        let (logs, kept) = (folder.path().join("logs"), folder.path().join("target/kept"));
        assert!(!keep_logs(&logs, &kept).unwrap(), "malformed input is not logged");
        fs::create_dir(&logs).unwrap();
        for name in ["first.log", "second.log"] {
            fs::write(logs.join(name), name).unwrap();
            assert!(keep_logs(&logs, &kept).unwrap());
            assert_eq!(fs::read_to_string(kept.join(name)).unwrap(), name);
            fs::remove_file(logs.join(name)).unwrap();
        }
        assert!(!kept.join("first.log").exists(), "of an earlier run");
    }
}
