//! `cargo xtask lint`: everything that can be checked without running a test.
//!
//! A failing step does not stop the others: one run shows all there is to repair. Nothing is changed, and no compiler
//! flag is set through the environment, since that would rebuild every dependency.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};

use crate::process::{Manners, Process, tied};
use crate::workspace::{Workspace, cargo_command};
use crate::{graph, tidy};

/// Building cargo-deny takes minutes, so it happens only if this is set to 1.
const INSTALL_DENY: &str = "OUTBOX_LINT_INSTALL_DENY";

/// Runs cargo for each feature of each package. The version is pinned, as those of all tools.
const HACK: &str = "cargo-hack@0.6.46";

#[derive(Debug)]
enum Verdict {
    Passed,
    Failed,
    Skipped(String),
}

#[derive(Debug)]
struct Finished {
    name: String,
    verdict: Verdict,
    took: Duration,
}

pub(crate) fn run() -> Result<ExitCode> {
    let workspace = Workspace::load()?;
    add_component("fmt", "rustfmt")?;
    add_component("clippy", "clippy")?;
    let mut report = Report::default();
    report.cargo("format", &workspace.root, &["fmt", "--all", "--check"]);
    report.step("tidy", || Ok(list(&tidy::problems(&workspace.root)?)));
    let clippy = [
        "clippy",
        "--workspace",
        "--all-targets",
        "--all-features",
        "--",
        "-D",
        "warnings",
    ];
    report.cargo("clippy", &workspace.root, &clippy);
    report.step("packages alone", || packages_alone(&workspace));
    report.step("documentation", || document(&workspace.root));
    report.step("cargo-deny", || deny(&workspace));
    report.step("crate graph", || Ok(list(&graph::problems(&workspace.packages))));
    Ok(report.summarise())
}

/// Each package alone, with its default features, without them, and with each single feature: library, programs
/// and examples. A build of the whole workspace unifies features and hides a feature that a package lacks.
fn packages_alone(workspace: &Workspace) -> Result<Verdict> {
    let hack = hack(workspace)?;
    let (libraries, programs): (Vec<_>, Vec<_>) =
        workspace.packages.iter().partition(|package| package.has_library);
    // Cargo refuses `--lib` for a package that has no library.
    for (packages, is_library) in [(libraries, true), (programs, false)] {
        let mut command = tied(&hack);
        command.args([
            "hack",
            "clippy",
            "--each-feature",
            "--exclude-all-features",
            "--keep-going",
        ]);
        for package in packages {
            command.args(["--package", &package.name]);
        }
        command.args(is_library.then_some("--lib"));
        command.args(["--bins", "--examples", "--", "-D", "warnings"]);
        if let Verdict::Failed = succeed(command.current_dir(&workspace.root))? {
            return Ok(Verdict::Failed);
        }
    }
    Ok(Verdict::Passed)
}

/// The path of cargo-hack, which is built into the folder of the tools if it is missing.
fn hack(workspace: &Workspace) -> Result<PathBuf> {
    let folder = workspace.tools().join(HACK);
    let program = folder.join("bin").join("cargo-hack");
    if answers(Command::new(&program).args(["hack", "--version"])) {
        return Ok(program);
    }
    let mut install = cargo_command();
    // Unoptimised, because it only starts cargo.
    install.args(["install", "--locked", "--debug", HACK, "--root"]);
    match succeed(install.arg(&folder))? {
        Verdict::Passed => Ok(program),
        _ => Err(anyhow!(
            "cannot install {HACK}; is the registry of crates reachable?"
        )),
    }
}

fn document(root: &Path) -> Result<Verdict> {
    let mut command = cargo_command();
    command
        .args(["doc", "--workspace", "--no-deps", "--all-features"])
        .env("RUSTDOCFLAGS", "-D warnings");
    succeed(command.current_dir(root))
}

