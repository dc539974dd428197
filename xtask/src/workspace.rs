//! The folders, crates and dependencies of this workspace, from `cargo metadata --no-deps`, without
//! network and lock file.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::process::tied;

#[derive(Debug)]
pub(crate) struct Workspace {
    pub(crate) root: PathBuf,
    pub(crate) target_directory: PathBuf,
    pub(crate) packages: Vec<Package>,
}

#[derive(Debug)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) dependencies: Vec<String>,
}

impl Workspace {
    pub(crate) fn load() -> Result<Self> {
        let mut command = Command::new(cargo());
        command.args(["metadata", "--format-version", "1", "--no-deps"]);
        let output = command
            .current_dir(root())
            .output()
            .context("cannot run cargo metadata")?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "cargo metadata failed:\n{stderr}");
        let metadata: Value =
            serde_json::from_slice(&output.stdout).context("cargo metadata printed no JSON")?;
        Self::from_metadata(&metadata)
            .context("cargo metadata has an unsupported format; change xtask/src/workspace.rs")
    }

    fn from_metadata(metadata: &Value) -> Option<Self> {
        let packages = metadata["packages"].as_array()?.iter().map(package);
        Some(Self {
            root: metadata["workspace_root"].as_str()?.into(),
            target_directory: metadata["target_directory"].as_str()?.into(),
            packages: packages.collect::<Option<_>>()?,
        })
    }

    pub(crate) fn tools(&self) -> PathBuf {
        self.target_directory.join("xtask").join("tools")
    }
}

fn package(package: &Value) -> Option<Package> {
    let dependencies = package["dependencies"].as_array()?.iter();
    let dependencies = dependencies.filter(|dependency| dependency["kind"] != "dev");
    let name = |value: &Value| value["name"].as_str().map(str::to_owned);
    Some(Package {
        name: name(package)?,
        dependencies: dependencies.map(name).collect::<Option<_>>()?,
    })
}

/// The cargo that runs this task, so that `cargo +nightly xtask …` keeps its toolchain.
fn cargo() -> OsString {
    env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

/// The command cargo, without the variables that cargo has set for this task: a changed
/// `CARGO_PKG_NAME` would rebuild `ring` and its dependents.
pub(crate) fn cargo_command() -> Command {
    let mut command = tied(cargo());
    for (name, _) in env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&name);
        }
    }
    command
}

pub(crate) fn root() -> PathBuf {
    let manifest = env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    let manifest = manifest.unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    manifest
        .parent()
        .map_or_else(|| manifest.clone(), Path::to_path_buf)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn development_dependencies_are_left_out() {
        let metadata = serde_json::json!({
            "name": "outbox-core",
            "dependencies": [{ "name": "cc", "kind": "build" }, { "name": "trybuild", "kind": "dev" }],
        });
        let package = package(&metadata).unwrap();
        assert_eq!(package.dependencies, ["cc"]);
    }
}
