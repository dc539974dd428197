//! `cargo xtask polyglot`: the services in other languages and the consumer in Python, by `check.py` and `torment.py` in `examples/polyglot`.
//!
//! It installs Go and the like, which takes a minute, so it is no test: run it every night. The scripts decide what is right. Not here: the tests of the
//! stacks that are quick to install, see `examples/tests/it/polyglot.rs`.

use std::process::ExitCode;

use clap::{Args, ValueEnum as _};

use anyhow::Result;

use crate::process::{self, tied};
use crate::program;
use crate::services::{Backend, Services, Stack};
use crate::workspace::Workspace;

#[derive(Args, Debug)]
pub(crate) struct Options {
    /// The stacks to run. Default: all that this machine has or can install.
    stacks: Vec<Stack>,
}

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let workspace = Workspace::load()?;
    let tools = workspace.tools();
    // The scripts are in Python themselves, whatever they run.
    let mut variables = Stack::Python.install(&tools)?;
    let wanted = match &*options.stacks {
        [] => Stack::value_variants(),
        named => named,
    };
    let (mut names, mut left_out) = (Vec::new(), Vec::new());
    for stack in wanted {
        match stack.install(&tools) {
            Ok(found) => {
                variables.extend(found);
                names.push(stack.to_string());
            }
            Err(failure) if options.stacks.is_empty() => {
                left_out.push(format!("{stack}: not run: {failure:#}"));
            }
            // Whoever names a stack wants to see it run.
            Err(failure) => return Err(failure),
        }
    }
    let example = program::build_example(&workspace, "16_postgres_jetstream")?;
    variables.push(("EXAMPLE_16", example.into()));
    let services = Services::start(&[Backend::Postgres, Backend::Nats], &workspace)?;
    variables.push(("DATABASE_URL", services.url(Backend::Postgres)?.into()));
    variables.push(("NATS_URL", services.url(Backend::Nats)?.into()));
    let run = |script: &str, arguments: &[String]| {
        let mut command = tied("python3");
        command.arg(workspace.root.join("examples/polyglot").join(script));
        command.args(arguments).envs(variables.iter().cloned());
        process::run(command.env("PYTHONDONTWRITEBYTECODE", "1"))
    };
    let mut status = run("check.py", &names)?;
    if status == ExitCode::SUCCESS {
        status = run("torment.py", &[])?;
    }
    for line in left_out {
        println!("{line}");
    }
    Ok(status)
}
