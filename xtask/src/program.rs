//! Builds programs of this workspace.

use std::io;
use std::path::PathBuf;
use std::process::Stdio;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::process::{Manners, Process};
use crate::workspace::{Workspace, cargo_command};

pub(crate) const STRESS: &str = "outbox-stress";

pub(crate) fn build(workspace: &Workspace, package: &str, name: &str, arguments: &[&str]) -> Result<PathBuf> {
    let target = ["--package", package, "--bin", name];
    build_target(workspace, name, &[&target, arguments].concat())
}

pub(crate) fn build_example(workspace: &Workspace, name: &str) -> Result<PathBuf> {
    build_target(workspace, name, &["--package", "examples", "--example", name])
}

fn build_target(workspace: &Workspace, name: &str, arguments: &[&str]) -> Result<PathBuf> {
    let mut command = cargo_command();
    command.arg("build").args(arguments);
    command.arg("--message-format=json-render-diagnostics");
    command.current_dir(&workspace.root).stdout(Stdio::piped());
    let mut process = Process::launch(command, Manners::GROUP)?;
    let output = process.stdout().context("cargo build has no output")?;
    let messages = io::read_to_string(output).context("cannot read the output of cargo build")?;
    ensure!(
        process.wait()?.success(),
        "the program {name} does not build; see above"
    );
    executable(&messages, name).with_context(|| format!("cargo build built no program {name}"))
}

fn executable(messages: &str, name: &str) -> Option<PathBuf> {
    let messages = messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut artifacts = messages.filter(|message| message["target"]["name"] == name);
    artifacts.find_map(|artifact| artifact["executable"].as_str().map(PathBuf::from))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_path_comes_from_cargo_messages() {
        let messages = r#"{"reason":"compiler-artifact","target":{"name":"bench"},"executable":null}
{"reason":"compiler-artifact","target":{"name":"bench"},"executable":"elsewhere/release/bench"}
{"reason":"build-finished","success":true}"#;
        let expected = Some(PathBuf::from("elsewhere/release/bench"));
        assert_eq!(executable(messages, "bench"), expected);
        assert_eq!(executable(messages, "chaos"), None);
    }
}
