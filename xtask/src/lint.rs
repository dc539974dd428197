//! `cargo xtask lint`: all checks that run no test. A failing step does not stop the remaining
//! steps.
//!
//! Compiler flags in the environment would rebuild every dependency.

use std::env;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Instant;

use anyhow::{Result, ensure};

use crate::process::{Manners, Process, succeeds_quietly, tied};
use crate::workspace::{Workspace, cargo_command};
use crate::{graph, tidy};

/// cargo-deny is installed only if this environment variable is 1, because building it takes
/// minutes.
const INSTALL_DENY: &str = "OUTBOX_LINT_INSTALL_DENY";

const HACK: &str = "cargo-hack@0.6.46";

pub(crate) fn run() -> Result<ExitCode> {
    let workspace = Workspace::load()?;
    add_component("fmt", "rustfmt")?;
    add_component("clippy", "clippy")?;
    let step = |name: &str, check: &dyn Fn() -> Result<bool>| {
        println!("==> {name}");
        let began = Instant::now();
        let is_passed = check().unwrap_or_else(|failure| {
            println!("{failure:#}");
            false
        });
        let verdict = if is_passed { "passed" } else { "FAILED" };
        let line = format!("{name}: {verdict} ({:.1} s)", began.elapsed().as_secs_f64());
        (is_passed, line)
    };
    let cargo = |words: &str| {
        let mut command = cargo_command();
        command.args(words.split(' ')).current_dir(&workspace.root);
        succeeds(command.env("RUSTDOCFLAGS", "-D warnings"))
    };
    let mut finished = vec![
        step("format", &|| cargo("fmt --all --check")),
        step("tidy", &|| Ok(is_empty(&tidy::problems(&workspace.root)?))),
        step("crate graph", &|| {
            Ok(is_empty(&graph::problems(&workspace.packages)))
        }),
        step("clippy", &|| {
            cargo("clippy --workspace --all-targets --all-features -- -D warnings")
        }),
        step("packages alone", &|| packages_alone(&workspace)),
        step("packages for the registry", &|| {
            cargo(
                "package --workspace --no-verify --allow-dirty --quiet --exclude examples --exclude outbox-stress \
                 --exclude outbox-test-servers --exclude xtask",
            )
        }),
        step("documentation", &|| {
            cargo("doc --workspace --no-deps --all-features")
        }),
    ];
    finished.push(match deny(&workspace)? {
        Some(program) => step("cargo-deny", &|| {
            let mut command = tied(&program);
            // The check excludes the advisory list, which is not in the crate registry.
            command.args(["--all-features", "check", "bans", "licenses", "sources"]);
            succeeds(command.current_dir(&workspace.root))
        }),
        None => (
            true,
            "cargo-deny: skipped, not installed (cargo install cargo-deny)".to_owned(),
        ),
    });
    println!("==> summary");
    finished.iter().for_each(|(_, line)| println!("{line}"));
    let is_failure = finished.iter().any(|(is_passed, _)| !is_passed);
    Ok(ExitCode::from(u8::from(is_failure)))
}

/// Checks each package alone, with several feature sets. A workspace build and dev-dependencies
/// unify features and hide missing features.
fn packages_alone(workspace: &Workspace) -> Result<bool> {
    let hack = hack(workspace)?;
    let alone = |arguments: &[&str]| {
        let mut command = tied(&hack);
        command.args(["hack", "clippy", "--workspace", "--keep-going"]);
        command.args(arguments).args(["--", "-D", "warnings"]);
        succeeds(command.current_dir(&workspace.root))
    };
    let programs = alone(&["--each-feature", "--exclude-all-features"])?;
    Ok(alone(&["--examples"])? && programs)
}

fn hack(workspace: &Workspace) -> Result<PathBuf> {
    let folder = workspace.tools().join(HACK);
    let program = folder.join("bin/cargo-hack");
    if !answers(Command::new(&program).arg("hack")) {
        let mut install = cargo_command();
        install.args(["install", "--locked", "--debug", HACK, "--root"]);
        ensure!(succeeds(install.arg(&folder))?, "cannot install {HACK}");
    }
    Ok(program)
}

fn deny(workspace: &Workspace) -> Result<Option<PathBuf>> {
    let installed = workspace.tools().join("bin/cargo-deny");
    if env::var(INSTALL_DENY).is_ok_and(|value| value == "1") && !answers(&mut Command::new(&installed)) {
        let mut install = cargo_command();
        install.args(["install", "--locked", "cargo-deny", "--root"]);
        ensure!(
            succeeds(install.arg(workspace.tools()))?,
            "cannot install cargo-deny"
        );
    }
    let mut programs = [installed, PathBuf::from("cargo-deny")].into_iter();
    Ok(programs.find(|program| answers(&mut Command::new(program))))
}

fn add_component(subcommand: &str, component: &str) -> Result<()> {
    if !answers(cargo_command().arg(subcommand)) {
        let mut add = tied("rustup");
        let is_added = succeeds(add.args(["component", "add", component]));
        ensure!(
            is_added?,
            "cargo {subcommand} is missing; run rustup component add {component}"
        );
    }
    Ok(())
}

fn answers(command: &mut Command) -> bool {
    succeeds_quietly(command.arg("--version"))
}

fn succeeds(command: &mut Command) -> Result<bool> {
    let command = std::mem::replace(command, Command::new("true"));
    Ok(Process::launch(command, Manners::GROUP)?.wait()?.success())
}

fn is_empty(problems: &[String]) -> bool {
    problems.iter().for_each(|problem| println!("{problem}"));
    problems.is_empty()
}
