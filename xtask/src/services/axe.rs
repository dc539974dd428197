//! axe-core from npm, for the tests of the dashboard: a script that a browser runs in a page. No program of ours contains it.

use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::services::{install, polyglot};
use crate::workspace;

/// The script. `xtask/axe/package.json` says which version it is.
pub(super) fn script(tools: &Path) -> Result<PathBuf> {
    let package = workspace::root().join("xtask/axe");
    let (_, npm) = polyglot::node_and_npm(tools)?;
    let modules = install::node_modules(tools, "axe", &package, npm)?;
    Ok(modules.join("axe-core/axe.min.js"))
}
