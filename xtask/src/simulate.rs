//! `cargo xtask simulate`: runs the optimized program `simulate`.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;

use crate::workspace::{cargo_command, root};
use crate::{process, program};

#[derive(Args, Debug)]
pub(crate) struct Options {
    /// --seeds N (default 10000), --from SEED, --wrong MISTAKE (an unknown name lists them),
    /// --trace, --threads N.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "OPTION")]
    arguments: Vec<String>,
}

/// Runs the simulation. The build omits the servers of `bench` and `chaos`. A seed gives the same
/// world as in the tests.
pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let mut command = cargo_command();
    command.args(["run", "--quiet", "--release", "--package", program::STRESS]);
    command.args(["--no-default-features", "--bin", "simulate", "--"]);
    command.args(["--seeds", "10000"]).args(&options.arguments);
    process::run(command.current_dir(root()))
}
