//! `cargo xtask simulate`: the relay in simulated worlds, one for each seed.
//!
//! It builds the program `simulate` with optimisation and passes the arguments on. The program prints failures, how to repeat them, and the closing line.
//! The simulation itself is in `stress/src/simulation`.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Args;

use anyhow::Result;

use crate::process::{Manners, Process};
use crate::program;
use crate::workspace::{Workspace, cargo_command};

#[derive(Args, Debug)]
pub(crate) struct Options {
    /// How many seeds, one world each.
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    seeds: u64,
    /// The first seed.
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    from: u64,
    /// Plant a mistake, to see it found; an unknown name lists them.
    #[arg(long, value_name = "MISTAKE")]
    wrong: Option<String>,
    /// Print the whole history of each world.
    #[arg(long)]
    trace: bool,
}

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let workspace = Workspace::load()?;
    let mut command = cargo_command();
    command.args(arguments(options)).current_dir(&workspace.root);
    let process = Process::launch(command, Manners::FOREGROUND)?;
    Ok(if process.wait()?.success() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Without the servers that `bench` and `chaos` need, so that it builds fast. A seed means the same world as in the tests, which have them.
fn arguments(options: &Options) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = [
        "run",
        "--quiet",
        "--release",
        "--package",
        program::STRESS,
        "--no-default-features",
        "--bin",
        "simulate",
        "--",
    ]
    .map(OsString::from)
    .to_vec();
    arguments.extend(["--seeds".into(), options.seeds.to_string().into()]);
    arguments.extend(["--from".into(), options.from.to_string().into()]);
    arguments.extend(
        options
            .wrong
            .iter()
            .flat_map(|wrong| ["--wrong".into(), wrong.into()]),
    );
    arguments.extend(options.trace.then(|| "--trace".into()));
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

    #[test]
    fn a_failure_is_repeated_with_the_command_it_prints() {
        let words = "simulate --from 7 --seeds 1 --trace --wrong no-epoch-check".split(' ');
        let options = Cli::try_parse_from(words).unwrap().options;
        let arguments = arguments(&options);
        let passed = arguments.iter().skip_while(|word| *word != "--").skip(1);
        let passed: Vec<_> = passed.map(|word| word.to_string_lossy()).collect();
        assert_eq!(
            passed.join(" "),
            "--seeds 1 --from 7 --wrong no-epoch-check --trace"
        );
    }
}
