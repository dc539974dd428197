//! Programs of this workspace that a task builds and runs in its place.

use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{ExitCode, ExitStatus, Stdio};
use std::{env, io};

use serde_json::Value;

use anyhow::{Context as _, Result, anyhow, bail};

use crate::process::{Manners, Process};
use crate::workspace::{Workspace, cargo_command};

/// The package of `bench`, `chaos` and `simulate`.
pub(crate) const STRESS: &str = "outbox-stress";

/// Builds a program and returns its path. `arguments` are further ones for `cargo build`.
pub(crate) fn build(workspace: &Workspace, package: &str, name: &str, arguments: &[&str]) -> Result<PathBuf> {
    let target = ["--package", package, "--bin", name];
    build_target(workspace, name, &[&target, arguments].concat())
}

/// Builds a numbered example and returns its path.
pub(crate) fn build_example(workspace: &Workspace, name: &str) -> Result<PathBuf> {
    build_target(workspace, name, &["--package", "examples", "--example", name])
}

/// Cargo's messages go to the standard error.
fn build_target(workspace: &Workspace, name: &str, arguments: &[&str]) -> Result<PathBuf> {
    let mut command = cargo_command();
    command.arg("build").args(arguments);
    command.arg("--message-format=json-render-diagnostics");
    command.current_dir(&workspace.root).stdout(Stdio::piped());
    // Cargo tells this task about its own package. Build scripts that watch such variables (ring's) would run again, and half of the
    // dependencies be compiled again, whenever the same program is built by hand in between.
    for (name, _) in env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&name);
        }
    }
    let mut process = Process::launch(command, Manners::GROUP)?;
    let output = process
        .stdout()
        .ok_or_else(|| anyhow!("cargo build has no output"))?;
    let messages = io::read_to_string(output).context("cannot read the output of cargo build")?;
    if !process.wait()?.success() {
        bail!("the program {name} does not build; see above");
    }
    executable(&messages, name).ok_or_else(|| anyhow!("cargo build made no program called {name}"))
}

/// The path of the program, from cargo's messages. With another target or profile it is not the usual one.
fn executable(messages: &str, name: &str) -> Option<PathBuf> {
    messages.lines().find_map(|line| {
        let message: Value = serde_json::from_str(line).ok()?;
        let is_program = message["reason"] == "compiler-artifact" && message["target"]["name"] == name;
        if is_program {
            message["executable"].as_str().map(PathBuf::from)
        } else {
            None
        }
    })
}

/// The same status for the caller of this task; a signal counts as shells count it.
pub(crate) fn forward(status: ExitStatus) -> ExitCode {
    let code = status
        .code()
        .or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok())
        .map_or(ExitCode::FAILURE, ExitCode::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_is_where_cargo_says() {
        let messages = r#"{"reason":"compiler-artifact","target":{"name":"outbox"},"executable":null}
{"reason":"compiler-artifact","target":{"name":"bench"},"executable":"elsewhere/release/bench"}
{"reason":"build-finished","success":true}"#;
        assert_eq!(
            executable(messages, "bench"),
            Some(PathBuf::from("elsewhere/release/bench"))
        );
        assert_eq!(executable(messages, "chaos"), None);
    }
}