/// Licences, bans and sources. The list of advisories is fetched from elsewhere than the crates, so it is left out.
fn deny(workspace: &Workspace) -> Result<Verdict> {
    let installed = workspace.tools().join("bin").join("cargo-deny");
    let programs = [PathBuf::from("cargo-deny"), installed.clone()];
    let mut program = programs
        .iter()
        .find(|program| answers(Command::new(program).arg("--version")));
    if program.is_none() && env::var(INSTALL_DENY).is_ok_and(|value| value == "1") {
        let mut install = cargo_command();
        install
            .args(["install", "--locked", "cargo-deny", "--root"])
            .arg(workspace.tools());
        if matches!(succeed(&mut install)?, Verdict::Passed) {
            program = Some(&installed);
        }
    }
    let Some(program) = program else {
        return Ok(Verdict::Skipped(
            "not installed (cargo install cargo-deny)".to_owned(),
        ));
    };
    let mut command = tied(program);
    command.args(["--all-features", "check", "bans", "licenses", "sources"]);
    succeed(command.current_dir(&workspace.root))
}

/// A toolchain may come without its usual components; rustup adds them to the toolchain that runs us.
fn add_component(subcommand: &str, component: &str) -> Result<()> {
    if answers(cargo_command().args([subcommand, "--version"])) {
        return Ok(());
    }
    let advice = || anyhow!("cargo {subcommand} is missing; install it (rustup component add {component})");
    let mut add = tied("rustup");
    add.args(["component", "add", component]);
    match succeed(&mut add) {
        Ok(Verdict::Passed) => Ok(()),
        _ => Err(advice()),
    }
}

fn answers(command: &mut Command) -> bool {
    let quiet = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    quiet.status().is_ok_and(|status| status.success())
}

fn succeed(command: &mut Command) -> Result<Verdict> {
    let command = std::mem::replace(command, Command::new("true"));
    let status = Process::launch(command, Manners::GROUP)?.wait()?;
    Ok(if status.success() {
        Verdict::Passed
    } else {
        Verdict::Failed
    })
}

fn list(problems: &[String]) -> Verdict {
    for problem in problems {
        println!("{problem}");
    }
    if problems.is_empty() {
        Verdict::Passed
    } else {
        Verdict::Failed
    }
}

#[derive(Debug, Default)]
struct Report {
    finished: Vec<Finished>,
}

impl Report {
    fn cargo(&mut self, name: &str, root: &Path, arguments: &[&str]) {
        self.step(name, || {
            let mut command = cargo_command();
            succeed(command.args(arguments).current_dir(root))
        });
    }

    /// Runs one step; a step that cannot run has failed.
    fn step(&mut self, name: &str, check: impl FnOnce() -> Result<Verdict>) {
        println!("==> {name}");
        let began = Instant::now();
        let verdict = check().unwrap_or_else(|failure| {
            println!("{failure:#}");
            Verdict::Failed
        });
        let finished = Finished {
            name: name.to_owned(),
            verdict,
            took: began.elapsed(),
        };
        println!("{}", finished.line());
        self.finished.push(finished);
    }

    fn summarise(&self) -> ExitCode {
        println!("==> summary");
        for finished in &self.finished {
            println!("{}", finished.line());
        }
        let is_failure = self
            .finished
            .iter()
            .any(|finished| matches!(finished.verdict, Verdict::Failed));
        if is_failure {
            ExitCode::FAILURE
        } else {
            ExitCode::SUCCESS
        }
    }
}

impl Finished {
    fn line(&self) -> String {
        let Self { name, verdict, took } = self;
        let seconds = took.as_secs_f64();
        match verdict {
            Verdict::Passed => format!("{name}: passed ({seconds:.1} s)"),
            Verdict::Failed => format!("{name}: FAILED ({seconds:.1} s)"),
            Verdict::Skipped(reason) => format!("{name}: skipped, {reason}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_that_cannot_run_has_failed() {
        let mut report = Report::default();
        report.step("one", || Err(anyhow!("no")));
        report.step("two", || Ok(Verdict::Skipped("not installed".to_owned())));
        assert!(report.finished[0].line().starts_with("one: FAILED"));
        assert_eq!(report.finished[1].line(), "two: skipped, not installed");
        assert_eq!(report.summarise(), ExitCode::FAILURE);
    }
}
