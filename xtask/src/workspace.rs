//! The folders, crates and dependencies of this workspace, from `cargo metadata`.
//!
//! It is read with `--no-deps`, so it needs no network and no lock file. The rules are in `graph` and `tidy`.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use anyhow::{Context as _, Result, anyhow, bail};

use crate::process::tied;

#[derive(Debug)]
pub(crate) struct Workspace {
    pub(crate) root: PathBuf,
    /// The folder that cargo builds in, which need not be `target` below the root.
    pub(crate) target_directory: PathBuf,
    pub(crate) packages: Vec<Package>,
}

#[derive(Debug)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) has_library: bool,
    /// Normal and build dependencies. Those of the tests ship to nobody, so they are left out.
    pub(crate) dependencies: Vec<String>,
}

impl Workspace {
    pub(crate) fn load() -> Result<Self> {
        let root = root();
        let output = Command::new(cargo())
            .args(["metadata", "--format-version", "1", "--no-deps"])
            .current_dir(&root)
            .output()
            .context("cannot run cargo metadata; is cargo on the PATH?")?;
        if !output.status.success() {
            let stderr = String::from_utf8_lossy(&output.stderr);
            bail!("cargo metadata failed; repair the manifest first:\n{stderr}");
        }
        let metadata: Value = serde_json::from_slice(&output.stdout)
            .context("cargo metadata printed something that is not JSON")?;
        Self::from_metadata(&metadata).ok_or_else(|| {
            anyhow!("cargo metadata has a shape unknown to xtask; update xtask/src/workspace.rs")
        })
    }

    fn from_metadata(metadata: &Value) -> Option<Self> {
        let packages = metadata["packages"]
            .as_array()?
            .iter()
            .map(package)
            .collect::<Option<_>>()?;
        Some(Self {
            root: metadata["workspace_root"].as_str()?.into(),
            target_directory: metadata["target_directory"].as_str()?.into(),
            packages,
        })
    }

    /// The folder in which these tasks keep their tools between runs.
    pub(crate) fn tools(&self) -> PathBuf {
        self.target_directory.join("xtask").join("tools")
    }
}

fn package(package: &Value) -> Option<Package> {
    let is_wanted = |dependency: &&Value| dependency["kind"] != "dev";
    let mut dependencies: Vec<String> = package["dependencies"]
        .as_array()?
        .iter()
        .filter(is_wanted)
        .map(|dependency| Some(dependency["name"].as_str()?.to_owned()))
        .collect::<Option<_>>()?;
    dependencies.sort();
    dependencies.dedup();
    // A procedural macro is a kind of its own, and `--lib` selects it.
    let is_library = |target: &Value| {
        let kinds = target["kind"].as_array();
        kinds.is_some_and(|kinds| kinds.iter().any(|kind| kind == "lib" || kind == "proc-macro"))
    };
    Some(Package {
        name: package["name"].as_str()?.to_owned(),
        has_library: package["targets"].as_array()?.iter().any(is_library),
        dependencies,
    })
}

/// The cargo that runs this task, so that `cargo +nightly xtask …` stays on one toolchain.
fn cargo() -> OsString {
    env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

/// A call of cargo, as one would type it: without the variables that cargo has set for this task.
///
/// Build scripts look at some of them. With `CARGO_PKG_NAME` left at `xtask`, `ring` and all that depends on it would be built again each time that a
/// call of cargo by hand follows a task, or a task follows one.
pub(crate) fn cargo_command() -> Command {
    let mut command = tied(cargo());
    forget_task(&mut command);
    command
}

/// Takes the variables that cargo has set for this task from a command that calls cargo.
pub(crate) fn forget_task(command: &mut Command) {
    for (name, _) in env::vars_os() {
        let is_of_task = name
            .to_str()
            .is_some_and(|name| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_"));
        if is_of_task {
            command.env_remove(name);
        }
    }
}

/// The folder of the workspace, wherever below it the task was called.
pub(crate) fn root() -> PathBuf {
    let manifest =
        env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from);
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
            "workspace_root": "/w",
            "target_directory": "/w/target",
            "packages": [{
                "name": "outbox-core",
                "dependencies": [
                    { "name": "tokio", "kind": null },
                    { "name": "cc", "kind": "build" },
                    { "name": "trybuild", "kind": "dev" },
                ],
                "targets": [{ "kind": ["test"] }, { "kind": ["lib"] }],
            }],
        });
        let workspace = Workspace::from_metadata(&metadata).unwrap();
        assert!(workspace.packages[0].has_library);
        assert_eq!(workspace.packages[0].dependencies, ["cc", "tokio"]);
    }
}
