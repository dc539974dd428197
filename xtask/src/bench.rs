//! `cargo xtask bench`: starts a database and a broker, and runs the program `bench` in release
//! mode.
//!
//! With `--json` only the list of figures is printed to standard output. `docs/performance.md`
//! explains the figures.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::{Args, ValueEnum};

use crate::process::{self, tied};
use crate::program;
use crate::services::{Backend, Services};
use crate::workspace::Workspace;

#[derive(Args, Debug)]
pub(crate) struct Options {
    /// A library to start the measuring program with, such as the allocator `libjemalloc.so.2`
    /// (`LD_PRELOAD`).
    #[arg(long, value_name = "FILE")]
    preload: Option<PathBuf>,
    #[arg(value_enum)]
    what: What,
    /// Options of the program, such as --json, --runs N, --quick, --only GROUP,… (an unknown group
    /// lists all groups).
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "OPTION")]
    arguments: Vec<String>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
enum What {
    Relay,
    Inbox,
}

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let workspace = Workspace::load()?;
    let bench = program::build(&workspace, program::STRESS, "bench", &["--release"])?;
    let reads_log = options.what == What::Relay && is_chosen(&options.arguments, "log");
    let mut wanted = vec![Backend::Postgres, Backend::Nats];
    wanted.extend(reads_log.then_some(Backend::PostgresLogical));
    let services = Services::start(&wanted, &workspace)?;
    services.report();
    let mut command = tied(bench);
    let what = options.what.to_possible_value();
    command.args(what.iter().map(|what| what.get_name()));
    command.args(["--postgres-url", services.url(Backend::Postgres)?]);
    command.args(["--nats-url", services.url(Backend::Nats)?]);
    if reads_log {
        command.args(["--logical-url", services.url(Backend::PostgresLogical)?]);
    }
    if let Some(library) = &options.preload {
        // The dynamic linker only warns about a missing file.
        let path = library
            .canonicalize()
            .with_context(|| format!("cannot preload {}", library.display()))?;
        command.env("LD_PRELOAD", path);
    }
    process::run(command.args(&options.arguments))
}

fn is_chosen(arguments: &[String], group: &str) -> bool {
    let at = |word: &String| word == "--only" || word.starts_with("--only=");
    let Some(at) = arguments.iter().position(at) else {
        return true;
    };
    let groups = arguments[at]
        .strip_prefix("--only=")
        .or(arguments.get(at + 1).map(String::as_str));
    groups
        .unwrap_or_default()
        .split(',')
        .any(|chosen| chosen == group)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_of_unchosen_groups_are_not_started() {
        let check = |words: &str, expected| {
            let words: Vec<String> = words.split_whitespace().map(str::to_owned).collect();
            assert_eq!(is_chosen(&words, "log"), expected, "{words:?}");
        };
        check("--quick", true);
        check("--only hot,log --runs 1", true);
        check("--only=log", true);
        check("--only hot,write", false);
        check("--only", false);
    }
}
